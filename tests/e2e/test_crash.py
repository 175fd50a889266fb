"""Parts of a real deployment are killed while twenty conversations stream: what ends, what goes on, what is left."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from chains.client import connect
from chains.dsl.graph import build
from chains.errors import ChainsError, Unavailable
from chains.policy.routing import Routing
from chains.runtime.target import target_of
from chains.testing.harness import Broken
from tests.e2e.chain_that_crashes import Desk
from tests.e2e.talks import TALKS, Talk, talking, watched

pytest.importorskip("ray")

import ray
from ray._private.node import Node
from ray._private.parameter import RayParams

from chains.runtime.ray_serve import Plan, RaySettings, delete, deploy
from chains.runtime.ray_serve.operate import AppStatus
from tests.e2e.census import Census, census, pids, seen, seen_to

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SETTINGS = RaySettings(grace=5.0, bind="127.0.0.1")
APP = "crash"
SOON = 2.0
HEAD = {"node:__internal_head__": 0.001}
"""What Ray's first node has and no other."""


async def soon(attempt: Callable[[], Awaitable[Any]], since: float) -> float:
    """Attempts until one succeeds; the seconds after `since`. Each of them ends."""
    while True:
        try:
            await watched(attempt())
            return time.monotonic() - since
        except (ChainsError, OSError):
            await asyncio.sleep(0.02)


async def new_call(url: str) -> None:
    async with talking(url, 1) as (talk,):
        await talk.turn("n")
        await talk.end()


@asynccontextmanager
async def unchanged(report: dict[str, Any], app: str = APP) -> AsyncIterator[None]:
    """What is counted before the block is there after it, once things have settled."""
    before = await at_rest(app)
    began = time.monotonic()
    yield
    began = report.pop("killed", began)
    try:
        after = await settled(app, lambda now: now.settled == before.settled)
    except Broken:  # what is another is said below
        after = await census(app)
    report["settled"] = round(time.monotonic() - began, 2)
    report["bytes"] = (before.bytes, after.bytes)
    print(report, before, after)
    assert after.settled == before.settled
    assert after.bytes <= before.bytes + 4 * 2**20


async def at_rest(app: str) -> Census:
    """Nothing runs, and all that is left stays as it is: no connection is just being made or let go."""
    looks = [await census(app)]

    def same(now: Census) -> bool:
        looks.append(now)
        return now.slots == 0 and now.orphans == 0 and all(look.settled == now.settled for look in looks[-4:])

    return await settled(app, same)


async def settled(app: str, holds: Callable[[Census], bool], seconds: float = 90.0) -> Census:
    end = time.monotonic() + seconds
    while not holds(now := await census(app)):
        if time.monotonic() > end:
            raise Broken(f"not within {seconds:g} s: all is at rest; there is {now}")
        await asyncio.sleep(0.2)  # the state is on the cluster
    return now


async def ready(name: str, count: int) -> list[int]:
    """The processes of that many replicas of a chainlet, once they are ready."""
    return pids(await seen_to(APP, lambda now: len(pids(now, name)) == count, f"{count} of {name} are ready"), name)


@pytest.fixture
def far(ray_cluster: None) -> Iterator[Node]:
    """Another node of the cluster, on this machine, with room for one replica."""
    head = ray._private.worker._global_node
    params = RayParams(
        gcs_address=head.gcs_address,
        redis_address=head.redis_address,
        num_cpus=1,
        object_store_memory=100 * 2**20,
        min_worker_port=0,
        max_worker_port=0,
        node_manager_port=0,
        include_log_monitor=False,
    )
    node = Node(params, head=False, shutdown_at_exit=False, spawn_reaper=False)
    yield node
    node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


def plan_of(**changes: Any) -> Plan:
    """Two of everything but the ledger."""
    plan = Plan(
        target_of(build(Desk)),
        path=(str(Path(__file__).parents[2]),),
        replicas={"Desk": 2, "Spell": 2},
        gateway="chains.serve:door",
        gateways=2,
        gateway_resources=HEAD,
        door={"port": 0, "drain_seconds": 5.0},
        settings=SETTINGS,
    )
    return replace(plan, **changes)


