"""What is over is gone: tasks, channels, lent streams, memory."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from chains.call import Hop, Turn
from chains.channel import Channel
from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build
from chains.errors import ChainsError
from chains.runtime.attempt import Attempt, Input, Pump
from chains.runtime.drive import Drive
from chains.runtime.inprocess import InProcess
from chains.runtime.results import Result, Stream
from chains.spans import Recorder
from chains.testing import settle
from chains.testing.harness import until
from chains.timing import LoopClock

KINDS = (Attempt, Channel, Drive, Hop, Input, Pump, Result, Stream, Turn, asyncio.Task, asyncio.Future)
TOLERANCE = 64 * 1024  # bytes of growth over a thousand calls: 64 a call would be a leak


@chainlet
class Source:
    async def endless(self) -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 100
            await asyncio.sleep(0)

    async def forever(self) -> int:
        await asyncio.Event().wait()
        return 1

    async def swallow(self, items: AsyncIterator[int]) -> int:
        return sum([n async for n in items])

    def read(self, items: Iterator[int]) -> int:
        return sum(items)

    async def how_many(self, items: AsyncIterator[int]) -> int:
        count = 0
        async for _ in items:
            count += 1
        return count

    async def count(self, to: int) -> AsyncIterator[int]:
        for n in range(to):
            yield n


@chainlet(entry=True)
class Entry:
    source: Source = depends(Source)
    hasty: Source = depends(Source, timeout=0.001)

    async def endless(self) -> AsyncIterator[bytes]:
        async for item in self.source.endless():
            yield item

    async def forever(self) -> int:
        return await self.source.forever()

    async def late(self) -> int:
        return await self.hasty.forever()

    async def swallow(self, items: AsyncIterator[int]) -> int:
        return await self.source.swallow(items)


async def breaks(runtime: InProcess) -> None:
    async with runtime.open_call():
        async for _ in runtime.entry.endless():
            break


async def hangs_up(runtime: InProcess) -> None:
    async with runtime.open_call() as call:
        stream = runtime.entry.endless()
        await anext(stream)
        call.cancel("hang-up")


async def runs_late(runtime: InProcess) -> None:
    async with runtime.open_call():
        try:
            await runtime.entry.late()
        except ChainsError:
            return


async def drops(runtime: InProcess) -> None:
    async with runtime.open_call():
        result, stream = runtime.entry.forever(), runtime.entry.endless()
        await asyncio.sleep(0)
        del result, stream


async def is_interrupted(runtime: InProcess) -> None:
    async with runtime.open_call() as call, call.new_turn() as turn:
        asyncio.get_running_loop().call_soon(turn.cancel, "barge-in")
        await runtime.entry.forever()


async def lends(runtime: InProcess) -> None:
    async def microphone() -> AsyncIterator[int]:
        yield 1
        await asyncio.Event().wait()

    async with runtime.open_call() as call:
        result = runtime.entry.swallow(microphone())
        await settle(5)
        call.cancel("hang-up")
        try:
            await result
        except ChainsError:
            return


async def blocks(runtime: InProcess) -> None:
    async def microphone() -> AsyncIterator[int]:
        yield 1
        reading.set()
        await asyncio.Event().wait()

    reading = asyncio.Event()
    async with runtime.open_call() as call:
        result = runtime.handle("Source").read(microphone())
        await reading.wait()
        call.cancel("hang-up")
        try:
            await result
        except ChainsError:
            pass  # as it should

    async def ended() -> bool:
        return not any(one.running for one in runtime.load())

    await until(ended, "the thread's end")


WAYS = (breaks, hangs_up, runs_late, drops, is_interrupted, lends, blocks)


async def cancelled_calls(runtime: InProcess, number: int) -> None:
    for n in range(number):
        await WAYS[n % len(WAYS)](runtime)
    await settle()
    gc.collect()


def alive() -> Counter[str]:
    return Counter(type(one).__name__ for one in gc.get_objects() if type(one) in KINDS)


def runtime_that_forgets() -> InProcess:
    """The accounts of recent calls are kept on purpose; here of two."""
    clock = LoopClock()
    return InProcess(build(Entry), clock=clock, recorder=Recorder(clock, calls=2), grace=0.0)


async def test_a_thousand_cancelled_calls_leave_nothing() -> None:
    async with runtime_that_forgets() as runtime:
        await cancelled_calls(runtime, 20 * len(WAYS))
        before, tasks = alive(), len(asyncio.all_tasks())
        await cancelled_calls(runtime, 143 * len(WAYS))
        line: Any = runtime._line
        assert len(asyncio.all_tasks()) == tasks
        assert alive() - before == Counter()
        assert (len(line.lender), len(line.tasks), runtime._calls) == (0, 0, {})
        assert all((one.running, one.queued, one.streams, one.draining) == (0, 0, 0, 0) for one in runtime.load())


async def test_a_thousand_cancelled_calls_take_no_memory() -> None:
    async with runtime_that_forgets() as runtime:
        await cancelled_calls(runtime, 20 * len(WAYS))
        tracemalloc.start()
        try:
            await cancelled_calls(runtime, 20 * len(WAYS))
            before, _ = tracemalloc.get_traced_memory()
            await cancelled_calls(runtime, 143 * len(WAYS))
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert after - before < TOLERANCE, f"{after - before} bytes in 1,000 cancelled calls"


async def reads(runtime: InProcess, items: int) -> None:
    count = 0
    async for _ in runtime.handle("Source").count(items):
        count += 1
    assert count == items


async def is_read(runtime: InProcess, items: int) -> None:
    async def numbers() -> AsyncIterator[int]:
        for n in range(items):
            yield n

    assert await runtime.handle("Source").how_many(numbers()) == items


@pytest.mark.parametrize("way", [reads, is_read])
async def test_a_long_stream_takes_no_memory(way: Any) -> None:
    """200,000 items; what is counted is what is left, and the most there was, above a short stream's."""
    async with runtime_that_forgets() as runtime, runtime.open_call():
        await way(runtime, 40_000)  # more than a window
        gc.collect()
        tracemalloc.start()
        try:
            await way(runtime, 40_000)
            before, peak_before = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            await way(runtime, 160_000)
            after, peak_after = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert after - before < TOLERANCE
        assert peak_after - peak_before < 16 * TOLERANCE
