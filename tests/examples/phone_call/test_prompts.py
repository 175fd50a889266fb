"""What the language model is asked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from examples.phone_call import prompts
from examples.phone_call.clinic import read_clinic

CLINIC = read_clinic()
EVEN = dict.fromkeys(prompts.LABELS, 0.25)


def near(**kinds: float) -> dict[str, float]:
    return {**dict.fromkeys(("question", "book", "greeting", "goodbye", "unknown"), 0.1), **kinds}


def test_a_reply_has_its_fact_and_the_words_last() -> None:
    fact = CLINIC.facts["parking"]
    prompt = prompts.reply(fact, "Where do I park?")
    assert prompt[0]["role"] == "system"
    assert prompt[-1]["content"] == f"Caller: Where do I park?\nFact: {fact.say}"
    assert [message["role"] for message in prompt[1:]] == ["user", "assistant"] * 3 + ["user"]
    assert all(message["content"] == fact.say for message in prompt[2::2])


@given(st.text(max_size=40))
def test_what_is_the_same_for_all_callers_comes_first(heard: str) -> None:
    """So it can be computed once: `prefixes` are the beginnings of the prompts, whatever was said."""
    known = [*prompts.reply_prefixes(CLINIC), prompts.intent_prefix()]
    for topic in [*CLINIC.facts.values(), *CLINIC.manners.values()]:
        assert prompts.reply(topic, heard)[:-1] in known
    labels = known[-1]
    assert isinstance(labels, str)
    assert prompts.intent(heard).startswith(labels)
    assert prompts.intent(heard).endswith(f"Caller: {heard}\nLabel:")


def test_every_label_has_an_example() -> None:
    prompt = prompts.intent("x")
    assert all(f"Label:{label}\n" in prompt for label in prompts.LABELS)


def test_a_name_is_asked_for_after_examples() -> None:
    prompt = prompts.name("My name is Ada Lane.")
    assert prompt.endswith("Caller: My name is Ada Lane.\nName:")
    assert prompt.count("\nName:") > 2


def test_the_summary_sees_who_said_what_of_the_last_lines() -> None:
    lines = [("user" if n % 2 else "assistant", f"line {n}") for n in range(20)]
    prompt = prompts.summary(lines)
    assert prompt.endswith("Clinic: line 18\nCaller: line 19\nSummary:")
    assert "line 8\n" in prompt
    assert "line 7\n" not in prompt


def test_where_the_words_are_near_nothing_it_is_unknown() -> None:
    assert prompts.decide(EVEN, near(question=0.2)) == "unknown"


def test_nearness_and_the_model_decide_together() -> None:
    assert prompts.decide(EVEN, near(goodbye=0.8)) == "goodbye"
    assert prompts.decide({**EVEN, " booking": 0.97, " question": 0.01}, near(question=0.6, book=0.6)) == "book"
    assert prompts.decide({**EVEN, " booking": 0.01, " question": 0.97}, near(question=0.6, book=0.6)) == "question"
    assert prompts.decide(EVEN, near(question=0.3, unknown=0.9)) == "unknown"


@given(
    st.fixed_dictionaries({label: st.floats(0, 1) for label in prompts.LABELS}),
    st.fixed_dictionaries({kind: st.floats(-1, 1) for kind in near()}),
)
def test_there_is_always_an_intent(labels: dict[str, float], nearness: dict[str, float]) -> None:
    assert prompts.decide(labels, nearness) in {*prompts.LABELS.values(), "unknown"}
