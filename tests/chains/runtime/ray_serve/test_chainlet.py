"""A replica under Serve: what it tells, and when it asks to be replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from chains.errors import ChainsError, Unavailable
from chains.testing.harness import until
from tests.chains.runtime.ray_serve import chain_on_ray as chain
from tests.chains.wire.hosted import calling, eventually, hosted

pytest.importorskip("ray")

from chains.runtime.ray_serve.chainlet import ChainletReplica
from chains.runtime.ray_serve.plan import Plan, RaySettings
from chains.wire.settings import WireSettings, new_token
from tests.chains.runtime.ray_serve.test_deploy import SETTINGS, deployed


async def test_its_load_in_numbers() -> None:
    settings = WireSettings(new_token())
    async with hosted(settings) as made, calling(made.server.address, settings) as caller, caller.open_call():
        replica = ChainletReplica.__new__(ChainletReplica)
        replica._hosted, replica._plan, replica._name = made, Plan("x", settings=RaySettings(stuck=0.1)), "Probe#0"
        running = [caller.probe.gated(n) for n in range(8)]
        late = caller.probe.echo(1)
        await eventually(lambda: made.replica.waiting == 1)
        stats = await replica.record_autoscaling_stats()
        assert (stats["running"], stats["active"], stats["waiting"]) == (8, 8, 1) and stats["wait_ms"] >= 0.0
        assert all(isinstance(value, int | float) for value in stats.values())
        await eventually(lambda: made.replica.load().idle_s > 0.1)
        with pytest.raises(Unavailable, match="has not moved for"):
            await replica.check_health()
        running.clear()
        assert await late == 1
        await replica.check_health()
        replica._hosted = None  # the test's own ends it


async def test_a_stream_that_waits_outside_of_a_turn_is_no_work() -> None:
    settings = WireSettings(new_token())
    speaks = asyncio.Event()

    async def said() -> AsyncIterator[int]:
        yield 1
        await speaks.wait()

    async with hosted(settings) as made, calling(made.server.address, settings) as caller, caller.open_call() as call:
        replica = ChainletReplica.__new__(ChainletReplica)
        replica._hosted = made

        async def told(running: float, active: float) -> bool:
            stats = await replica.record_autoscaling_stats()
            return (stats["running"], stats["active"]) == (running, active)

        silent = asyncio.ensure_future(_awaited(caller.probe.total(said())))
        await until(lambda: told(1, 0), "the stream is open and silent")
        with call.new_turn().activate():
            spoken = asyncio.ensure_future(_awaited(caller.probe.total(said())))
        await until(lambda: told(2, 1), "one of a turn is at work, also while it waits")
        speaks.set()
        assert await spoken == await silent == 1
        replica._hosted = None


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_one_that_stands_still_is_replaced(ray_cluster: None) -> None:
    settings = replace(SETTINGS, stuck=0.5, grace=0.0)
    async with deployed(chain.Front, "stuck", settings=settings) as runtime, runtime.open_call():
        before = set(runtime._nodes["Worker"].remotes)
        standing = asyncio.ensure_future(_awaited(runtime.handle("Worker").stand()))

        async def replaced() -> bool:
            return bool(set(runtime._nodes["Worker"].remotes) - before)

        await until(replaced, "another replica", seconds=60.0)
        with pytest.raises(ChainsError):
            await standing
        assert await runtime.handle("Worker").pid()


async def _awaited(result: Any) -> Any:
    return await result
