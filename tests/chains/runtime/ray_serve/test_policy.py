"""The policy at work on a real Ray: replicas come with the load and go with it, and no call is lost on the way."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from chains.dsl.graph import build
from chains.errors import Unavailable
from chains.runtime.target import target_of
from chains.testing.harness import Broken, until
from tests.chains.runtime.ray_serve import chain_that_scales as chain

pytest.importorskip("ray")


import ray
from ray.exceptions import RayError
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from chains.runtime.ray_serve import Attached, Plan, RaySettings, delete, deploy
from chains.runtime.ray_serve.operate import application
from chains.runtime.ray_serve.scaling import Count, scale

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(600)]
SETTINGS = RaySettings(grace=120.0, patience=120.0, bind="127.0.0.1")
LONG = 180.0
"""Seconds that a busy machine has for a start or a stop."""


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> None:
    """Why a connection ended is in the log of what fails."""
    caplog.set_level(logging.INFO, "chains")


@asynccontextmanager
async def deployed(entry: type, app: str) -> AsyncIterator[Attached]:
    graph = build(entry)
    await deploy(graph, Plan(target_of(graph), settings=SETTINGS), app)
    try:
        async with Attached(graph, app, settings=SETTINGS) as runtime:
            yield runtime
    finally:
        await delete(app)


def count_of(app: str, name: str) -> int:
    """How many replicas Serve is to have of it."""
    return int(application(app)["deployments"][name]["target_num_replicas"])


async def has(runtime: Attached, name: str, count: int) -> float:
    """Wait until the address book has that many; the seconds that it took."""
    assert runtime._reach is not None
    listed = runtime._reach.listed

    async def check() -> bool:
        return len(listed[name]) == count

    return await until(check, lambda: f"{name} has {count} replicas; listed are {[*listed[name]]}", LONG)


async def load(
    runtime: Attached, calls: int, call: Callable[[], Awaitable[int]], enough: Callable[[set[int]], bool]
) -> set[int]:
    """Keep that many calls under way until those that have answered are enough: who they were."""
    seen: set[int] = set()

    async def one() -> None:
        while not enough(seen):
            async with runtime.open_call():  # a conversation of its own: one and the same stays where it is
                seen.add(await call())

    try:
        await asyncio.wait_for(asyncio.gather(*(one() for _ in range(calls))), LONG)
    except TimeoutError:
        raise Broken(f"not within {LONG:g} s: enough have answered; {seen} have, there are {runtime.load()}") from None
    return seen


def three(pids: set[int]) -> bool:
    """All the replicas that there may be; more when one of them was replaced meanwhile."""
    return len(pids) >= 3


async def test_replicas_come_with_the_load_and_go_with_it() -> None:
    async with deployed(chain.Front, "grows") as runtime:
        assert count_of("grows", "Front") == 1 and count_of("grows", "Still") == 2
        began = time.monotonic()
        await load(runtime, 12, lambda: runtime.entry.last(0.2), three)
        print(f"\n1 to 3 replicas in {time.monotonic() - began:.1f} s")
        print(f"3 to 1 in {await has(runtime, 'Front', 1):.1f} s")
        assert count_of("grows", "Still") == 2


async def test_calls_wake_what_sleeps_and_all_are_answered() -> None:
    async with deployed(chain.Front, "wakes") as runtime:
        assert count_of("wakes", "Asleep") == 0

        async def wake() -> int:
            async with runtime.open_call():
                pid: int = await runtime.entry.wake()
                return pid

        for again in ("first", "again"):
            began = time.monotonic()
            pids = await asyncio.wait_for(asyncio.gather(*(wake() for _ in range(20))), LONG)
            print(f"\n{again}: 20 callers answered in {time.monotonic() - began:.1f} s")
            assert len(pids) == 20
            print(f"asleep after {await has(runtime, 'Asleep', 0):.1f} s")


async def test_a_replica_that_is_taken_away_loses_no_stream() -> None:
    """Three conversations stand on three replicas; two of those are taken away while nobody speaks."""
    async with deployed(chain.Front, "shrinks") as runtime:
        await load(runtime, 12, lambda: runtime.entry.last(0.2), three)
        going: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        opened: list[int] = []

        async def said() -> AsyncIterator[int]:
            yield -1
            await asyncio.shield(going)
            for number in range(50):
                yield number

        async def converse() -> list[int]:
            async with runtime.open_call():
                heard = aiter(runtime.entry.echo(said()))
                opened.append(await anext(heard))
                return [item async for item in heard]

        talks = [asyncio.create_task(converse()) for _ in range(9)]

        async def all_open() -> bool:
            return len(opened) == 9

        await until(all_open, "all conversations are open", LONG)
        assert len(set(opened)) > 1
        await has(runtime, "Front", 1)  # by the policy: silent streams are no work
        going.set_result(None)
        assert await asyncio.wait_for(asyncio.gather(*talks), LONG) == [[-1, *range(50)]] * 9


async def test_a_count_that_is_set_by_hand_stays() -> None:
    async with deployed(chain.Front, "fixed") as runtime:
        await asyncio.to_thread(scale, "fixed", {"Front": Count.read("2"), "Asleep": Count.read("1")})
        await has(runtime, "Front", 2)
        calls = 0

        def enough(_: set[int]) -> bool:
            nonlocal calls
            calls += 1
            return calls > 400

        await load(runtime, 20, lambda: runtime.entry.last(0.2), enough)  # several seconds, work for five
        assert count_of("fixed", "Front") == 2 and count_of("fixed", "Asleep") == 1
        await has(runtime, "Front", 2)


async def test_what_stands_behind_the_entry_grows_before_it_has_work() -> None:
    """Once it is known that each who talks has the other one speak, replicas come while twelve only listen."""
    async with deployed(chain.Ahead, "ahead") as runtime:

        async def nothing() -> AsyncIterator[int]:
            for _ in ():
                yield 0

        calls = 0

        def enough(_: set[int]) -> bool:
            nonlocal calls
            calls += 1
            return calls > 120  # twenty seconds, on a machine that is not busy

        await load(runtime, 3, lambda: runtime.entry.talk(nothing(), 0.5), enough)
        assert count_of("ahead", "Behind") < 3
        speaking: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def listening() -> AsyncIterator[int]:
            yield 1
            await asyncio.shield(speaking)

        async def talk() -> int:
            async with runtime.open_call():
                pid: int = await runtime.entry.talk(listening(), 0.5)
                return pid

        talks = [asyncio.create_task(talk()) for _ in range(12)]
        await has(runtime, "Behind", 3)

        async def up() -> bool:
            return sum(one.node == "Behind" and one.state == "ready" for one in runtime.load()) == 3

        await until(up, "three replicas stand ready", LONG)
        assert not any(one.running or one.queued for one in runtime.load() if one.node == "Behind")
        speaking.set_result(None)
        assert len(set(await asyncio.wait_for(asyncio.gather(*talks), LONG))) == 3


async def test_a_controller_that_begins_anew_finds_the_count_and_goes_on() -> None:
    async with deployed(chain.Front, "anew") as runtime:
        controller: Any = ray.get_actor(SERVE_CONTROLLER_NAME, SERVE_NAMESPACE)
        before = ray.get(controller.get_pid.remote())
        counts: set[int] = set()
        again = asyncio.Event()

        async def restart() -> None:
            os.kill(before, signal.SIGKILL)

            async def other() -> bool:
                try:
                    now = await asyncio.wrap_future(controller.get_pid.remote().future())
                    counts.add(await asyncio.to_thread(count_of, "anew", "Front"))
                except (RayError, Unavailable):
                    return False
                return bool(now != before)

            await until(other, lambda: f"another controller than {before} answers; counts were {counts}", LONG)
            again.set()

        calls = 0

        def enough(pids: set[int]) -> bool:
            nonlocal calls
            calls += again.is_set()
            return calls > 200 or (killing.done() and not again.is_set())  # it failed, and is asked below

        seen = await load(runtime, 12, lambda: runtime.entry.last(0.2), three)
        killing = asyncio.create_task(restart())
        after = await load(runtime, 12, lambda: runtime.entry.last(0.2), enough)
        await killing
        assert after <= seen and len(after) == 3, "those of before go on"
        assert counts == {3} and count_of("anew", "Front") == 3
        await has(runtime, "Front", 1)
