"""The runtime of a block: replicas by index, crashes, and that nothing outlives it."""

from __future__ import annotations

import os

import psutil
import pytest

from chains.dsl.graph import build
from chains.errors import NotFound, SettingError, Unavailable
from chains.testing.harness import until
from tests.chains.runtime.ray_serve import chain_on_ray as chain
from tests.chains.wire.hosted import eventually

pytest.importorskip("ray")

from chains.runtime.ray_serve import RayServe, RaySettings
from tests.chains.runtime.ray_serve.test_deploy import left_of

SETTINGS = RaySettings(grace=1.0, bind="127.0.0.1")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_each_replica_has_its_process_and_none_is_left(ray_cluster: None) -> None:
    async with RayServe(build(chain.Front), replicas={"Worker": 2}, settings=SETTINGS) as runtime:
        assert runtime.health().ok and [one.state for one in runtime.load()] == ["ready"] * 3
        async with runtime.open_call():
            assert len({os.getpid(), *await runtime.entry.pids()}) == 3
        with pytest.raises(NotFound, match="no chainlet Nobody"):
            runtime.handle("Nobody")
        assert runtime._reach is not None
        everybody = [one.pid for listed in runtime._reach.listed.values() for one in listed.values()]
        assert len(everybody) == 3 and all(map(psutil.pid_exists, everybody))
    await eventually(lambda: not any(map(psutil.pid_exists, everybody)))
    assert not left_of(runtime.app)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_replica_that_died_is_replaced_under_its_index(ray_cluster: None) -> None:
    async with RayServe(build(chain.Front), replicas={"Worker": 2}, settings=SETTINGS) as runtime:
        before = [one.replica for one in runtime.load()]
        await runtime.kill("Worker", 0)
        assert [one.state for one in runtime.load()] == ["dead", "ready", "ready"]
        async with runtime.open_call():
            assert len(await runtime.entry.pids()) == 2, "the other one answers"
        node = runtime._nodes["Worker"]
        await _until_ready(runtime, 3)
        after = [one.replica for one in runtime.load()]
        assert after[1:] == before[1:] and after[0] != before[0] and after[0] in node.remotes


async def _until_ready(runtime: RayServe, count: int) -> None:
    async def all_ready() -> bool:
        return [one.state for one in runtime.load()].count("ready") == count

    await until(all_ready, f"{count} replicas that are ready", seconds=60.0)


def test_unknown_replicas_are_refused() -> None:
    with pytest.raises(SettingError, match="give at least 1"):
        RayServe(build(chain.Front), replicas={"Nobody": 1})


def test_it_has_to_be_started() -> None:
    with pytest.raises(Unavailable, match="async with RayServe"):
        _ = RayServe(build(chain.Front)).entry
