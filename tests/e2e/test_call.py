"""The clinic on the telephone: the real chain, its real models, a real websocket, in real time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from chains.dsl.graph import build, load
from chains.serve import Server
from examples.phone_call import dial
from examples.phone_call.call import PhoneCall
from examples.phone_call.conversation import Conversation
from examples.phone_call.records import summary_of
from tests.e2e.phone import LINES, line_of, phone
from tests.e2e.random_weights import write_random_model
from tests.e2e.scoring import answers
from tests.e2e.test_scoring import QUESTIONS
from tests.speech.sounds import not_speech

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

EXPECTED: dict[str, dict[str, Any]] = {question["text"]: question for question in QUESTIONS}
CLEANING = "How expensive is it to get my teeth professionally cleaned?"
STREET = "Which street is the clinic on?"
LATE = "How late can I drop by on a Thursday?"
GLASSES = "I think I need new glasses. Who would I be seeing?"
HOLE = "One of my teeth has a hole. How much will I have to pay to get it filled?"


class Overheard(Conversation):
    """A conversation that the test can look into, and that may be less patient."""

    all: list[Overheard] = []  # noqa: RUF012 (emptied for each test)
    patience: float | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.all.append(self)
        if self.patience is not None:
            self.manners = type(self.manners)(self.manners.greeting, patience=self.patience)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clinic(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLINIC_DB", str(tmp_path_factory.mktemp("clinic") / "clinic.sqlite"))
        patch.setattr("examples.phone_call.call.Conversation", Overheard)
        async with Server(build(PhoneCall), port=0) as server:
            yield server


@pytest.fixture(autouse=True)
def overheard() -> list[Overheard]:
    Overheard.all.clear()
    return Overheard.all


async def test_two_callers_at_once_are_both_answered(clinic: Server) -> None:
    async def ask(question: str) -> str:
        async with phone(clinic.url) as line:
            return (await line.ask(question)).reply

    cleaning, street = await asyncio.gather(ask(CLEANING), ask(STREET))
    assert answers(cleaning, EXPECTED[CLEANING]), cleaning
    assert answers(street, EXPECTED[STREET]), street


async def test_a_caller_on_an_old_telephone_line(clinic: Server) -> None:
    async with phone(clinic.url, rate=8000, encoding="mulaw") as line:
        exchange = await line.ask(CLEANING)
        assert answers(exchange.reply, EXPECTED[CLEANING]), exchange
        assert {piece.rate for _, piece in line.playback.pieces} == {8000}


async def test_barge_in_stops_the_reply_and_only_what_was_heard_is_remembered(
    clinic: Server, overheard: list[Overheard]
) -> None:
    async with phone(clinic.url) as line:
        cut = line.start(LATE)
        await line.hears(0.8)
        await line.said()
        second = line.start(STREET)
        await line.said()
        assert await line.conversation.reply_is_over()
        assert ("clear", cut.turn) in line.events
        heard = sum(piece.seconds for _, piece in line.playback.pieces if piece.turn == cut.turn)
        assert 0.8 <= heard < 3.5  # the whole of it takes four seconds
        assert answers(second.reply, EXPECTED[STREET]), second.reply
        spoken = [said.text for said in overheard[0].said if said.role == "assistant"]
        assert not any("evening" in text for text in spoken), spoken
        assert [said.text for said in overheard[0].said if said.role == "user"] == [
            text for role, text in line.texts if role == "user"
        ]


async def test_hanging_up_in_the_middle_of_a_word_leaves_nothing_behind(clinic: Server) -> None:
    before = asyncio.all_tasks()
    async with phone(clinic.url) as line:
        id = line.call.id
        await line.ask(CLEANING)
        line.start(HOLE)
        await asyncio.sleep(1.5)  # within "how much"
    assert await clinic.gateway.quiet(20.0)
    left = asyncio.all_tasks() - before
    if left:  # the summary, which is written after the call
        await asyncio.wait(left, timeout=60)
    assert not asyncio.all_tasks() - before
    assert await summary_of(id)
    assert not [load for load in clinic.runtime.load() if load.running or load.queued]
    record = clinic.runtime.recorder.find(id)
    assert record is not None
    assert all(hop.ended for hop in record.hops)


async def test_a_caller_who_never_speaks_is_asked_and_then_bid_goodbye(
    clinic: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Overheard, "patience", 0.5)
    async with phone(clinic.url) as line, asyncio.timeout(60):
        await line.conversation.hung_up.wait()
        said = [text for role, text in line.texts if role == "assistant"]
        assert len(said) == 3
        assert "still there" in said[1]
        assert "Goodbye" in said[2]
        assert [control.kind for control in line.conversation.controls] == ["hang_up"]
        sound = {piece.turn for _, piece in line.playback.pieces}
        assert len(sound) == 3  # each was said aloud


async def test_noise_is_no_turn(clinic: Server, overheard: list[Overheard]) -> None:
    sounds = not_speech(16000, 1.0)
    async with phone(clinic.url) as line:
        for name in ("white noise", "tone", "hum"):
            line.start(line_of(sounds[name]))
            await line.said()
        await asyncio.sleep(0.5)
        assert [role for role, _ in line.texts] == ["assistant"]  # the greeting
        assert [said.role for said in overheard[0].said] == ["assistant"]


async def test_with_random_weights_the_answers_are_gone(
    clinic: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is answered rightly is the model's doing: the same chain with a model that knows nothing fails."""
    handful = [CLEANING, STREET, GLASSES, LATE]

    async def right(url: str, text: str) -> bool:
        async with phone(url) as line, asyncio.timeout(60):
            exchange = line.start(text)
            await line.conversation.replied.wait()  # the whole text is there; nobody need hear it to the end
            return answers(exchange.reply, EXPECTED[text])

    async def score(url: str) -> int:
        return sum([await right(url, text) for text in handful])

    monkeypatch.setenv("CLINIC_LLM", str(await asyncio.to_thread(write_random_model, tmp_path)))
    async with Server(load(str(dial.HERE / "call.py")), port=0) as server:
        knowing, guessing = await asyncio.gather(score(clinic.url), score(server.url))
    assert knowing >= 3
    assert guessing <= 1


async def test_who_pauses_within_a_sentence_is_answered_once_and_talked_over_by_nothing(clinic: Server) -> None:
    """On a quick machine a reply may begin in the pause; it ends when the caller goes on."""
    first, second = LINES["Hi there, this is Susan speaking."], LINES[STREET]
    pause = np.zeros(int(0.2 * dial.RATE), np.int16)  # with the silence at the lines' ends: nearly half a second
    pcm = np.concatenate((first.pcm, pause, second.pcm))
    text = f"{first.text} {second.text}"
    async with phone(clinic.url) as line:
        greeting = {piece.turn for _, piece in line.playback.pieces}
        exchange = await line.ask(dial.Line(text, pcm, len(pcm) / dial.RATE - 0.1))
        assert answers(exchange.reply, EXPECTED[STREET]), exchange.reply
        begun = {piece.turn for _, piece in line.playback.pieces} - greeting - {exchange.turn}
        assert begun <= {turn for event, turn in line.events if event == "clear"}
