"""Hedging and fall-backs in one process, on a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from chains.dsl.chainlet import chainlet, depends, method
from chains.dsl.graph import build
from chains.dsl.specs import Limits
from chains.errors import Cancelled, DeadlineExceeded, Unavailable
from chains.runtime.inprocess import InProcess
from chains.testing import FakeClock, settle


@chainlet(limits=Limits(running=2, queued=2))
class Brain:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.began = 0

    @method(idempotent=True)
    async def think(self, text: str) -> str:
        self.began += 1
        await self.gate.wait()
        return text

    @method(idempotent=True)
    async def words(self, text: str) -> AsyncIterator[str]:
        self.began += 1
        await self.gate.wait()
        for word in text.split():
            yield word

    @method(idempotent=True)
    async def fails(self) -> str:
        raise ValueError("no")

    async def book(self, day: str) -> str:
        self.began += 1
        await self.gate.wait()
        return day

    async def hear(self, numbers: AsyncIterator[int]) -> list[int]:
        return [n async for n in numbers]


@chainlet
class Small(Brain):
    def __init__(self) -> None:
        super().__init__()
        self.gate.set()


@chainlet
class Slow(Brain):
    """As slow as the brain."""


@chainlet(entry=True)
class Talk:
    hedged: Brain = depends(Brain, hedge=0.2)
    rescued: Brain = depends(Brain, timeout=1.0, first=1.0, retries=0, fallback=Small)
    twice: Brain = depends(Brain, timeout=1.0, retries=0, fallback=depends(Slow, timeout=2.0, fallback=Small))

    async def think(self, text: str) -> str:
        return await self.hedged.think(text)

    async def words(self, text: str) -> list[str]:
        return [word async for word in self.hedged.words(text)]

    async def fails(self) -> str:
        return await self.hedged.fails()

    async def rescue(self, text: str) -> str:
        return await self.rescued.think(text)

    async def book(self, day: str) -> str:
        return await self.rescued.book(day)

    async def hear(self, count: int) -> list[int]:
        async def numbers() -> AsyncIterator[int]:
            for n in range(count):
                yield n

        return await self.rescued.hear(numbers())

    async def rescue_twice(self, text: str) -> str:
        return await self.twice.think(text)


def brains(runtime: InProcess, node: str = "Brain") -> list[Any]:
    return [replica._instance for replica in runtime._nodes[node].replicas]


def running(runtime: InProcess) -> list[int]:
    return [load.running for load in runtime.load() if load.node == "Brain"]


@pytest.fixture
async def talk() -> AsyncIterator[tuple[InProcess, FakeClock]]:
    clock = FakeClock()
    async with InProcess(build(Talk), clock=clock, replicas={"Brain": 2}, grace=0.0) as runtime:
        yield runtime, clock


async def test_the_second_is_asked_when_the_time_has_come_and_not_before(talk: Any) -> None:
    runtime, clock = talk
    async with runtime.open_call() as call:
        result = runtime.entry.think("hello")
        await settle()
        assert sorted(running(runtime)) == [0, 1]
        second = running(runtime).index(0)
        await clock.advance(0.19)
        assert sorted(running(runtime)) == [0, 1]
        await clock.advance(0.02)
        assert running(runtime) == [1, 1]
        brains(runtime)[second].gate.set()
        assert await result == "hello"
        await settle()
        assert running(runtime) == [0, 0]
        record = runtime.recorder.find(call.id)
        outer, *ways = sorted((hop for hop in record.hops if hop.label == "Brain.think"), key=lambda hop: hop.opened)
        assert outer.outcome == "done" and outer.replica == f"Brain#{second}"
        assert sorted(way.outcome for way in ways) == ["cancelled", "done"]
        assert all(way.parent is outer for way in ways)
        assert outer.parts()["wait"] == pytest.approx(0.21)


async def test_an_answer_in_time_asks_nobody_else(talk: Any) -> None:
    runtime, clock = talk
    for brain in brains(runtime):
        brain.gate.set()
    async with runtime.open_call():
        assert await runtime.entry.words("to be or not") == ["to", "be", "or", "not"]
        await clock.advance(1.0)
        assert sum(brain.began for brain in brains(runtime)) == 1


async def test_an_error_of_the_code_is_an_answer(talk: Any) -> None:
    runtime, _ = talk
    async with runtime.open_call():
        with pytest.raises(ValueError, match="no"):
            await runtime.entry.fails()


async def test_one_dies_and_the_other_answers(talk: Any) -> None:
    runtime, clock = talk
    async with runtime.open_call():
        result = runtime.entry.think("hello")
        await settle()
        first = running(runtime).index(1)
        await clock.advance(0.25)
        await runtime.kill("Brain", first)
        brains(runtime)[1 - first].gate.set()
        assert await result == "hello"


async def test_a_hang_up_ends_all_ways(talk: Any) -> None:
    runtime, clock = talk
    async with runtime.open_call() as call:
        result = runtime.entry.think("hello")
        await clock.advance(0.25)
        assert running(runtime) == [1, 1]
        call.cancel("hang-up")
        with pytest.raises(Cancelled, match="hang-up"):
            await result
        await settle()
        assert running(runtime) == [0, 0]


async def test_the_fall_back_answers_when_the_time_is_up(talk: Any) -> None:
    runtime, clock = talk
    async with runtime.open_call():
        result = runtime.entry.rescue("hello")
        await clock.advance(1.1)
        assert await result == "hello"
        assert brains(runtime, "Small")[0].began == 1


async def test_what_has_begun_and_may_not_be_repeated_does_not_fall_back(talk: Any) -> None:
    runtime, clock = talk
    async with runtime.open_call():
        result = runtime.entry.book("monday")
        await clock.advance(1.1)
        with pytest.raises(DeadlineExceeded, match=r"Brain.book gave no result within 1 s"):
            await result
        assert brains(runtime, "Small")[0].began == 0


async def test_what_still_waits_falls_back_whatever_it_is(talk: Any) -> None:
    runtime, clock = talk
    async with runtime.open_call():
        busy = [runtime.handle("Brain").book("x") for _ in range(4)]
        await settle()
        result = runtime.entry.book("monday")
        await clock.advance(1.1)
        assert await result == "monday"
        del busy


async def test_no_replica_is_left(talk: Any) -> None:
    runtime, _ = talk
    for index in range(2):
        await runtime.kill("Brain", index)
    async with runtime.open_call():
        assert await runtime.entry.book("monday") == "monday"
        assert await runtime.entry.hear(3) == [0, 1, 2], "its stream was lent to nobody before"
        with pytest.raises(Unavailable):
            await runtime.entry.think("hello")


async def test_a_fall_back_may_have_one_too(talk: Any) -> None:
    runtime, clock = talk
    async with runtime.open_call():
        result = runtime.entry.rescue_twice("hello")
        await clock.advance(1.1)
        assert brains(runtime, "Slow")[0].began == 1
        await clock.advance(2.1)
        assert await result == "hello"
