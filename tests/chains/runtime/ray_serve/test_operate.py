"""What an operator sees of a chain on a real cluster, and does with it: status, logs, other numbers of replicas."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator

import pytest

from chains.dsl.graph import build
from chains.errors import NotFound, SettingError
from chains.runtime.target import target_of
from tests.chains.runtime.ray_serve import chain_on_ray as chain

pytest.importorskip("ray")

from chains.runtime.ray_serve import Attached, Plan, RaySettings, delete, deploy
from chains.runtime.ray_serve.logs import Logs
from chains.runtime.ray_serve.operate import AppStatus, ChainletStatus, status
from chains.runtime.ray_serve.scaling import Count, scale
from tests.e2e.census import seen_to

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("ray_cluster")]
SETTINGS = RaySettings(grace=5.0, bind="127.0.0.1")


def of(app: AppStatus, name: str) -> ChainletStatus:
    return next(one for one in app.chainlets if one.name == name)


def load_of(app: AppStatus, kind: str) -> list[float | None]:
    """Of each worker; None where it did not say so in time."""
    return [one.load[kind] if one.load is not None else None for one in of(app, "Worker").replicas]


@pytest.fixture
async def runtime() -> AsyncIterator[Attached]:
    graph = build(chain.Front)
    plan = Plan(target_of(graph), settings=SETTINGS, gateway="chains.serve:door", door={"port": 0})
    await deploy(graph, plan, "desk")
    try:
        async with Attached(graph, "desk", settings=SETTINGS) as attached:
            yield attached
    finally:
        await delete("desk")


async def test_status_scaling_and_logs(runtime: Attached) -> None:
    app = await seen_to("desk", lambda now: bool(now.urls), "the gateway says where it listens")
    assert app.ok and app.state == "running" and app.urls[0].startswith("http://127.0.0.1:")
    assert {one.name for one in app.chainlets} == {"Worker", "Front", "gateway"}
    assert of(app, "Worker").replicas[0].state == "ready"
    app = await seen_to("desk", lambda now: load_of(now, "running") == [0], "the worker is idle")
    (worker,) = of(app, "Worker").replicas
    json.dumps(app.to_json())

    async with runtime.open_call():
        stream = runtime.entry.count(1000, 0.05)
        assert await anext(stream) == 0
        await seen_to("desk", lambda now: load_of(now, "streams") == [1], "its stream is open")

        await asyncio.to_thread(scale, "desk", {"Worker": Count(2, 2)})
        both = await seen_to("desk", lambda now: of(now, "Worker").count("ready") == 2, "two workers")
        assert worker.name in {one.name for one in of(both, "Worker").replicas}
        assert await anext(stream) > 0  # nobody was restarted
        await stream.aclose()

    with pytest.raises(NotFound, match=r"desk has no chainlet Wroker; did you mean Worker\?"):
        await asyncio.to_thread(scale, "desk", {"Wroker": Count(1, 1)})
    with pytest.raises(SettingError, match="Worker has a fixed number of replicas"):
        await asyncio.to_thread(scale, "desk", {"Worker": Count(1, 3)})
    with pytest.raises(NotFound, match=r"no chain is deployed as dek; did you mean desk\?"):
        await asyncio.to_thread(status, "dek")


async def test_logs_of_the_living_and_the_dead(runtime: Attached) -> None:
    async with runtime.open_call():
        _, pid = await runtime.entry.pids()
        await runtime.entry.say("before it died")
        os.kill(pid, signal.SIGKILL)
    reader = Logs("desk", "Worker")
    lines = await asyncio.to_thread(reader.read)
    assert ("Worker#", "before it died") in {(line.replica[:7], line.text) for line in lines}
    assert not any(line.text.startswith(":") for line in lines)

    def replaced(now: AppStatus) -> bool:
        return now.ok and [one.state for one in of(now, "Worker").replicas if one.pid != pid] == ["ready"]

    await seen_to("desk", replaced, "another worker")
    async with runtime.open_call():
        await runtime.entry.say("after it")
    assert [line.text for line in await asyncio.to_thread(reader.read)] == ["after it"]
