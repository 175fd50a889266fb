"""Turns that a method in another process makes are seen where the call was opened; what was played is known there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from chains.call import Call, Hop, current
from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build
from chains.runtime.mirror import follow, learn, mirrored, told
from chains.runtime.processes import Processes
from chains.spans import CallRecord, account
from chains.testing import FakeClock
from tests.chains.wire.hosted import eventually


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


async def test_a_turns_path_travels_with_its_end_and_is_cut_to_what_was_heard_here() -> None:
    clock = FakeClock(now=100.0)
    there, here = Call(clock), Call(clock)
    root = Hop(there, "Talk", "talk", None)
    turn = there.new_turn()
    await clock.advance(1.0)
    turn.mark("speech_end")
    with root.activate(), root.work("answer"):
        await clock.advance(2.0)
    turn.ended = clock.now()
    assert not told(turn, "started", root.timing).path
    sent = told(turn, "ended", root.timing)
    assert [(step.hop, step.part, step.name, step.start, step.end) for step in sent.path] == [
        ("Talk.talk", "wire", "", 0.0, 3.0)
    ], "as nobody has received it"
    root.timing.received = root.timing.accepted = 100.0
    sent = told(turn, "ended", root.timing)
    assert [(step.part, step.name, step.start, step.end) for step in sent.path] == [
        ("compute", "", 0.0, 1.0), ("compute", "answer", 1.0, 3.0),
    ]  # fmt: skip
    await clock.advance(50.0)
    asking = Hop(here, "Talk", "talk", None)
    mirror = mirrored(asking, sent.number, 3.0)
    learn(mirror, sent, mirror.opened)
    mirror.mark("first_audio", mirror.opened + 2.5)
    mirror.ended = clock.now()
    record = CallRecord(here)
    found = account(record, mirror)
    assert found is not None and found.ms == 1_500.0
    assert [(one.label, one.name, round(one.ms)) for one in found.segments] == [("Talk.talk", "answer", 1_500)]
    mirror.marks["first_audio"] = mirror.opened + 4.0
    found = account(record, mirror)
    assert found is not None and [round(one.ms) for one in found.segments] == [2_000, 1_000]
    assert found.segments[-1].part == "wire", "what comes after its end there is the way"
    learn(mirror, sent, mirror.opened - 0.25)
    assert mirror.marks == {"speech_end": mirror.opened + 1.0, "first_audio": mirror.opened + 4.25}, "earlier by that"


@chainlet
class Slow:
    async def step(self) -> int:
        return 1

    async def wait(self) -> str:
        await current().call.played.reached(1, 1.0)
        return "played"


@chainlet(entry=True)
class Long:
    slow: Slow = depends(Slow)

    async def run(self) -> str:
        for _ in range(3):
            await self.slow.step()
        return await self.slow.wait()


async def test_hops_of_a_call_that_goes_on_are_known_before_it_ends() -> None:
    async with Processes(build(Long)) as runtime, runtime.open_call() as call:
        record = runtime.recorder.find(call.id)
        assert record is not None
        running = asyncio.ensure_future(_result(runtime.entry.run()))
        await eventually(lambda: len(record.hops) == 3)
        assert {hop.label for hop in record.hops} == {"Slow.step"} and not running.done()
        call.played.report(1, 1.0)
        assert await running == "played"
    assert [hop.label for hop in record.hops] == ["Slow.step"] * 3 + ["Slow.wait", "Long.run"], "each once"
    assert {hop.parent for hop in record.hops if hop.node == "Slow"} == {record.root}


async def _result(awaitable: Any) -> Any:
    return await awaitable
