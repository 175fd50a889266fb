"""What the phone call's benchmark counts as whose time, and what as an answer."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.call import Answer, Question, error_rate, overhead_ms, read_questions, rows_of_latency
from chains.spans import Part, Segment
from examples.phone_call.dial import Exchange, Line


def segment(label: str, part: Part, name: str, ms: float) -> Segment:
    return Segment(label, part, name, 0.0, ms / 1e3)


@pytest.mark.parametrize(
    ("part", "counted"),
    [
        (segment("Asr.transcribe", "wire", "", 1), 1),
        (segment("LLM.reply", "queue", "", 2), 2),
        (segment("Tts.speak", "serialise", "", 3), 3),
        (segment("PhoneCall.run", "compute", "", 4), 4),
        (segment("Tts.speak", "wait", "", 5), 5),  # on what, nobody can say
        (segment("PhoneCall.run", "compute", "endpoint", 100), 0),
        (segment("Vad.listen", "wait", "input", 300), 0),
        (segment("LLM.reply", "compute", "", 200), 0),
    ],
)
def test_the_overhead_of_a_turn(part: Segment, counted: float) -> None:
    assert overhead_ms([part, part]) == pytest.approx(2 * counted)


def answer(reply: str, *, hung_up: bool = False, goodbye: bool = False) -> Answer:
    line = Line("When?", np.zeros(320, np.int16), 0.01)
    expected = {"right": [["bye" if goodbye else "60"]], "wrong": [], "hang_up": goodbye}
    return Answer(Question(line, 1, expected), Exchange("When?", reply=reply, v2v=0.5), hung_up, 1.0, 0.5)


def test_a_goodbye_is_right_only_when_the_line_is_closed() -> None:
    assert answer("Bye!", goodbye=True, hung_up=True).right
    assert not answer("Bye!", goodbye=True).right
    assert answer("sixty dollars").right


def test_a_question_that_was_never_asked_is_not_answered() -> None:
    asked = answer("60")
    unasked = Answer(asked.question, None, False, None, None)
    assert asked.answered
    assert not unasked.answered
    assert not unasked.right
    assert not answer("").answered


def test_word_error_rates_do_not_mind_how_numbers_are_written() -> None:
    assert error_rate([("It is $60.", "It is sixty dollars"), ("Bye.", "Bye")]) == 0
    assert error_rate([("It is 60 dollars", "It is 70 dollars")]) == 25


def test_the_quick_run_is_one_call_that_ends_with_goodbye() -> None:
    quick, all_of_them = read_questions(quick=True), read_questions(quick=False)
    assert (len(quick), len(all_of_them)) == (6, 30)
    assert {question.call for question in quick} == {1}
    assert [question.expected["topic"] for question in quick][-1] == "goodbye"
    for question in all_of_them[:-1]:
        following = all_of_them[all_of_them.index(question) + 1]
        if question.expected["topic"] == "goodbye":  # nothing can be asked after it
            assert following.call == question.call + 1


def test_latency_without_a_single_measured_turn_is_no_figure() -> None:
    assert rows_of_latency([]) == []
