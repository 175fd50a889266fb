"""Callers on the gateway's own port: through an upgrade, and to the end of a deployment."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from chains.client import connect
from chains.dsl.graph import build
from chains.errors import NotFound, StartError
from chains.testing.harness import until
from tests.chains.runtime.ray_serve import chain_on_ray as chain

pytest.importorskip("ray")

from chains.runtime.ray_serve import Plan, delete, deploy
from chains.runtime.ray_serve.operate import status
from tests.chains.runtime.ray_serve.test_deploy import left_of, plan_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("ray_cluster")]
DOOR = {"port": 0, "drain_seconds": 10.0}


@asynccontextmanager
async def served(app: str, **changes: Any) -> AsyncIterator[tuple[str, Plan]]:
    """The URL of a deployment with a gateway, and the plan that keeps its port."""
    plan = plan_of(chain.Front, **{"gateway": "chains.serve:door", "door": DOOR, **changes})
    url = await deploy(build(chain.Front), plan, app)
    try:
        yield url, replace(plan, door={**plan.door, "port": urlsplit(url).port})
    finally:
        with suppress(NotFound):  # the test has taken it away itself
            await delete(app)


async def test_callers_are_served_through_an_upgrade() -> None:
    async with served("door", gateways=2) as (url, plan), connect(url) as client:
        over, answers, began = asyncio.Event(), 0, [0.0]

        async def call() -> None:
            nonlocal answers
            while not over.is_set():
                began[0] = time.monotonic()
                assert len(await client.invoke("pids")) == 2
                answers += 1

        async def on_the_line() -> list[Any]:
            async with client.call("count", to=30, seconds=0.1) as line:
                return [item async for item in line]

        async def answered() -> bool:
            return calling.done() or answers > 10

        def told() -> str:
            seconds = time.monotonic() - began[0]
            return f"callers are answered by what is new: {answers} were, the last call began {seconds:.1f} s ago"

        calling, talking = asyncio.ensure_future(call()), asyncio.ensure_future(on_the_line())
        assert await deploy(build(chain.Front), plan, "door") == url
        assert await talking == list(range(30)), "a conversation outlives the upgrade"
        answers = 0
        await until(answered, told, seconds=60.0)
        over.set()
        await calling


async def test_who_is_on_the_line_may_end_when_all_is_taken_away() -> None:
    async with served("ending") as (url, _), connect(url) as client, client.call("count", to=20, seconds=0.1) as line:
        items = aiter(line)
        assert await anext(items) == 0
        deleting = asyncio.ensure_future(delete("ending"))
        assert [item async for item in items] == list(range(1, 20))
        await deleting
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient() as web:
                await web.get(f"{url}/healthz")


async def test_a_gateway_that_stands_still_is_taken_away_with_the_others() -> None:
    async with served("frozen", gateways=2, door={**DOOR, "drain_seconds": 1.0}):
        (app,) = await asyncio.to_thread(status, "frozen")
        pids = [one.pid for chainlet in app.chainlets if chainlet.name == "gateway" for one in chainlet.replicas]
        assert len(pids) == 2
        os.kill(pids[0], signal.SIGSTOP)
        await asyncio.wait_for(delete("frozen"), 120.0)  # its time to leave, and Serve's to end it

        async def gone() -> bool:
            return not any(map(psutil.pid_exists, pids))

        await until(gone, "both processes have ended", seconds=30.0)
        assert not left_of("frozen")


async def test_two_deployments_do_not_share_a_port() -> None:
    async with served("first") as (url, plan):
        with pytest.raises(StartError, match=rf"port {urlsplit(url).port} is that of first; give this one another"):
            await deploy(build(chain.Front), plan, "second")
        async with httpx.AsyncClient() as web:
            assert (await web.get(f"{url}/healthz")).json()["ok"]
