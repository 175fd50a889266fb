"""Turns that a method in another process makes are seen where the call was opened; what was played is known there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from chains.call import Call, Hop, current
from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build
from chains.runtime.mirror import follow, mirrored, told
from chains.runtime.processes import Processes
from chains.spans import account
from chains.testing import FakeClock


@chainlet
class Talk:
    async def talk(self) -> AsyncIterator[str]:
        call = current().call
        async with call.new_turn() as turn:
            turn.mark("speech_end")
            yield "one"
            await call.played.reached(1, 40.0)
            yield f"played {call.played.of(1):g}"
        async with call.new_turn() as turn:
            turn.hold()
            turn.resume()
            turn.cancel("barge-in")
            await asyncio.Event().wait()
        yield "end"


@chainlet(entry=True)
class Desk:
    talk: Talk = depends(Talk)

    async def run(self) -> AsyncIterator[str]:
        async for word in self.talk.talk():
            yield word


async def test_turns_and_what_was_played_go_through_two_processes() -> None:
    async with Processes(build(Desk)) as runtime, runtime.open_call() as call:
        seen: list[tuple[str, int]] = []
        call.watch(lambda event, turn: seen.append((event.removeprefix("turn_"), turn.number)))
        words = []
        async for word in runtime.entry.run():
            words.append(word)
            if word == "one":
                call.turns[0].mark("first_audio")
                call.played.report(1, 40.0)
        assert words == ["one", "played 40", "end"]
        ends = [("started", 2), ("held", 2), ("resumed", 2), ("cancelled", 2)]
        assert seen == [("started", 1), ("ended", 1), *ends]
        first, second = call.turns
        assert second.cancelled and second.reason == "barge-in" and first.ended > first.opened
        assert first.opened <= first.marks["speech_end"] <= first.marks["first_audio"]
    record = runtime.recorder.find(call.id)
    assert record is not None
    found = account(record, first)
    assert found is not None and abs(sum(one.ms for one in found.segments) - found.ms) < 1.0


async def test_a_turn_becomes_what_it_is_told() -> None:
    clock = FakeClock()
    there, here = Call(clock), Call(clock)
    turn = there.new_turn()
    turn.mark("speech_end")
    await clock.advance(2.0)
    sent = told(turn, "started")
    assert (sent.number, sent.opened, sent.marks[0].after) == (1, 2.0, 0.0)
    mirror = mirrored(Hop(here, "Node", "run", None), sent.number, sent.opened)
    assert mirror.opened == clock.now() - 2.0 and here.turns == [mirror]
    assert not follow(mirror, "held", "") and mirror.held
    assert not follow(mirror, "an event from the future", "")
    assert follow(mirror, "cancelled", "barge-in") and mirror.reason == "barge-in" and mirror.closed