@pytest.fixture(scope="module")
def url(ray_cluster: None) -> Iterator[str]:
    """Where the deployment's gateways answer."""
    yield asyncio.run(deploy(build(Desk), plan_of(), APP, timeout=200.0))
    asyncio.run(delete(APP))


async def warm(url: str) -> None:
    """As many conversations as later, so that pools are as large."""
    async with talking(url) as talks:
        for talk in talks:
            await talk.turn("w")
        for talk in talks:
            await talk.end()


async def test_a_replica_in_mid_stream(url: str, tmp_path: Path) -> None:
    await warm(url)
    report: dict[str, Any] = {}
    gate = tmp_path / "gate"
    async with unchanged(report), talking(url) as talks, connect(url) as client:
        where = [await talk.say("a") for talk in talks]
        looks = [asyncio.ensure_future(client.invoke("look", gate=str(gate))) for _ in range(TALKS)]
        victim = where[0]
        assert len(set(where)) == 2
        report["killed"] = killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        newcomer = asyncio.ensure_future(soon(lambda: new_call(url), killed))
        lost = [talk for talk, pid in zip(talks, where, strict=True) if pid == victim]
        assert {await talk.heard() for talk in lost} == {"!Unavailable"}
        report["errors"] = round(time.monotonic() - killed, 3)
        assert victim not in {await talk.say("b") for talk in lost}, "the conversation goes on with its next turn"
        report["next turn"] = round(time.monotonic() - killed, 3)
        rest = [(talk, pid) for talk, pid in zip(talks, where, strict=True) if pid != victim]
        assert [await talk.say("b") for talk, _ in rest] == [pid for _, pid in rest], "others notice nothing"
        report["new call"] = round(await newcomer, 3)
        gate.touch()
        assert victim not in await watched(asyncio.gather(*looks)), "what may be asked again is"
        for talk in talks:
            await talk.end()
    assert report["new call"] < SOON, report


async def test_no_booking_is_made_twice(url: str, tmp_path: Path) -> None:
    report: dict[str, Any] = {}
    file, gate = tmp_path / "ledger", tmp_path / "gate"
    async with unchanged(report), connect(url) as client:
        names = [f"n{number}" for number in range(TALKS)]
        booking = [
            asyncio.ensure_future(client.invoke("book", file=str(file), name=name, gate=str(gate))) for name in names
        ]
        await seen_to(APP, all_wait, "four bookings run, and the others wait for a slot")
        await seen(APP)  # asks the desks too, which by then have read that theirs wait: those may be tried again
        (victim,) = await ready("Ledger", 1)
        report["killed"] = killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        gate.touch()
        ends = await watched(asyncio.gather(*booking, return_exceptions=True), 90.0)
        report["one replica back"] = round(time.monotonic() - killed, 2)
        booked = file.read_text().split()
        assert len(booked) == len(set(booked)), "a booking was made twice"
        done = {name for name, end in zip(names, ends, strict=True) if not isinstance(end, BaseException)}
        assert done <= set(booked) and len(done) == TALKS - 4, ends
        assert all(isinstance(end, int | Unavailable) for end in ends) and victim not in ends


def all_wait(now: AppStatus) -> bool:
    ledgers = [one.load for chainlet in now.chainlets if chainlet.name == "Ledger" for one in chainlet.replicas]
    return any(load and (load["running"], load["queued"]) == (4, TALKS - 4) for load in ledgers)


async def test_a_gateway(url: str) -> None:
    await warm(url)
    report: dict[str, Any] = {}
    async with unchanged(report), talking(url) as talks:
        where = [await talk.say("a") for talk in talks]
        victim, other = await ready("gateway", 2)
        report["killed"] = killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        newcomer = asyncio.ensure_future(soon(lambda: new_call(url), killed))
        ends = [await _said(talk, "b") for talk in talks]
        report["errors"] = round(time.monotonic() - killed, 3)
        assert all(isinstance(end, Unavailable) or end == pid for end, pid in zip(ends, where, strict=True)), ends
        cut = sum(isinstance(end, Unavailable) for end in ends)
        assert 0 < cut < TALKS, "both have callers, and those of one go on"
        report["new call"] = round(await newcomer, 3)
        for talk, end in zip(talks, ends, strict=True):
            if not isinstance(end, Unavailable):
                await talk.end()
        await seen_to(APP, lambda now: bool({*pids(now, "gateway")} - {other, victim}), "another gateway")
        report["back"] = round(time.monotonic() - killed, 2)
    assert report["new call"] < SOON, report


