"""The caller's side of a remote hop: large values, lent streams that are read ahead, what is given back, accounts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import numpy as np
import pytest

from chains.channel import Channel
from chains.policy.routing import Load
from chains.runtime.nodes import Place
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
    for state, takes in (("warming", True), ("ready", True), ("draining", False), ("dead", False)):
        caller.remote._told("load", pb.Load(state=state))
        assert caller.remote.open is takes


async def test_a_call_is_sent_back_where_no_slot_is_free_and_that_is_no_retry() -> None:
    """Its caller believed that there was one; it learns better with the answer, and asks the other."""
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(hosted(SETTINGS)) for _ in range(2)]
        busy = await stack.enter_async_context(calling(first.server.address, SETTINGS))
        caller = await stack.enter_async_context(calling(first.server.address, SETTINGS))
        await stack.enter_async_context(busy.open_call())
        running = [busy.probe.gated(n) for n in range(8)]
        await eventually(lambda: len(first.replica.running) == 8)
        caller.target.update({"Probe#0": Place(first.server.address), "Probe#1": Place(second.server.address)})
        stack.push_async_callback(caller.target.remotes["Probe#1"].gone)
        for remote in caller.target.remotes.values():
            await remote.reached()
        await eventually(lambda: caller.remote.standing().running == 8)
        caller.target._choice.report("Probe#0", Load())
        caller.target._choice.report("Probe#1", Load(running=1))
        async with caller.open_call() as call:
            assert await caller.probe.echo(7) == 7
            [hop] = caller.recorder.find(call.id).hops  # type: ignore[union-attr]
            assert (hop.attempts, hop.replica, hop.outcome) == (1, "Probe#1", "done")
            parts = hop.parts()
            assert sum(parts.values()) == pytest.approx(hop.closed - hop.opened) and min(parts.values()) >= 0.0
        running.clear()


async def test_a_call_with_large_arguments_waits_where_it_is() -> None:
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(hosted(SETTINGS)) for _ in range(2)]
        caller = await stack.enter_async_context(calling(first.server.address, SETTINGS))
        caller.target.update({"Probe#0": Place(first.server.address), "Probe#1": Place(second.server.address)})
        stack.push_async_callback(caller.target.remotes["Probe#1"].gone)
        await stack.enter_async_context(caller.open_call())
        running = [caller.probe.gated(n) for n in range(8)]
        await eventually(lambda: len(first.replica.running) + len(second.replica.running) == 8)
        there = first if first.replica.running else second
        caller.target._choice._router.leave(next(iter(caller.target._choice._router._homes)))
        elsewhere = "Probe#1" if there is first else "Probe#0"
        caller.target._choice.report(elsewhere, Load(running=64))
        result = caller.probe.scale(np.zeros(100_000), 2.0)
        await eventually(lambda: there.replica.waiting == 1)
        running.clear()
        assert len(await result) == 100_000


async def test_a_report_says_what_is_the_readers_own_and_what_is_at_work(caller: Caller) -> None:
    async def silence() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 1

    async with calling(caller.remote.address, SETTINGS) as other, other.open_call(), caller.open_call():
        await other.remote.reached()
        results = [caller.probe.gated(1), caller.probe.total(silence()), other.probe.gated(2)]
        await eventually(lambda: (other.remote._load.running, other.remote._mine, caller.remote._mine) == (3, 1, 2))
        await eventually(lambda: caller.remote.load().active == 2)
        results.clear()


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
        assert not (carrier._lanes or carrier._blocked or carrier._arrivals._receiving or carrier._opening)
        assert not any(peer._lanes or peer.calls or peer._arrivals._receiving for peer in replica.host._peers)
