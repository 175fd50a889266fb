"""Appointments over several turns, on scripted models: what is asked, understood, written down, and when."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from chains import Control
from chains.testing import settle
from examples.phone_call import records
from examples.phone_call.clinic import read_clinic
from examples.phone_call.conversation import Manners
from examples.phone_call.records import Booking
from tests.examples.phone_call.scripted import Clinic, Line, clinic

CLEANING = Booking("dental cleaning", "James Carter", "Tuesday", "10:00", 30, "Ada Lane")
WISH = "I'd like to book a dental cleaning on Tuesday at ten"
NAME = "my name is Ada Lane"
BOOKED = "I have booked the dental cleaning with Doctor James Carter on Tuesday at 10 in the morning for Ada Lane."


@pytest.fixture
async def reception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Clinic]:
    monkeypatch.setenv("CLINIC_DB", str(tmp_path / "clinic.sqlite"))
    monkeypatch.setattr(records, "_PATIENCE_S", 0.05)
    async with clinic() as running:
        yield running


async def says(line: Line, text: str, *, intent: str = "", name: str = "") -> str:
    """The caller says it; what the model is to say to that, once its sound has come."""
    before = len([kind for kind, _ in line.texts if kind == "assistant"])
    line.script.replies.setdefault(text, "well then")
    if intent:
        line.script.intents[text] = intent
    if name:
        line.script.names[text] = name
    await line.say(text)
    await line.until(lambda: len([kind for kind, _ in line.texts if kind == "assistant"]) > before)
    await line.play(3.0)
    return line.script.facts[-1]


def booked(line: Line) -> list[Control]:
    return [item for item in line.heard if isinstance(item, Control) and item.kind == "booked"]


async def test_an_appointment_over_several_turns(reception: Clinic) -> None:
    async with reception.phone() as line:
        assert await says(line, "I need an appointment", intent="book") == "Which service would you like to book?"
        assert await says(line, "A cleaning please") == "On which day would you like the dental cleaning?"
        assert await says(line, "Tuesday") == "At what time would you like to come on Tuesday?"
        assert await says(line, "Ten.") == "What name should I book it under?"
        assert await records.bookings_of("call") == []
        assert await says(line, "Ada Lane", name="Ada Lane") == BOOKED
        assert await records.bookings_of("call") == [CLEANING]
        (event,) = booked(line)
        assert event.data == {"number": 1, "service": "dental cleaning", "doctor": "James Carter", "day": "Tuesday",
                              "time": "10:00", "name": "Ada Lane"}  # fmt: skip
        assert await says(line, "is there parking") == read_clinic().facts["parking"].say  # that is done with
    assert len(await records.bookings_of("call")) == 1


async def test_all_in_one_sentence(reception: Clinic) -> None:
    async with reception.phone() as line:
        said = f"{WISH} and {NAME}"
        assert await says(line, said, intent="book", name="Ada Lane") == BOOKED
    assert await records.bookings_of("call") == [CLEANING]


async def test_a_question_in_between_is_answered_and_the_slots_stay(reception: Clinic) -> None:
    async with reception.phone() as line:
        await says(line, WISH, intent="book")
        assert await says(line, "is there parking?") == read_clinic().facts["parking"].say
        assert await says(line, NAME, name="Ada Lane") == BOOKED


async def test_what_is_said_later_counts(reception: Clinic) -> None:
    async with reception.phone() as line:
        await says(line, "a dental cleaning on Monday at nine", intent="book")
        assert await says(line, "Tuesday, no, Wednesday rather, at ten") == "What name should I book it under?"
        await says(line, "Tuesday")
        assert await says(line, NAME, name="Ada Lane") == BOOKED


async def test_a_service_that_could_be_several_is_chosen_by_the_model(reception: Clinic) -> None:
    async with reception.phone() as line:
        line.script.choice = " filling"
        said = await says(line, "I'd like to see Doctor Carter on Monday at nine", intent="book")
        assert said == "What name should I book it under?"
        await says(line, NAME, name="Ada Lane")
    assert (await records.bookings_of("call"))[0].service == "filling"


async def test_a_taken_time_is_asked_anew(reception: Clinic) -> None:
    await records.book("other", Booking("filling", "James Carter", "Tuesday", "09:30", 45, "Bob Hill"))
    async with reception.phone() as line:
        await says(line, WISH, intent="book")
        said = await says(line, NAME, name="Ada Lane")
        assert said == "Doctor James Carter is not free on Tuesday at 10 in the morning. What other time suits you?"
        assert booked(line) == []
        assert BOOKED not in line.script.facts  # it was known before anything was said
        assert await says(line, "half past ten then") == BOOKED.replace("10 in", "10:30 in")
    assert [made.time for made in await records.bookings_of("call")] == ["10:30"]


async def test_a_time_that_is_taken_in_the_last_moment_is_asked_anew(reception: Clinic) -> None:
    """While the reply was prepared it was free: nothing of that reply is heard."""
    async with reception.phone() as line:
        await says(line, WISH, intent="book")
        line.script.names[NAME] = "Ada Lane"
        line.script.replies[NAME] = "never"
        await line.start()
        await line.guess(NAME)
        await prepared(line, BOOKED)
        await records.book("other", Booking("filling", "James Carter", "Tuesday", "10:00", 45, "Bob Hill"))
        line.script.replies[NAME] = "sorry taken"
        await line.end()
        await line.final(NAME)
        await line.until(lambda: line.texts[-1] == ("assistant", "sorry taken"))
        assert "never" not in [word for _, word in line.sound]
        assert line.script.facts[-1].startswith("Doctor James Carter is not free on Tuesday")
        await line.play(3.0)
        assert await says(line, "at eleven") == BOOKED.replace("10 in", "11 in")
        assert len(booked(line)) == 1


async def prepared(line: Line, fact: str) -> None:
    """The reply that says it is written, unheard. The records are read in a thread meanwhile."""
    async with asyncio.timeout(10):
        while line.script.facts[-1:] != [fact]:
            await asyncio.to_thread(lambda: None)  # after what the other threads have to do
            await settle()
    await settle()


async def test_nothing_is_written_down_before_the_sentence_is_certain(reception: Clinic) -> None:
    async with reception.phone() as line:
        await says(line, WISH, intent="book")
        line.script.names[NAME] = "Ada Lane"
        line.script.replies[NAME] = "well then"
        await line.start()
        await line.guess(NAME)
        await prepared(line, BOOKED)
        assert await records.bookings_of("call") == []
        await line.resume()  # she goes on: that reply is withdrawn
        rest = f"{NAME} but I'd rather come on Wednesday"
        line.script.names[rest] = "Ada Lane"
        line.script.replies[rest] = "well then"
        await line.guess(rest)
        await prepared(line, BOOKED.replace("Tuesday", "Wednesday"))
        assert await records.bookings_of("call") == []
        await line.end()
        await line.final(rest)
        await line.until(lambda: bool(booked(line)))
    assert [(made.day, made.name) for made in await records.bookings_of("call")] == [("Wednesday", "Ada Lane")]


async def test_a_pause_after_the_name_makes_one_appointment_not_two(reception: Clinic) -> None:
    """The first half was certain and its reply prepared, unheard: both halves are one sentence with the same slots."""
    async with reception.phone() as line:
        await says(line, WISH, intent="book")
        line.script.sounds.shut()
        half, whole = "my name is Ada", "my name is Ada Lane"
        line.script.names.update({half: "Ada", whole: "Ada Lane"})
        line.script.replies.update({half: "well then", whole: "well then"})
        await line.say(half)
        await prepared(line, BOOKED.replace("Ada Lane", "Ada"))
        assert await records.bookings_of("call") == []
        await line.say("Lane")
        await prepared(line, BOOKED)
        line.script.sounds.let(100)
        await line.until(lambda: bool(booked(line)))
        await settle()
    assert await records.bookings_of("call") == [CLEANING]


async def test_the_same_appointment_again_is_one(reception: Clinic) -> None:
    async with reception.phone() as line:
        said = f"{WISH} and {NAME}"
        await says(line, said, intent="book", name="Ada Lane")
        await says(line, said, intent="book", name="Ada Lane")
        assert [event.data["number"] for event in booked(line)] == [1, 1]
    assert await records.bookings_of("call") == [CLEANING]


async def test_closed_days_and_hours_are_refused_and_the_rest_is_kept(reception: Clinic) -> None:
    async with reception.phone() as line:
        said = await says(line, "book a dental cleaning on Sunday at ten", intent="book")
        assert said == "We are closed on Sunday. Which other day suits you?"
        said = await says(line, "Saturday at four in the afternoon")
        assert said.startswith("We have appointments on Saturday from 9 in the morning until 11:30")
        assert await says(line, "Tuesday at ten") == "What name should I book it under?"
        assert await says(line, NAME, name="Ada Lane") == BOOKED


@pytest.mark.parametrize(
    ("said", "model", "name"),
    [
        ("my name is Ada Lane", "Ada Lane.", "Ada Lane"),
        ("this is O'Hara speaking", "O'Hara", "O'Hara"),
        ("Anna-Maria Bell, please", "Anna-Maria Bell", "Anna-Maria Bell"),
        ("my name is Annabel", "Anna Bell", ""),  # neither of these words was said
        ("I'm not sure", "Anna Bell", ""),
        ("Tuesday, please", "Tuesday", ""),
        ("yes", "Yes", ""),
        ("my name is ada", "ada", ""),  # a recogniser writes names with a capital; this is no name to it
    ],
)
async def test_only_a_name_that_was_really_said_is_one(reception: Clinic, said: str, model: str, name: str) -> None:
    async with reception.phone() as line:
        await says(line, WISH, intent="book")
        answer = await says(line, said, name=model)
        assert (answer == "What name should I book it under?") is (not name)
    assert [made.name for made in await records.bookings_of("call")] == ([name] if name else [])


@pytest.mark.parametrize("said", ["Oh, never mind.", "Please don't book it", "forget about it, Tuesday is bad"])
async def test_a_caller_may_let_go_of_it(reception: Clinic, said: str) -> None:
    async with reception.phone() as line:
        await says(line, WISH, intent="book")
        assert (await says(line, said)).startswith("All right, I have not booked anything.")
        assert await says(line, "Ten.") == read_clinic().facts["parking"].say  # no longer a time that was asked for
    assert await records.bookings_of("call") == []


async def test_a_refusal_that_cannot_be_said_is_apologised_for(reception: Clinic) -> None:
    """Somebody else was faster, and then the model fails too: the call goes on."""
    async with reception.phone() as line:
        await says(line, WISH, intent="book")
        line.script.names[NAME] = "Ada Lane"
        line.script.replies[NAME] = "never"
        await line.start()
        await line.guess(NAME)
        await prepared(line, BOOKED)
        await records.book("other", Booking("filling", "James Carter", "Tuesday", "10:00", 45, "Bob Hill"))
        line.script.replies[NAME] = RuntimeError("broken")
        await line.end()
        await line.final(NAME)
        await line.until(lambda: line.texts[-1] == ("assistant", Manners("").sorry))
        assert line.error is None


async def test_goodbye_in_the_middle_books_nothing_and_hangs_up(reception: Clinic) -> None:
    async with reception.phone() as line:
        await says(line, WISH, intent="book")
        await says(line, "no never mind, bye", intent="goodbye")
        assert line.kinds == ["hang_up"]
    assert await records.bookings_of("call") == []


async def test_hanging_up_after_the_name_keeps_the_appointment_only_if_its_reply_began(reception: Clinic) -> None:
    async with reception.phone("hasty") as line:
        await says(line, WISH, intent="book")
        line.script.names[NAME] = "Ada Lane"
        await line.start()
        await line.guess(NAME)
        await prepared(line, BOOKED)
        await line.hang_up()
    assert await records.bookings_of("hasty") == []


async def test_records_that_are_locked_are_apologised_for_and_may_work_again(
    reception: Clinic, caplog: pytest.LogCaptureFixture
) -> None:
    async with reception.phone() as line:
        await says(line, WISH, intent="book")
        with closing(sqlite3.connect(records.database(), isolation_level=None)) as other:
            other.execute("begin exclusive")
            line.script.names[NAME] = "Ada Lane"
            await line.say(NAME)
            await line.until(lambda: line.texts[-1] == ("assistant", Manners("").sorry))
            other.execute("rollback")
        await line.play(6.0)
        assert booked(line) == []
        assert await says(line, NAME, name="Ada Lane") == BOOKED
        assert len(booked(line)) == 1
    assert "Unavailable" in caplog.text
    assert "Ada" not in caplog.text


async def test_two_callers_want_the_same_time(reception: Clinic) -> None:
    async with reception.phone("one") as one, reception.phone("two") as two:
        for line, name in ((one, "Ada Lane"), (two, "Bob Hill")):
            said = f"{WISH} and my name is {name}"
            line.script.intents[said] = "book"
            line.script.names[said] = name
            line.script.replies[said] = "well then"
            await line.start()
            await line.final(said)
        for line in (one, two):
            await line.until(lambda line=line: line.texts[-1][0] == "assistant" and len(line.texts) > 2)  # type: ignore[misc]
        assert len(booked(one)) + len(booked(two)) == 1
    made = [*await records.bookings_of("one"), *await records.bookings_of("two")]
    assert len(made) == 1
