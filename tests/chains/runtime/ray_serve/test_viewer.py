"""The cluster's tracing page: found again, brought back, and gone when it is told; gateways send it what they see."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from chains.client import connect
from chains.dsl.graph import build
from chains.errors import StartError
from tests.chains.runtime.ray_serve import chain_on_ray as chain
from tests.chains.wire.hosted import eventually

pytest.importorskip("ray")

from chains.runtime.ray_serve import delete, deploy, viewer
from tests.chains.runtime.ray_serve.test_deploy import plan_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("ray_cluster")]
OPENS = "chains.viewer.process:opened"


@pytest.fixture
def shown(tmp_path: Path, ray_cluster: None) -> Iterator[viewer.Shown]:
    settings = {"host": "127.0.0.1", "port": 0, "traces": str(tmp_path / "t.sqlite")}
    try:
        yield viewer.start(OPENS, settings)
    finally:
        viewer.end()


async def asked(shown: viewer.Shown, path: str = "/healthz") -> Any:
    headers = {"authorization": f"Bearer {shown.key}"} if shown.key else {}
    async with httpx.AsyncClient(base_url=shown.endpoint, headers=headers, timeout=30.0) as client:
        return (await client.get(path)).json()


def process(shown: viewer.Shown) -> psutil.Process:
    """The viewer's own, which listens."""
    port = int(shown.endpoint.rpartition(":")[2])
    found = [one for one in psutil.process_iter() if "chains.viewer" in _line(one) and _has(one, port)]
    return found[0]


def _line(one: psutil.Process) -> str:
    try:
        return " ".join(one.cmdline())
    except psutil.Error:
        return ""


def _has(one: psutil.Process, port: int) -> bool:
    return any(entry.laddr.port == port for entry in one.net_connections("tcp") if entry.status == "LISTEN")


async def test_whoever_comes_later_finds_the_one_that_runs(shown: viewer.Shown) -> None:
    assert await asked(shown) == {"ok": True}
    assert viewer.running() == shown
    assert viewer.start(OPENS, {"host": "127.0.0.1", "port": 1}) == shown
    assert viewer.environment(shown) == {"CHAINS_VIEWER": shown.endpoint, "CHAINS_VIEWER_KEY": ""}
    assert shown.link == f"{shown.endpoint}/"


async def test_it_is_gone_when_it_is_told(shown: viewer.Shown) -> None:
    assert viewer.end() == shown
    assert viewer.running() is None and viewer.end() is None
    with pytest.raises(httpx.HTTPError):
        await asked(shown)


async def test_the_key_is_in_the_link_and_wanted(tmp_path: Path) -> None:
    settings = {"host": "127.0.0.1", "port": 0, "traces": str(tmp_path / "t.sqlite"), "keys": ["sesame"]}
    try:
        shown = viewer.start(OPENS, settings)
        assert shown.link == f"{shown.endpoint}/?key=sesame"
        assert "calls" in await asked(shown, "/api/info")
        async with httpx.AsyncClient(timeout=30.0) as client:
            assert (await client.get(f"{shown.endpoint}/api/info")).status_code == 401
    finally:
        viewer.end()


async def test_what_cannot_be_is_told() -> None:
    with pytest.raises(StartError, match=r"the tracing page did not start: .*no key is set"):
        viewer.start(OPENS, {"host": "0.0.0.0", "port": 0})
    assert viewer.running() is None


async def test_calls_of_several_gateways_are_in_one_store_also_after_it_was_killed(shown: viewer.Shown) -> None:
    plan = plan_of(chain.Front, gateway="chains.serve:door", gateways=2, door={"port": 0}, version="blue")
    url = await deploy(build(chain.Front), plan, "traced", secrets=viewer.environment(shown))

    async def calls(count: int) -> None:
        for _ in range(count):  # each on a connection of its own, which the kernel gives to one of them
            async with connect(url) as client:
                await client.invoke("pids")

    async def kept(count: int) -> None:
        async with asyncio.timeout(60.0):
            while (await asked(shown, "/api/calls"))["total"] < count:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)

    try:
        await calls(12)
        await kept(12)
        info = await asked(shown, "/api/info")
        (one,) = info["chains"]
        assert (one["chain"], one["app"], one["versions"][0]["version"]) == ("Front", "traced", "blue")
        process(shown).kill()
        await calls(3)
        await kept(13)  # what was sent before it was there again may be lost, and is counted
        actor = next(one for one in psutil.process_iter() if "ray::ViewerActor" in _line(one))
        os.kill(actor.pid, signal.SIGKILL)
        await calls(3)
        await eventually(lambda: any("ray::ViewerActor" in _line(one) for one in psutil.process_iter()))
        async with asyncio.timeout(60.0):
            while True:
                try:
                    await calls(1)
                    if (await asked(shown, "/api/calls"))["total"] >= 15:
                        break
                except httpx.TransportError:  # on its way back, on the same port
                    await asyncio.sleep(0.2)
    finally:
        await delete("traced")
