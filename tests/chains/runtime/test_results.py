"""What a call gives: a result to await, a stream to read; leaving either cancels the hop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build
from chains.errors import Cancelled, DeadlineExceeded
from chains.runtime.inprocess import InProcess
from chains.testing import FakeClock, settle


@chainlet
class Source:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.ended = 0

    async def wait(self) -> int:
        try:
            await self.gate.wait()
        finally:
            self.ended += 1
        return 7

    async def numbers(self, count: int, before_gate: int) -> AsyncIterator[int]:
        try:
            for n in range(count):
                if n == before_gate:
                    await self.gate.wait()
                yield n
        finally:
            await asyncio.sleep(0)
            self.ended += 1

    async def open_gate(self) -> None:
        self.gate.set()

    async def how_many_ended(self) -> int:
        return self.ended


@chainlet(entry=True)
class Timed:
    source: Source = depends(Source, first=2.0, idle=1.0)

    async def numbers(self, count: int, before_gate: int) -> AsyncIterator[int]:
        async for n in self.source.numbers(count, before_gate):
            yield n


@pytest.fixture
async def started() -> Any:
    clock = FakeClock()
    async with InProcess(build(Timed), clock=clock) as runtime, runtime.open_call() as call:
        yield runtime, clock, call
        async with runtime.open_call():
            await runtime.handle("Source").open_gate()
        await settle()


async def test_a_result_may_be_awaited_again_and_by_several(started: Any) -> None:
    runtime, _, _ = started
    source = runtime.handle("Source")
    result = source.wait()

    async def wait() -> int:
        return int(await result)

    waiting = [asyncio.ensure_future(wait()) for _ in range(2)]
    await settle()
    await source.open_gate()
    assert await asyncio.gather(*waiting) == [7, 7]
    assert await result == 7
    assert result.timing.outcome == "done"


async def test_a_call_starts_when_it_is_made(started: Any) -> None:
    runtime, _, _ = started
    source = runtime.handle("Source")
    result = source.wait()
    await settle()
    assert next(load.running for load in runtime.load() if load.node == "Source") == 1
    await source.open_gate()
    await result


async def test_a_result_that_is_dropped_before_it_began_never_begins(started: Any) -> None:
    runtime, _, call = started
    result = runtime.handle("Source").wait()
    del result
    await settle()
    hop = runtime.recorder.find(call.id).hops[0]
    assert (hop.outcome, hop.accepted - hop.opened) == ("cancelled", 0.0)
    assert await runtime.handle("Source").how_many_ended() == 0, "its code never ran"


async def test_closing_a_stream_returns_when_its_code_has_ended(started: Any) -> None:
    runtime, _, _ = started
    source = runtime.handle("Source")
    stream = source.numbers(5, 1)
    assert await anext(stream) == 0
    await stream.aclose()
    assert await source.how_many_ended() == 1
    with pytest.raises(Cancelled, match="consumer left"):
        await anext(stream)
    async with source.numbers(5, 1) as stream:
        assert await anext(stream) == 0
    assert await source.how_many_ended() == 2


async def test_a_stream_that_was_read_to_its_end_is_let_go(started: Any) -> None:
    runtime, _, call = started
    assert [n async for n in runtime.handle("Source").numbers(3, 9)] == [0, 1, 2]
    gc.collect()
    await settle()
    assert [hop.outcome for hop in runtime.recorder.find(call.id).hops] == ["done"]


async def test_the_first_item_has_its_own_timeout(started: Any) -> None:
    runtime, clock, _ = started
    reading = asyncio.ensure_future(anext(runtime.entry.numbers(3, 0)))
    await settle()
    await clock.advance(1.9)
    assert not reading.done()
    await clock.advance(0.2)
    with pytest.raises(DeadlineExceeded, match=r"Source.numbers gave no first item within 2 s"):
        await reading


async def test_each_further_item_has_its_own(started: Any) -> None:
    runtime, clock, _ = started
    stream = runtime.entry.numbers(3, 2)
    assert [await anext(stream), await anext(stream)] == [0, 1]
    reading = asyncio.ensure_future(anext(stream))
    await settle()
    await clock.advance(0.9)
    assert not reading.done()
    await clock.advance(0.2)
    with pytest.raises(DeadlineExceeded, match="gave no further item within 1 s"):
        await reading


async def test_time_in_which_nobody_reads_is_not_the_producers(started: Any) -> None:
    runtime, clock, _ = started
    stream = runtime.entry.numbers(3, 9)
    assert await anext(stream) == 0
    await clock.advance(100.0)
    assert [n async for n in stream] == [1, 2]


async def test_a_cancelled_reader_loses_no_item(started: Any) -> None:
    runtime, _, _ = started
    source = runtime.handle("Source")
    stream = source.numbers(2, 1)
    assert await anext(stream) == 0
    reading = asyncio.ensure_future(anext(stream))
    await settle()
    reading.cancel()
    await settle()
    assert reading.cancelled()
    await source.open_gate()
    assert await anext(stream) == 1


async def test_a_call_in_a_cancelled_scope_is_cancelled_before_it_begins(started: Any) -> None:
    runtime, _, call = started
    source = runtime.handle("Source")
    call.cancel("hang-up")
    with pytest.raises(Cancelled, match="hang-up"):
        await source.wait()
    with pytest.raises(Cancelled, match="hang-up"):
        await anext(source.numbers(3, 9))
    async with runtime.open_call():
        assert await source.how_many_ended() == 0


async def test_bytes_in_the_stream_are_counted(started: Any) -> None:
    runtime, _, _ = started
    stream = runtime.handle("Source").numbers(10, 99)
    assert await anext(stream) == 0
    await settle()
    assert stream.queued_bytes == 9 * 8
    assert stream.peak_bytes in (72, 80)
    assert [n async for n in stream] == list(range(1, 10))
    assert stream.queued_bytes == 0
