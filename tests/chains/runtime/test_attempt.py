"""Streams on loan: what may be lent, who stops what, and how values pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from chains.call import Call
from chains.channel import Channel
from chains.dsl.chainlet import chainlet
from chains.dsl.graph import build
from chains.dsl.signature import Checker
from chains.errors import Cancelled, InvalidValue
from chains.runtime.attempt import Lender, Pump, through_codec
from chains.runtime.inprocess import InProcess
from chains.testing import FakeClock, settle
from chains.timing import Timing


@chainlet(entry=True)
class Reader:
    async def total(self, numbers: AsyncIterator[int]) -> int:
        return sum([n async for n in numbers])

    async def first(self, numbers: AsyncIterator[int]) -> int:
        return await anext(numbers)

    async def both(self, left: AsyncIterator[int], right: AsyncIterator[int]) -> list[int]:
        return [n async for n in left] + [n async for n in right]

    async def same(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array


async def count(to: int) -> AsyncIterator[int]:
    for n in range(to):
        yield n


class Countable:
    """Not an iterator itself: each loop over it begins anew."""

    def __aiter__(self) -> AsyncIterator[int]:
        return count(3)


@pytest.fixture
def call() -> Call:
    return Call(FakeClock())


async def drained(source: Any) -> list[Any]:
    items = []
    try:
        while True:
            items.append(source.take() if source.ready() else await source.next())
    except StopAsyncIteration:
        return items


async def test_generators_and_channels_can_be_lent(call: Call) -> None:
    lender = Lender()
    channel: Channel[int] = Channel()
    for n in range(3):
        channel.offer(n)
    channel.end()
    for value in (count(3), Countable(), channel, [0, 1, 2], (0, 1, 2), {0: 1, 1: 1, 2: 1}.keys()):
        source, via = lender.source(value, "here", call, 100)
        assert via is None
        assert await drained(source) == [0, 1, 2]
    assert len(lender) == 0
    assert not call._children


@pytest.mark.parametrize("value", [7, "text", b"bytes", {"a": 1}, None])
async def test_what_is_no_stream_cannot_be_lent(call: Call, value: Any) -> None:
    with pytest.raises(InvalidValue, match=f"here is {type(value).__name__}, not a stream"):
        Lender().source(value, "here", call, 100)


async def test_one_generator_is_one_stream_however_often_it_is_passed(call: Call) -> None:
    lender, numbers = Lender(), count(4)
    first, _ = lender.source(numbers, "here", call, 100)
    second, _ = lender.source(numbers, "there", call, 100)
    assert first is second
    assert await first.next() == 0
    assert await drained(second) == [1, 2, 3]


async def test_what_is_lent_is_kept_alive_so_that_its_place_is_not_taken(call: Call) -> None:
    lender = Lender()
    sources = [lender.source(Countable(), "here", call, 100)[0] for _ in range(50)]
    assert len({id(source) for source in sources}) == 50
    assert [await source.next() for source in sources] == [0] * 50
    call.close()
    assert len(lender) == 0


async def test_a_lent_generator_runs_in_its_makers_scope_and_stops_with_it(call: Call) -> None:
    seen: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        from chains.call import current

        try:
            seen.append(current().id)
            yield 1
            await asyncio.Event().wait()
        finally:
            seen.append("finally")

    lender = Lender()
    pump, _ = lender.source(numbers(), "here", call, 100)
    assert isinstance(pump, Pump)
    assert await pump.next() == 1
    waiting = asyncio.ensure_future(pump.next())
    await settle()
    call.cancel("hang-up")
    with pytest.raises(Cancelled, match="hang-up"):
        await waiting
    await settle()
    assert seen == [call.id, "finally"]
    assert len(lender) == 0


async def test_a_generator_that_nobody_reads_never_starts(call: Call) -> None:
    started = []

    async def numbers() -> AsyncIterator[int]:
        started.append(True)
        yield 1

    pump, _ = Lender().source(numbers(), "here", call, 100)
    await settle()
    call.close()
    with pytest.raises(Cancelled):
        await pump.next()
    assert started == []


async def test_hold_and_the_window_bound_what_a_generator_makes(call: Call) -> None:
    made = []

    async def numbers() -> AsyncIterator[int]:
        for n in range(100):
            made.append(n)
            yield n

    pump, _ = Lender().source(numbers(), "here", call, 80)
    assert await pump.next() == 0
    await settle()
    assert len(made) == 12, "ten in the window of 80 bytes, one taken, one in hand"
    call.hold()
    assert [pump.take() for _ in range(10)] == list(range(1, 11))
    await settle()
    assert len(made) == 12
    call.resume()
    await settle()
    assert len(made) == 22


async def test_two_streams_into_one_hop_and_one_stream_into_two() -> None:
    async with InProcess(build(Reader)) as runtime, runtime.open_call():
        assert await runtime.entry.both(count(3), count(2)) == [0, 1, 2, 0, 1]
        numbers = count(4)
        assert [await runtime.entry.first(numbers) for _ in range(3)] == [0, 1, 2]
        assert await runtime.entry.total(numbers) == 3
        assert runtime._line is not None
        assert len(runtime._line.lender) == 0


async def test_by_reference_nothing_is_copied_and_by_the_codec_everything() -> None:
    array = np.arange(4)
    async with InProcess(build(Reader)) as runtime, runtime.open_call():
        assert np.shares_memory(await runtime.entry.same(array), array)
    async with InProcess(build(Reader), codec=True) as runtime, runtime.open_call():
        back = await runtime.entry.same(array)
        assert np.array_equal(back, array)
        assert not np.shares_memory(back, array)


def test_the_codecs_cost_is_accounted() -> None:
    timing = Timing("1", None, "c", 0, "Node", "m", 1.0)
    value = through_codec(np.arange(100_000), Checker(np.ndarray), timing)
    assert len(value) == 100_000
    assert timing.serialise > 0.0
