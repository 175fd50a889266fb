"""A recorded call of a voice chain, played again to that chain as it is, and to one that thinks longer."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from chains.cli.settings import changed
from chains.client import connect
from chains.client.replaying import Pace, Replayed, Replayer
from chains.dsl.graph import load
from chains.gateway import audio
from chains.messages import Audio
from chains.records.replayable import Recording, recorded_input
from chains.records.store import Store
from chains.serve import Server
from tests.chains.client.caller import VOICE, recorded_call
from tests.chains.client.voice import RATE, tone
from tests.chains.conftest import PARLOUR
from tests.chains.viewer.taking import taking

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    import asyncio

    path = tmp_path_factory.mktemp("voice") / "traces.sqlite"
    id = asyncio.run(recorded_call(path))
    with Store.open(path, readonly=True) as store:
        row = store.connection.execute("SELECT id FROM calls WHERE call = ?", (id,)).fetchone()[0]
        return recorded_input(store.connection, row)


async def replayed(recording: Recording, pace: Pace, *settings: str, fast: bool = False) -> tuple[Replayed, Server]:
    graph = changed(load(str(VOICE)), settings)
    async with Server(graph, port=0) as server, connect(server.url, rate=RATE) as client:
        result = await Replayer(client, recording, pace=pace, fast=fast, patience=5.0).run()
    return result, server


def turns(server: Server, result: Replayed) -> list[tuple[float, str]]:
    """(latency in ms, why it was cancelled) of each turn."""
    record = server.runtime.recorder.find(result.call)  # type: ignore[attr-defined]
    return [
        ((turn.marks.get("first_audio", 0.0) - turn.marks["speech_end"]) * 1e3, turn.reason) for turn in record.turns
    ]


def test_the_recording_knows_what_was_said_and_what_it_answered(recording: Recording) -> None:
    assert recording.method == "run" and recording.rate == RATE and recording.left and recording.reported
    assert [(reply.turn, reply.whole) for reply in recording.replies] == [(1, True), (2, False), (3, True)]
    words = [one for one in recording.inputs if one.kind == "audio" and np.abs(one.value.pcm).max() > 1000]
    assert sum(one.ms for one in words) == pytest.approx(900, abs=30)
    first, last = words[0], words[-1]
    assert recording.answered(first.at) is None
    number, heard = recording.answered(last.at) or (0, 0.0)
    assert number == 1 and 200 < heard < 600


@pytest.mark.parametrize("pace", ["aligned", "as-recorded"])
async def test_the_same_chain_hears_the_same_and_answers_alike(recording: Recording, pace: Pace) -> None:
    result, server = await replayed(recording, pace)
    assert not result.error and not result.notes
    found = turns(server, result)
    assert len(found) == 3 and [reason for _, reason in found[:2]] == ["", "barge-in"]
    said = np.concatenate([piece.pcm for _, piece in result.said])
    assert (np.abs(said, dtype=np.int32) > 1000).sum() == pytest.approx(0.9 * RATE * 0.93, rel=0.05)


async def test_words_wait_for_a_chain_that_answers_later(recording: Recording) -> None:
    """Aligned: the third question still interrupts the second answer, although each comes 700 ms later."""
    result, server = await replayed(recording, "aligned", "Brain.think_ms=720")
    found = turns(server, result)
    assert len(found) == 3 and found[1][1] == "barge-in"
    assert all(700 < ms < 1500 for ms, _ in found)
    heard = result.playback.played()
    assert heard[1] == pytest.approx(600, abs=1) and 200 < heard[2] < 600


async def test_on_the_recorded_clock_a_slow_chain_is_talked_over(recording: Recording) -> None:
    """As recorded: the caller speaks before the late answers have begun, and drops them."""
    result, server = await replayed(recording, "as-recorded", "Brain.think_ms=1500")
    found = turns(server, result)
    assert [reason for _, reason in found[:2]] == ["barge-in", "barge-in"]
    assert result.playback.played().get(1, 0.0) == 0.0


async def test_a_shorter_answer_is_not_waited_after(recording: Recording) -> None:
    """The answer takes 200 ms and not 600: the silence in which it was listened to is left out."""
    result, server = await replayed(recording, "aligned", "Mouth.pieces=1")
    assert len(turns(server, result)) == 3
    said = sum(piece.seconds for _, piece in result.said)
    assert said < sum(one.ms for one in recording.inputs) / 1e3 - 0.3
    assert not result.notes


async def test_a_chain_that_never_answers_is_waited_for_no_longer_than_patience(recording: Recording) -> None:
    graph = changed(load(str(VOICE)), ["Brain.think_ms=60000"])
    async with Server(graph, port=0) as server, connect(server.url, rate=RATE) as client:
        result = await Replayer(client, recording, patience=0.5).run()
    assert result.notes[0] == "the reply of turn 1 was waited for 0.5 s in vain"


async def test_without_waiting_for_time_the_same_questions_are_asked(recording: Recording) -> None:
    """A reply counts as heard when it has come: how much of it is there when it is interrupted is left to chance."""
    began = time.monotonic()
    result, server = await replayed(recording, "aligned", fast=True)
    assert not result.notes
    assert len(turns(server, result)) == 3
    assert time.monotonic() - began < recording.ended / 1e3 + 2


async def test_a_call_in_mu_law_is_heard_again_to_the_sample(tmp_path: Path) -> None:
    graph, path = load(str(PARLOUR)), tmp_path / "traces.sqlite"
    seen: list[Audio] = graph.nodes["Parlour"].cls.watched.seen  # type: ignore[attr-defined]
    frames = iter(audio.frames(Audio(tone(1000)[::2].copy(), 8000)))
    async with (
        taking(path) as url,
        Server(graph, port=0, record=True, viewer=url) as server,
        connect(server.url, rate=8000, encoding="mulaw") as client,
        client.call("run", audio=frames) as call,
    ):
        items = [item async for item in call]
    first = np.concatenate([piece.pcm for piece in seen])
    seen.clear()
    with Store.open(path, readonly=True) as store:
        row = store.connection.execute("SELECT id FROM calls WHERE call = ?", (call.id,)).fetchone()[0]
        again = recorded_input(store.connection, row)
    async with (
        Server(graph, port=0) as server,
        connect(server.url, rate=again.rate, encoding=again.encoding) as client,
    ):
        result = await Replayer(client, again).run()
    assert again.encoding == "mulaw" and len(items) == 51 and not result.error
    assert np.array_equal(np.concatenate([piece.pcm for piece in seen]), first)


async def test_the_replay_can_be_listened_to(recording: Recording) -> None:
    result, _ = await replayed(recording, "aligned")
    both = result.track(RATE)
    assert both.shape[1] == 2 and np.abs(both[:, 0]).max() > 8000 and np.abs(both[:, 1]).max() > 8000
