"""The caller's side of a remote hop: large values, lent streams that are read ahead, what is given back, accounts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import numpy as np
import pytest

from chains.channel import Channel
from chains.wire.pb import carrier_pb2 as pb
from chains.wire.settings import WireSettings, new_token
from tests.chains.wire.hosted import Caller, calling, eventually, hosted

SETTINGS = WireSettings(new_token())


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    async with hosted(SETTINGS) as replica, calling(replica.server.address, SETTINGS) as made:
        await made.remote.reached()
        yield made


async def test_large_values_go_and_come(caller: Caller) -> None:
    array = np.random.default_rng(1).random(1_000_000)
    async with caller.open_call():
        results = await asyncio.gather(*(caller.probe.scale(array, float(n)) for n in range(4)), caller.probe.echo(1))
    assert all(np.array_equal(result, array * n) for n, result in enumerate(results[:4]))
    assert len(caller.remote.carried) == 0


async def test_times_add_up_and_the_wire_is_what_is_left(caller: Caller) -> None:
    async with caller.open_call() as call:
        await caller.probe.echo(1)
        [hop] = caller.recorder.find(call.id).hops  # type: ignore[union-attr]
    parts = hop.parts()
    assert sum(parts.values()) == pytest.approx(hop.closed - hop.opened)
    assert parts["wire"] > 0 and parts["serialise"] > 0 and hop.replica == "Probe#0" and hop.outcome == "done"


async def test_what_a_replica_reports_decides_whether_it_is_called(caller: Caller) -> None:
    """One that is warming was called ready by somebody else: the report is only late. One that drains takes nothing."""
    for state, pressure in (("warming", 0), ("ready", 0), ("draining", -1), ("dead", -1)):
        caller.remote._told("load", pb.Load(state=state))
        assert caller.remote.pressure == pressure


async def test_hundreds_of_calls_with_cancels_at_any_moment_are_right_and_leave_nothing() -> None:
    """Streams both ways, lent generators, turns that are held and cancelled: no wrong answer, no hang, nothing left."""
    chance = random.Random(3)

    async def numbers(count: int) -> AsyncIterator[int]:
        for n in range(count):
            if chance.random() < 0.05:
                await asyncio.sleep(0)
            yield n

    async def converse(caller: Caller, length: int, patience: int, way: int) -> None:
        probe = caller.probe
        async with caller.open_call() as call, call.new_turn() as turn:
            if way == 0:
                got = [n async for n in probe.doubled(numbers(length))]
                assert got == [2 * n for n in range(length)]
            elif way == 1:
                assert await probe.total(numbers(length)) == sum(range(length))
            elif way == 2:
                taken = 0
                async for n in probe.doubled(probe.doubled(numbers(length))):
                    assert n == 4 * taken
                    taken += 1
                    if taken == patience:
                        turn.hold()
                        await asyncio.sleep(0)
                        turn.resume()
                    if taken == 2 * patience:
                        break
            elif way == 3:
                asyncio.get_running_loop().call_later(patience / 1e4, turn.cancel, "barge-in")
                async for _ in probe.doubled(numbers(10_000)):
                    pass
            else:
                channel: Channel[int] = Channel()
                for n in range(50):
                    channel.offer(n)
                asyncio.get_running_loop().call_later(patience / 1e4, turn.cancel, "barge-in")
                await probe.first_of(channel, 1000)

    async with hosted(SETTINGS) as replica, calling(replica.server.address, SETTINGS) as caller:
        await caller.remote.reached()
        pending = [
            converse(caller, chance.randrange(400), chance.randrange(1, 60), chance.randrange(5)) for _ in range(200)
        ]
        while pending:
            some, pending = pending[:4], pending[4:]  # the probe runs 8 at once, two for a pipe
            async with asyncio.timeout(10.0):
                await asyncio.gather(*some)
        await eventually(lambda: not replica.host.open and not replica.host.replica.running)
        await eventually(lambda: not caller.line.tasks and not caller.remote.carried and not len(caller.line.lender))
        carrier = caller.remote._connection.carrier
        assert carrier is not None and carrier.calls == {} and caller.remote._connection.epoch == 1
        assert not (carrier._lanes or carrier._blocked or carrier._receiving or carrier._opening)
        assert not any(peer._lanes or peer.calls or peer._receiving for peer in replica.host._peers)