async def _said(talk: Talk, letter: str) -> int | ChainsError:
    try:
        return await talk.say(letter)
    except ChainsError as error:
        return error


async def test_the_controller_of_serve(url: str) -> None:
    await warm(url)
    report: dict[str, Any] = {}
    async with unchanged(report):
        async with talking(url) as talks:
            where = [await talk.say("a") for talk in talks]
            controller = ray.get_actor("SERVE_CONTROLLER_ACTOR", "serve")
            victim = await controller.get_pid.remote()
            report["killed"] = killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            assert [await talk.say("b") for talk in talks] == where, "who is connected notices nothing"
            report["new call"] = round(await soon(lambda: new_call(url), killed), 3)
            back = await watched(controller.get_pid.remote(), 60.0)
            report["back"] = round(time.monotonic() - killed, 2)
            assert back != victim
            assert [await talk.say("c") for talk in talks] == where
            for talk in talks:
                await talk.end()
        (ledger,) = await ready("Ledger", 1)
        os.kill(ledger, signal.SIGKILL)  # the one that is back looks after replicas, and callers hear of it
        report["looked after"] = round(await watched(soon(lambda: _added(url), killed), 60.0), 2)
        assert (await watched(_added(url)))[0] != ledger


async def _added(url: str) -> Any:
    async with connect(url) as client:
        return await client.invoke("add", to=10)


async def test_a_node(far: Node, tmp_path: Path) -> None:
    app = "crash-node"
    head = ray.get_runtime_context().get_node_id()
    nodes = {"Desk": [head], "Ledger": [head], "Spell": [far.node_id, head]}
    settings = replace(SETTINGS, routing=Routing(near=0.0))  # callers on one node, and hops to both
    plan = plan_of(nodes=nodes, resources={"Spell": {"cpu": 1.0}}, settings=settings)
    url = await deploy(build(Desk), plan, app, timeout=200.0)
    report: dict[str, Any] = {}
    try:
        await warm(url)
        async with unchanged(report, app), talking(url) as talks, connect(url) as client:
            where = [await talk.say("a") for talk in talks]
            assert len(set(where)) == 2
            gate = tmp_path / "gate"
            looks = [asyncio.ensure_future(client.invoke("look", gate=str(gate))) for _ in range(TALKS)]
            there = {one.pid for one in psutil.Process(raylet(far)).children(recursive=True)}
            (victim,) = there & set(where)
            report["killed"] = killed = time.monotonic()
            os.kill(raylet(far), signal.SIGKILL)
            far.all_processes["raylet"][0].process.wait()  # as init would: replicas end with their raylet, no zombie
            newcomer = asyncio.ensure_future(soon(lambda: new_call(url), killed))
            lost = [talk for talk, pid in zip(talks, where, strict=True) if pid == victim]
            assert {await talk.heard() for talk in lost} == {"!Unavailable"}
            report["errors"] = round(time.monotonic() - killed, 3)
            assert victim not in {await talk.say("b") for talk in lost}
            report["next turn"] = round(time.monotonic() - killed, 3)
            report["new call"] = round(await newcomer, 3)
            gate.touch()
            assert victim not in await watched(asyncio.gather(*looks))
            for talk in talks:
                await talk.end()
        assert report["new call"] < SOON, report
    finally:
        await delete(app)


def raylet(node: Node) -> int:
    pid: int = node.all_processes["raylet"][0].process.pid
    return pid


async def test_streams_go_straight_from_replica_to_replica(url: str) -> None:
    """Made in one process and summed in another: the one between sees those that came before the two had met."""
    async with connect(url) as client:
        _, total, passed = await watched(client.invoke("add", to=1000))
        assert total == sum(range(1000)) and passed < 500
