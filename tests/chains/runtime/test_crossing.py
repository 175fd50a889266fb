"""Lent streams that cross to another process: read ahead, given back, credited, timed, ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from chains.channel import Channel
from chains.errors import Cancelled, InvalidValue, Unavailable
from chains.wire.settings import WireSettings, new_token
from tests.chains.wire.hosted import Caller, calling, eventually, hosted

SETTINGS = WireSettings(new_token())


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    async with hosted(SETTINGS) as replica, calling(replica.server.address, SETTINGS) as made:
        await made.remote.reached()
        yield made


async def test_what_a_callee_did_not_take_is_there_for_the_next(caller: Caller) -> None:
    channel: Channel[int] = Channel()
    for n in range(100):
        channel.offer(n)
    channel.end()
    async with caller.open_call():
        assert await caller.probe.first_of(channel, 3) == [0, 1, 2]
        assert channel._lease is None and len(channel._items) == 97
        assert await caller.probe.first_of(channel, 2) == [3, 4]
        assert await channel.receive() == 5, "also for whoever reads it here"
        assert await caller.probe.total(channel) == sum(range(6, 100))
        assert await caller.probe.total(channel) == 0, "its end stands"


async def test_a_second_reader_waits_for_the_first_to_end(caller: Caller) -> None:
    channel: Channel[int] = Channel()
    async with caller.open_call():
        await caller.probe.open_gate()
        first = caller.probe.total(channel)
        await eventually(lambda: channel._lease is not None)
        second = caller.probe.first_of(channel, 1)
        for n in (1, 2):
            channel.offer(n)
        await eventually(lambda: not (channel._items))
        del first
        channel.offer(3)
        assert await second == [3]


async def test_the_producers_credit_comes_back_when_the_callees_code_takes(caller: Caller) -> None:
    channel: Channel[bytes] = Channel(10_000)
    async with caller.open_call():
        result = caller.probe.swallow(channel)
        offered = 0
        while channel.offer(b"x" * 1000):
            offered += 1
            await asyncio.sleep(0)
        assert len(channel._items) <= 11
        await caller.probe.open_gate()
        for _ in range(50):
            await channel.send(b"x" * 1000)
        channel.end()
        assert await result == offered + 50


async def test_an_item_that_cannot_travel_is_the_readers_error(caller: Caller) -> None:
    channel: Channel[object] = Channel()
    channel.offer(1)
    channel.offer(object())
    async with caller.open_call():
        with pytest.raises(InvalidValue, match="object cannot cross"):
            await caller.probe.total(channel)


async def test_a_cancelled_stream_is_cancelled_for_its_reader(caller: Caller) -> None:
    channel: Channel[int] = Channel()
    async with caller.open_call():
        result = caller.probe.total(channel)
        channel.cancel("hung up")
        with pytest.raises(Cancelled, match="hung up"):
            await result


async def test_a_lost_replica_gives_back_what_it_did_not_take() -> None:
    channel: Channel[int] = Channel()
    for n in range(10):
        channel.offer(n)
    async with hosted(SETTINGS) as replica, calling(replica.server.address, SETTINGS) as caller, caller.open_call():
        result = caller.probe.idempotent_total(channel)
        await eventually(lambda: len(channel._items) < 10)
        await replica.server.stop(0.0)
        with pytest.raises(Unavailable):
            await result
        assert [await channel.receive() for _ in range(9)] == list(range(1, 10))
        assert len(caller.line.tasks) == 0 and len(caller.remote.carried) == 0


async def test_timeouts_of_a_lent_stream_run_only_while_its_reader_waits(caller: Caller) -> None:
    from chains.dsl.specs import CallOptions
    from chains.runtime.handle import Bound

    method = caller.probe.gated_numbers.method
    impatient = Bound(caller.target, method, CallOptions(idle=0.05, first=5.0), caller.line)
    async with caller.open_call():
        with pytest.raises(Exception, match=r"no further item within 0\.05 s"):
            await caller.probe.total(impatient(3, 1))
