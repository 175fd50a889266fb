"""Who speaks when, and what is remembered: each case is a bug that voice products have shipped.

The models are scripted; the conversation, the runtime, turns, streams and records are real, and time moves by hand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chains import Audio, Text
from chains.testing import settle
from examples.phone_call import records
from examples.phone_call.conversation import Manners, has_words
from examples.phone_call.reply import Reply
from tests.examples.phone_call.scripted import WORD_MS, Clinic, Line, clinic

GREETING = ["Lakeside", "Clinic,", "good", "morning."]
NOISE = ""


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLINIC_DB", str(tmp_path / "clinic.sqlite"))


@pytest.fixture
async def reception(database: None) -> AsyncIterator[Clinic]:
    async with clinic() as running:
        yield running


def cancelled(line: Line) -> list[int]:
    return [turn for event, turn in line.events if event == "turn_cancelled"]


# plain exchanges


async def test_a_question_is_answered_in_its_own_turn_after_the_caller_is_quoted(reception: Clinic) -> None:
    async with reception.phone() as line:
        await line.say("where are you")
        assert line.spoken(2) == "Answer to where are you"
        assert line.texts[1:] == [("user", "where are you"), ("assistant", "Answer to where are you")]
        after_user = next(i for i, item in enumerate(line.heard) if isinstance(item, Text) and item.role == "user")
        assert all(item.turn == 2 for item in line.heard[after_user + 1 :])
        await line.play()
        assert ("turn_ended", 2) in line.events
    assert line.script.dialogue == [
        "Clinic: Lakeside Clinic, good morning.",
        "Caller: where are you",
        "Clinic: Answer to where are you",
    ]


async def test_the_reply_is_prepared_in_the_silence_and_the_models_run_once(reception: Clinic) -> None:
    async with reception.phone() as line:
        await line.start()
        await line.guess("where are you")
        assert line.script.asked == ["where are you"]
        assert line.script.written == ["Answer", "to", "where", "are", "you"]
        assert line.spoken(2) == ""  # all of it is there, and nothing is heard before the end of speech is certain
        await line.end()
        await line.final("where are you")
        assert line.spoken(2) == "Answer to where are you"
        assert line.script.asked == ["where are you"]
        turn = line.call.turns[1]
        assert turn.marks["speech_end"] == pytest.approx(reception.clock.now() - 0.064)


async def test_a_final_text_unlike_the_guess_is_what_is_answered(reception: Clinic) -> None:
    async with reception.phone() as line:
        await line.say("how much is a filling", guess="how much is a feeling")
        assert line.script.asked == ["how much is a feeling", "how much is a filling"]
        assert cancelled(line) == [2]
        assert line.spoken(2) == ""
        assert line.spoken(3) == "Answer to how much is a filling"
        assert ("user", "how much is a feeling") not in line.texts


async def test_when_it_was_nothing_the_guess_is_withdrawn_and_the_patience_begins_anew(reception: Clinic) -> None:
    async with reception.phone() as line:
        await line.start()
        await line.guess("thank you")  # what recognisers hear in noise
        await line.end()
        await line.final(NOISE)
        assert cancelled(line) == [2]
        assert [role for role, _ in line.texts] == ["assistant"]
        await line.play(12.0)
        assert line.spoken(3) == "Are you still there?"


async def test_punctuation_is_no_sentence(reception: Clinic) -> None:
    async with reception.phone() as line:
        await line.say(" ... ")
        assert line.script.asked == []
        assert [role for role, _ in line.texts] == ["assistant"]
    assert not has_words(" .-! ")
    assert has_words("é1")


# pauses within a sentence


async def test_a_resumed_pause_withdraws_the_stale_answer(reception: Clinic) -> None:
    async with reception.phone() as line:
        await line.start()
        await line.guess("where")
        await line.resume()
        assert cancelled(line) == [2]
        await line.guess("where do I park")
        await line.end()
        await line.final("where do I park")
        assert line.spoken(2) == ""
        assert line.spoken(3) == "Answer to where do I park"
        assert line.texts[1] == ("user", "where do I park")


async def test_a_long_pause_does_not_split_the_sentence(reception: Clinic) -> None:
    """The hold passed and the first half is certain, but its reply was not heard yet: both halves are one sentence."""
    async with reception.phone() as line:
        line.script.sounds.shut()
        await line.say("I would like to know")
        await line.start()
        line.script.sounds.let(50)
        await settle()
        assert line.spoken(2) == ""  # the caller speaks: the reply to the first half does not start now
        await line.guess("what a filling costs")
        assert line.script.asked[-1] == "I would like to know what a filling costs"
        await line.end()
        await line.final("what a filling costs")
        assert line.spoken(2) == ""
        assert line.spoken(3) == "Answer to I would like to know what a filling costs"
        assert line.script.asked.count("I would like to know what a filling costs") == 1
        await line.play()
    assert line.script.dialogue[1:] == [
        "Caller: I would like to know what a filling costs",
        "Clinic: Answer to I would like to know what a filling costs",
    ]


async def test_a_noise_after_the_first_half_lets_its_reply_out_after_all(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.sounds.shut()
        await line.say("where are you")
        await line.start()
        line.script.sounds.let(50)
        await settle()
        assert line.spoken(2) == ""
        await line.end()
        await line.final(NOISE)
        assert line.spoken(2) == "Answer to where are you"
        assert line.script.asked == ["where are you"]


async def test_three_parts_are_one_sentence(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.sounds.shut()
        for part in ("can I", "come in", "on Monday"):
            await line.say(part)
        line.script.sounds.let(50)
        await settle()
        assert [text for role, text in line.texts if role == "user"] == ["can I", "come in", "on Monday"]
        assert {turn for turn, _ in line.sound} == {1, 4}
        assert line.spoken(4) == "Answer to can I come in on Monday"
        await line.play()
    assert line.script.dialogue[1] == "Caller: can I come in on Monday"
    assert len(line.script.dialogue) == 3


async def test_a_transcript_that_comes_after_speech_resumed_belongs_to_its_own_speech(reception: Clinic) -> None:
    async with reception.phone() as line:
        first = await line.start()
        await line.end()
        second = await line.start()
        await line.final("is there parking", first)  # the caller is speaking on
        assert line.spoken(2) == ""
        await line.end()
        await line.final("for bicycles", second)
        assert [turn for turn, _ in line.sound if turn > 1] == [3] * 7
        assert line.spoken(3) == "Answer to is there parking for bicycles"


async def test_transcripts_that_overtake_each_other_count_in_the_order_of_speech(reception: Clinic) -> None:
    async with reception.phone() as line:
        first = await line.start()
        await line.end()
        second = await line.start()
        await line.end()
        await line.final("for bicycles", second)
        assert line.script.asked == []
        await line.final("is there parking", first)
        assert [text for role, text in line.texts if role == "user"] == ["is there parking", "for bicycles"]
        assert line.spoken(2) == "Answer to is there parking for bicycles"


# barge-in


async def speaking(line: Line, words: int = 3) -> None:
    """The reception is in the middle of a reply: so many words are out, the voice waits with the next."""
    line.script.sounds.shut()
    line.script.replies["hours"] = "one two three four five six seven eight"
    await line.say("hours")
    line.script.sounds.let(words)
    await settle()
    assert len(line.spoken(2).split()) == words


async def test_words_end_the_reply_and_all_that_works_on_it(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.words.shut()
        line.script.replies["hours"] = "one two three four five six seven eight"
        await line.say("hours")
        line.script.words.let(3)
        await settle()
        assert line.spoken(2) == "one two three"
        await line.start()
        assert ("turn_held", 2) in line.events
        await line.guess("parking")
        await line.end()
        finished = line.script.finished
        await line.final("parking")
        assert cancelled(line) == [2]
        assert line.script.finished > finished  # the model has stopped: its code has run its finally
        line.script.words.let(50)
        await settle()
        assert line.script.written[:3] == ["one", "two", "three"]
        assert "four" not in line.script.written  # it generated nothing more for the reply that was cut
        assert line.spoken(2) == "one two three"
        assert line.spoken(3) == "Answer to parking"


async def test_no_stale_syllable_comes_after_the_cut_even_if_it_was_on_its_way(reception: Clinic) -> None:
    """A slow reader: sound that was sent, and not yet taken, is dropped at the way out."""
    async with reception.phone() as line:
        line.script.replies["hours"] = " ".join(["word"] * 400)  # more than the streams' windows hold
        line.block()
        await line.say("hours")
        taken = len(line.heard)
        await line.start()
        await line.final("parking")
        line.unblock()
        await settle(2000)
        after = [item for item in line.heard[taken:] if isinstance(item, Audio) and item.turn == 2]
        in_windows = 256 * 1024 // (WORD_MS * 16) + 3
        assert len(after) <= in_windows  # what had left the chain is the gateway's to drop
        first = next(i for i, item in enumerate(line.heard) if item.turn == 3)
        assert not [item for item in line.heard[first:] if item.turn == 2]
        assert line.spoken(3) == "Answer to parking"


async def test_the_interrupted_sentence_never_goes_on_in_the_next_turn(reception: Clinic) -> None:
    async with reception.phone() as line:
        await speaking(line)
        await line.start()
        await line.final("parking")
        line.script.sounds.let(100)
        await line.play()
        assert line.spoken(2) == "one two three"
        assert line.spoken(3) == "Answer to parking"
        turns = [turn for turn, _ in line.sound]
        assert turns == sorted(turns)  # no two turns overlap


async def test_what_is_remembered_is_what_the_client_says_it_played(reception: Clinic) -> None:
    async with reception.phone() as line:
        await speaking(line, 6)
        line.call.played.report(1, 4 * WORD_MS)
        line.call.played.report(2, 2.5 * WORD_MS)
        await line.start()
        await line.final("parking")
        line.script.sounds.let(100)
        await line.play()
    assert line.script.dialogue[1:] == ["Caller: hours", "Clinic: one two ...", "Caller: parking",
                                        "Clinic: Answer to parking"]  # fmt: skip


async def test_what_is_remembered_is_what_was_played_by_the_clock_if_the_client_never_says(reception: Clinic) -> None:
    async with reception.phone() as line:
        await speaking(line, 6)
        await line.play(3 * WORD_MS / 1e3)
        await line.start()
        await line.play(5.0)  # held: nothing is played meanwhile
        await line.final("parking")
    assert line.script.dialogue[1:3] == ["Caller: hours", "Clinic: one two three ..."]


async def test_if_nothing_was_heard_nothing_is_remembered(reception: Clinic) -> None:
    async with reception.phone() as line:
        await speaking(line)
        await line.start()
        await line.final("parking")
        line.script.sounds.let(100)
        await line.play()
    assert line.script.dialogue[1:] == ["Caller: hours", "Caller: parking", "Clinic: Answer to parking"]


async def test_a_reply_can_be_cut_while_it_is_played_after_all_of_it_was_sent(reception: Clinic) -> None:
    async with reception.phone() as line:
        await line.say("hours")
        assert line.texts[-1] == ("assistant", "Answer to hours")
        await line.play(2 * WORD_MS / 1e3)
        await line.start()
        assert line.events[-1] == ("turn_held", 2)  # the client is told to stop playing
        await line.final("parking")
        assert cancelled(line) == [2]
    assert line.script.dialogue[2] == "Clinic: Answer to ..."


async def test_an_interruption_at_the_last_word_keeps_the_whole_reply(reception: Clinic) -> None:
    async with reception.phone() as line:
        await line.say("hours")
        await line.play(3 * WORD_MS / 1e3)
        await line.say("parking")
    assert line.script.dialogue[1:3] == ["Caller: hours", "Clinic: Answer to hours"]


async def test_the_greeting_can_be_interrupted(reception: Clinic) -> None:
    async with reception.phone(greeted=False) as line:
        assert line.spoken(1).split() == GREETING
        await line.play(0.2)
        await line.say("parking")
        assert cancelled(line) == [1]
        assert line.spoken(2) == "Answer to parking"
    assert line.script.dialogue[0] == "Clinic: Lakeside ..."


# coughs


async def test_a_cough_holds_the_reply_at_once_and_loses_nothing_of_it(reception: Clinic) -> None:
    async with reception.phone() as line:
        await speaking(line)
        await line.start()
        assert line.events[-1] == ("turn_held", 2)
        line.script.sounds.let(100)
        await line.play(3.0)
        assert line.spoken(2) == "one two three"  # nothing goes out while the caller makes a sound
        await line.end()
        await line.final(NOISE)
        assert line.events[-1] == ("turn_resumed", 2)
        assert line.spoken(2) == "one two three four five six seven eight"
        assert cancelled(line) == []
        await line.play()
    assert line.script.dialogue[1:] == ["Caller: hours", "Clinic: one two three four five six seven eight"]


async def test_time_in_which_the_reply_was_held_does_not_count_as_played(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.intents["bye"] = "goodbye"
        await line.say("bye")
        length = len(line.spoken(2).split()) * WORD_MS / 1e3
        await line.play(0.4)
        await line.start()
        await line.play(60.0)  # a long cough
        assert line.kinds == []
        await line.end()
        await line.final(NOISE)
        await line.play(length - 0.4 - 0.1)
        assert line.kinds == []  # a tenth of a second of the goodbye is still to be heard
        await line.play(0.1 + 0.3)
        assert line.kinds == ["hang_up"]


async def test_a_guess_out_of_a_cough_does_not_cost_the_reply(reception: Clinic) -> None:
    async with reception.phone() as line:
        await speaking(line)
        await line.start()
        await line.guess("you")
        await line.end()
        await line.final(NOISE)
        line.script.sounds.let(100)
        await line.play()
        assert line.spoken(2) == "one two three four five six seven eight"
        assert line.spoken(3) == ""


async def test_two_coughs_and_then_words(reception: Clinic) -> None:
    async with reception.phone() as line:
        await speaking(line)
        for _ in range(2):
            first = await line.start()
            await line.end()
            second = await line.start()
            await line.end()
            await line.final(NOISE, first)
            assert line.events[-1] == ("turn_held", 2)  # of the second it is not known yet
            await line.final(NOISE, second)
            assert line.events[-1] == ("turn_resumed", 2)
        await line.start()
        await line.final("parking")
        line.script.sounds.let(100)
        await settle()
        assert line.spoken(2) == "one two three"
        assert line.spoken(3) == "Answer to parking"


# the end of a call


async def test_hanging_up_in_mid_word_stops_everything_and_files_what_was_heard(reception: Clinic) -> None:
    async with reception.phone() as line:
        await speaking(line, 5)
        await line.play(3 * WORD_MS / 1e3)
        await line.start()
        await line.guess("wait")
        await line.hang_up()
        asked, written = list(line.script.asked), list(line.script.written)
        line.script.sounds.let(100)
        await settle()
        assert (line.script.asked, line.script.written) == (asked, written)
    assert line.script.dialogue == ["Clinic: Lakeside Clinic, good morning.", "Caller: hours",
                                    "Clinic: one two three ..."]  # fmt: skip
    assert await records.summary_of("call") == "The caller called."


async def test_hanging_up_while_the_network_is_slow_files_what_was_heard(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.replies["hours"] = " ".join(["word"] * 400)  # more than the streams' windows hold
        line.block()
        await line.say("hours")
        await line.play(3 * WORD_MS / 1e3)
        line.call.cancel("hang-up")
        line.unblock()
    assert line.script.dialogue[1:] == ["Caller: hours", "Clinic: word word word ..."]


async def test_hanging_up_during_the_greeting_is_filed_without_a_summary(reception: Clinic) -> None:
    async with reception.phone(greeted=False) as line:
        await line.hang_up()
    assert line.script.dialogue == []
    assert await records.summary_of("call") == ""


async def test_a_failing_summary_is_filed_empty(reception: Clinic, caplog: pytest.LogCaptureFixture) -> None:
    async with reception.phone() as line:
        line.script.summary = RuntimeError("secret words")
        await line.say("hours")
    assert await records.summary_of("call") == ""
    assert "no summary" in caplog.text
    assert "secret" not in caplog.text


async def test_a_line_that_is_closed_still_hears_the_reply(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.sounds.shut()
        await line.say("hours")
        await line.close()
        line.script.sounds.let(100)
        await line.play()
        assert line.spoken(2) == "Answer to hours"
        assert line.ended.is_set()
        assert line.error is None


async def test_a_line_that_is_closed_with_a_sentence_in_doubt_ends(reception: Clinic) -> None:
    async with reception.phone() as line:
        await line.start()
        await line.guess("hours")
        await line.close()
        await line.play()
        assert line.ended.is_set()
        assert line.spoken(2) == ""


async def test_a_caller_who_never_speaks_is_asked_once_and_bid_goodbye_aloud(reception: Clinic) -> None:
    manners = Manners("")
    async with reception.phone() as line:
        await line.play(12.0)
        assert line.spoken(2) == manners.still_there
        await line.play(12.0 + 4 * WORD_MS / 1e3 + 0.25)
        assert line.spoken(3) == manners.give_up
        assert line.kinds == []  # not before it was heard
        await line.play(len(manners.give_up.split()) * WORD_MS / 1e3 + 0.25)
        assert line.kinds == ["hang_up"]
        assert line.ended.is_set()


async def test_a_caller_who_answers_is_there(reception: Clinic) -> None:
    """Spoken into "are you still there": it is answered, and the patience begins anew."""
    async with reception.phone() as line:
        await line.play(12.0)
        await line.play(0.3)
        await line.say("yes where are you")
        assert cancelled(line) == [2]
        assert line.spoken(3) == "Answer to yes where are you"
        await line.play(2.0 + 12.0)
        assert line.spoken(4) == "Are you still there?"
        assert line.kinds == []


async def test_speaking_into_the_last_goodbye_keeps_the_call(reception: Clinic) -> None:
    async with reception.phone() as line:
        await line.play(12.0)
        await line.play(4 * WORD_MS / 1e3 + 0.25 + 12.0 + 0.5)
        assert line.spoken(3).startswith("I can't hear you")
        await line.say("hello")
        assert line.spoken(4) == "Answer to hello"
        await line.play(5.0)
        assert line.kinds == []
        assert not line.ended.is_set()


async def test_a_reply_longer_than_the_patience_is_not_talked_into(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.replies["hours"] = " ".join(["word"] * 100)
        await line.say("hours")
        await line.play(1.0)
        await line.say(NOISE)
        await line.play(100 * WORD_MS / 1e3)
        assert {turn for turn, _ in line.sound} == {1, 2}
        await line.play(12.0)
        assert line.spoken(3) == "Are you still there?"


async def test_noise_in_the_silence_does_not_make_the_clinic_talk(reception: Clinic) -> None:
    async with reception.phone() as line:
        for _ in range(5):
            await line.play(11.0)
            await line.say(NOISE)
        assert [turn for turn, _ in line.sound if turn > 1] == []


async def test_goodbye_is_heard_before_the_clinic_hangs_up(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.intents["bye"] = "goodbye"
        await line.say("bye")
        assert line.spoken(2) == "Thank you for calling Lakeside Clinic. Goodbye."
        assert line.kinds == []
        await line.play()
        assert line.kinds == ["hang_up"]
        assert line.ended.is_set()


async def test_a_client_that_reports_is_waited_for_until_it_has_played_all(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.call.played.report(1, 4 * WORD_MS)
        line.script.intents["bye"] = "goodbye"
        await line.say("bye")
        length = len(line.spoken(2).split()) * WORD_MS
        await line.play(length / 1e3 + 0.5)  # its network is slow
        assert line.kinds == []
        line.call.played.report(2, length)
        await settle()
        assert line.kinds == ["hang_up"]


async def test_after_a_goodbye_more_may_be_said(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.intents["bye"] = "goodbye"
        await line.say("bye")
        await line.play(0.5)
        await line.say("no wait is there parking")
        assert line.spoken(3) == "Answer to no wait is there parking"
        await line.play(5.0)
        assert line.kinds == []
        await line.say("bye")
        await line.play()
        assert line.kinds == ["hang_up"]


# failures


async def test_a_model_that_fails_is_apologised_for_and_the_call_goes_on(
    reception: Clinic, caplog: pytest.LogCaptureFixture
) -> None:
    async with reception.phone() as line:
        line.script.replies["hours"] = RuntimeError("the caller said hours")
        await line.say("hours")
        assert line.spoken(2) == Manners("").sorry
        assert line.texts[-1] == ("assistant", Manners("").sorry)
        await line.say("parking")
        assert line.spoken(3) == "Answer to parking"
        assert line.error is None
    assert "turn 2: no reply came of it: RuntimeError" in caplog.text
    assert "hours" not in caplog.text  # no caller's words in a log


async def test_a_model_that_writes_nothing_is_no_silence(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.replies["hours"] = ""
        await line.say("hours")
        assert line.spoken(2) == Manners("").sorry


async def test_a_model_that_never_begins_is_not_waited_for_for_ever(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.words.shut()
        await line.say("hours")
        await line.play(11.0)
        assert line.spoken(2) == Manners("").sorry
        line.script.words.let(100)
        await line.say("parking")
        assert line.spoken(3) == "Answer to parking"


async def test_a_reply_may_be_held_for_long(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.words.shut()
        await line.say("hours")
        line.script.words.let(1)
        await settle()
        await line.start()
        await line.play(120.0)
        await line.final(NOISE)
        line.script.words.let(100)
        await settle()
        assert line.spoken(2) == "Answer to hours"


async def test_a_failed_goodbye_does_not_hang_up(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.intents["bye"] = "goodbye"
        line.script.replies["bye"] = RuntimeError("broken")
        await line.say("bye")
        await line.play(8.0)
        assert line.kinds == []


async def test_a_voice_that_fails_once_tries_something_else(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.sounds.shut()
        await line.say("hours")
        line.script.sounds.let(1)
        await settle()
        line.script.voice_fails = 1
        line.script.sounds.let(100)
        await line.play(0.0)
        assert line.spoken(2) == f"Answer {Manners('').sorry}"
        assert line.texts[-1] == ("assistant", f"Answer {Manners('').sorry}")


async def test_a_voice_that_is_gone_ends_the_call_with_its_error(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.voice_fails = 100
        await line.say("hours")
        assert line.ended.is_set()
        assert "the voice broke" in str(line.error)


async def test_a_voice_without_sound_ends_the_call_with_an_error(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.mute = True
        await line.say("hours")
        assert line.ended.is_set()
        assert "said nothing" in str(line.error)


async def test_a_recogniser_that_fails_ends_the_call_with_its_error(reception: Clinic) -> None:
    async with reception.phone() as line:
        await line.script.events.send(RuntimeError("no ears"))
        await settle()
        assert line.ended.is_set()
        assert "no ears" in str(line.error)


# many at once


async def test_calls_do_not_know_each_other(reception: Clinic) -> None:
    async with reception.phone("one") as one, reception.phone("two", greeted=False) as two:
        await speaking(one)
        await two.start()
        await two.final("parking")
        assert cancelled(one) == []
        one.script.sounds.let(100)
        await reception.clock.advance(1.0)
        assert one.spoken(2) == "one two three four five six seven eight"
        assert two.spoken(2) == "Answer to parking"


# the account of one reply


def test_a_reply_knows_what_was_played() -> None:
    reply = Reply("hello")
    assert reply.played_ms(5.0) == 0.0
    assert reply.heard_until(0.0) == ""
    piece = Audio.from_bytes(b"\0\0" * 800, 8000)
    for number in range(4):
        reply.send(Audio(piece.pcm, 8000, text=f"{number} "), 10.0)
    assert reply.ends_at == pytest.approx(10.4)
    assert reply.played_ms(10.25) == pytest.approx(250.0)
    reply.hold(10.25)
    reply.hold(10.3)
    assert reply.played_ms(12.0) == pytest.approx(250.0)
    assert reply.heard_until(reply.played_ms(12.0)) == "0 1"
    reply.send(piece, 12.0)
    reply.resume(12.25)
    reply.resume(13.0)
    assert reply.ends_at == pytest.approx(12.5)
    assert reply.played_ms(12.3) == pytest.approx(300.0)
    assert reply.played_ms(20.0) == pytest.approx(500.0)
    reply.send(piece, 30.0)  # a voice that was late
    assert reply.ends_at == pytest.approx(30.1)
    assert reply.played_ms(30.05) == pytest.approx(550.0)


def test_a_reply_held_after_its_end_is_not_longer_for_it() -> None:
    reply = Reply("hello")
    reply.send(Audio.from_bytes(b"\0\0" * 800, 8000), 10.0)
    reply.hold(11.0)
    reply.resume(15.0)
    assert reply.ends_at == pytest.approx(10.1)
