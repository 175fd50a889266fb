"""Deploying onto a real Ray: what fails says why and leaves nothing, an upgrade fails no call."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chains.dsl.graph import build, load
from chains.errors import NotFound, StartError
from chains.runtime.target import target_of
from chains.testing.harness import until
from tests.chains.runtime.ray_serve import chain_on_ray as chain

pytest.importorskip("ray")

from ray import serve
from ray.experimental.internal_kv import _internal_kv_list

from chains.runtime.ray_serve import Attached, Plan, RaySettings, delete, deploy
from chains.runtime.ray_serve.notes import secrets_of
from chains.runtime.ray_serve.operate import status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("ray_cluster")]
SETTINGS = RaySettings(grace=5.0, bind="127.0.0.1")


def plan_of(entry: type, **changes: Any) -> Plan:
    return replace(Plan(target_of(build(entry)), settings=SETTINGS), **changes)


@asynccontextmanager
async def deployed(entry: type, app: str, **changes: Any) -> AsyncIterator[Attached]:
    """The chain as an application that stands for as long as the block runs, and the way to it."""
    await deploy(build(entry), plan_of(entry, **changes), app)
    try:
        async with Attached(build(entry), app, settings=SETTINGS) as runtime:
            yield runtime
    finally:
        await delete(app)


def left_of(app: str) -> list[bytes]:
    return [key for key in _internal_kv_list(b"", namespace=b"chains") if app.encode() in key]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (chain.Raises, r"Worker#\w+ did not start: RuntimeError: the weights are not there[\s\S]*chain_on_ray.py"),
        (chain.Exits, r"fails-Exits did not start: Worker: its process died while it started"),
    ],
)
async def test_what_does_not_start_says_why_and_leaves_nothing(entry: type, why: str) -> None:
    app = f"fails-{entry.__name__}"
    with pytest.raises(StartError, match=why) as caught:
        await deploy(build(entry), plan_of(entry), app)
    assert "Traceback" not in str(caught.value) and "RayTaskError" not in str(caught.value)
    assert app not in serve.status().applications and not left_of(app)


async def test_what_finds_no_place_says_what_it_waits_for() -> None:
    with pytest.raises(StartError, match=r"no place for Greedy \(0\.1 CPUs, 2 GPUs B200, 2GiB of"):
        await deploy(build(chain.Greedy), plan_of(chain.Greedy), "greedy", timeout=2.0)
    assert "greedy" not in serve.status().applications


async def test_what_is_deleted_while_it_starts_is_said_to_be() -> None:
    deploying = asyncio.ensure_future(deploy(build(chain.Greedy), plan_of(chain.Greedy), "fleeting"))

    async def there() -> bool:
        return "fleeting" in (await asyncio.to_thread(serve.status)).applications

    await until(there, "the application", seconds=60.0)
    await delete("fleeting")
    with pytest.raises(StartError, match="fleeting was taken away while it started"):
        await asyncio.wait_for(deploying, 60.0)


class Calls:
    """One call after the other until it is `over`, and which processes answered each: the front's, and the worker's."""

    def __init__(self, runtime: Attached) -> None:
        self.answered: list[tuple[int, int]] = []
        self.over = asyncio.Event()
        self._runtime = runtime
        self._began = time.monotonic()
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while not self.over.is_set():
            self._began = time.monotonic()
            async with self._runtime.open_call():
                front, worker = await self._runtime.entry.pids()
                self.answered.append((front, worker))

    def __str__(self) -> str:
        seconds = time.monotonic() - self._began
        last = f"has ended: {self.task}" if self.task.done() else f"has been open for {seconds:.1f} s"
        return f"{len(self.answered)} calls by front and worker: {dict(Counter(self.answered))}; the last {last}"


async def test_an_upgrade_fails_no_call_and_cuts_no_stream() -> None:
    async with deployed(chain.Front, "upgraded", replicas={"Worker": 2}) as runtime:

        def listed() -> set[int]:
            assert runtime._reach is not None
            return {one.pid for listed in runtime._reach.listed.values() for one in listed.values()}

        async def met() -> bool:
            return calls.task.done() or bool(len(listed()) == 3 and calls.answered)

        async def moved() -> bool:
            """None of those of before are left, and a call has met two others; or one has failed."""
            return calls.task.done() or not before & (listed() | {*calls.answered[-1]})

        async def stream() -> list[int]:
            async with runtime.open_call():
                return [n async for n in runtime.entry.count(30, 0.1)]

        calls, streaming = Calls(runtime), asyncio.ensure_future(stream())
        await until(met, lambda: f"calls meet three replicas; listed are {listed()}; {calls}", seconds=60.0)
        before = listed()
        await deploy(build(chain.Front), plan_of(chain.Front, replicas={"Worker": 2}), "upgraded")
        assert await streaming == list(range(30))
        await until(moved, lambda: f"calls meet others than {before}; listed are {listed()}; {calls}", seconds=60.0)
        calls.over.set()
        await calls.task


CHANGING = """
from chains import chainlet, Resources, depends

@chainlet(resources=Resources(cpu=0.1))
class Back:
    def __init__(self) -> None:
        {}

    async def say(self) -> str:
        return "said"

@chainlet(entry=True, resources=Resources(cpu=0.1))
class Fore:
    back: Back = depends(Back)

    async def say(self) -> str:
        return await self.back.say()
"""


async def until_given_up(app: str) -> None:
    """Serve has tried as often as it does."""

    async def failed() -> bool:
        return (await asyncio.to_thread(serve.status)).applications[app].status == "DEPLOY_FAILED"

    await until(failed, "Serve gives up", seconds=120.0)


async def test_an_upgrade_that_does_not_start_leaves_what_runs(tmp_path: Path) -> None:
    file = tmp_path / "changing.py"
    file.write_text(CHANGING.format("pass"))
    before = load(str(file))
    plan = Plan(target_of(before), settings=SETTINGS)
    await deploy(before, plan, "stays", secrets={"TOKEN": "old"})
    try:
        async with Attached(before, "stays", settings=SETTINGS) as runtime, runtime.open_call():
            file.write_text(CHANGING.format("raise ValueError('of the new kind')"))
            with pytest.raises(StartError, match=r"Back#\w+ did not start: ValueError: of the new kind\n") as caught:
                await deploy(load(str(file)), plan, "stays", secrets={"OTHER": "new"})
            assert 'changing.py", line' in str(caught.value) and str(caught.value).count("did not start") == 1
            assert str(caught.value).endswith("deploy its former file again to go back, or this one once it is mended")
            assert secrets_of("stays", ["TOKEN", "OTHER"]) == {"TOKEN": "old"}
            await until_given_up("stays")
            (app,) = await asyncio.to_thread(status, "stays")
            assert app.why.startswith("Back#") and "did not start: ValueError: of the new kind" in app.why
            for _ in range(20):
                assert await runtime.entry.say() == "said"
                await asyncio.sleep(0.05)
            file.write_text(CHANGING.format("pass"))
            await deploy(before, plan, "stays")
            assert await runtime.entry.say() == "said" and secrets_of("stays", ["TOKEN"]) == {}
    finally:
        await delete("stays")


async def test_nothing_is_left_of_what_was_deleted() -> None:
    async with deployed(chain.Front, "gone"):
        assert left_of("gone")
    assert not left_of("gone") and "gone" not in serve.status().applications
    with pytest.raises(NotFound, match="no chain gone runs here"):
        await delete("gone")
