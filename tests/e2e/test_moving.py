"""Conversations that last while their replicas go: fewer of them, and others with new code."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from chains.dsl.graph import Graph, build, load
from chains.runtime.target import target_of
from chains.testing.harness import until
from tests.e2e.chain_that_crashes import NEXT, Desk
from tests.e2e.talks import talking, watched

pytest.importorskip("ray")

from chains.runtime.ray_serve import Plan, RaySettings, delete, deploy
from chains.runtime.ray_serve.scaling import Count, scale
from tests.e2e.census import pids, seen, seen_to

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.usefixtures("ray_cluster")]
SETTINGS = RaySettings(grace=8.0, bind="127.0.0.1")


def plan_of(graph: Graph, **changes: object) -> Plan:
    plan = Plan(
        target_of(graph),
        path=(str(Path(__file__).parents[2]),),
        gateway="chains.serve:door",
        gateways=2,
        door={"port": 0, "drain_seconds": 40.0},
        settings=SETTINGS,
    )
    return replace(plan, **changes)  # type: ignore[arg-type]


async def ended(*processes: int) -> None:
    async def none() -> bool:
        return not any(map(psutil.pid_exists, processes))

    await until(none, lambda: f"{[*filter(psutil.pid_exists, processes)]} of {processes} have ended", 120.0)


async def test_fewer_replicas_a_conversation_moves_between_two_turns() -> None:
    app, graph = "fewer", build(Desk)
    url = await deploy(graph, plan_of(graph, replicas={"Spell": 2}), app, timeout=200.0)
    try:
        async with talking(url, 10) as talks:
            homes = [{await talk.say("h")} for talk in talks]  # all at once: half of them have the one, half the other
            for talk, home in zip(talks, homes, strict=True):
                talk.tell(NEXT)
                assert await talk.heard() == NEXT
                home |= {await talk.turn("t") for _ in range(50)}
            assert all(len(home) == 1 for home in homes), "a conversation keeps its replica while it can"
            where = [await talk.say("a") for talk in talks]
            assert len(set(where)) == 2
            await asyncio.to_thread(scale, app, {"Spell": Count(1, 1)})
            now = await seen_to(app, lambda now: len(pids(now, "Spell")) == 1, "one speller is left")
            (stays,) = pids(now, "Spell")
            (leaves,) = set(where) - {stays}
            assert [await talk.say("b") for talk in talks] == where, "streams that are under way go on"
            late = talks[where.index(leaves)]  # its turn lasts longer than the grace
            for talk in talks:
                if talk is not late:
                    talk.tell(NEXT)
                    assert await talk.heard() == NEXT
                    assert await talk.say("c") == stays, "the next turn is on the one that stays"
            assert await late.heard() in ("!Cancelled", "!Unavailable"), "and ends then"
            assert await late.say("d") == stays
            await ended(leaves)
            for talk in talks:
                await talk.end()
    finally:
        await delete(app)


VERSIONED = """
from collections.abc import AsyncIterator
from chains import chainlet, Resources, depends

VERSION = {}

@chainlet(resources=Resources(cpu=0.1))
class Voice:
    async def speak(self, letters: AsyncIterator[str]) -> AsyncIterator[str]:
        async for letter in letters:
            yield letter

@chainlet(entry=True, resources=Resources(cpu=0.1))
class Fore:
    voice: Voice = depends(Voice)

    async def talk(self, letters: AsyncIterator[str]) -> AsyncIterator[str]:
        async for letter in self.voice.speak(letters):
            yield f"{{VERSION}}:{{letter}}:400000"
"""


async def test_new_code_under_constant_load_fails_no_call(tmp_path: Path) -> None:
    app, file = "versions", tmp_path / "versioned.py"
    file.write_text(VERSIONED.format(1))
    settings = replace(SETTINGS, grace=40.0)  # so long a conversation that is one hop may go on
    plan = plan_of(load(str(file)), replicas={"Fore": 2, "Voice": 2}, settings=settings)
    url = await deploy(load(str(file)), plan, app, timeout=200.0)
    over, seen_versions = asyncio.Event(), list[int]()

    async def calls() -> None:
        while not over.is_set():
            async with talking(url, 1) as (talk,):
                seen_versions.append(await talk.say("x"))
                await talk.end()

    def none_failed() -> None:
        for task in load_:
            assert not task.done(), f"a call failed: {task.exception()!r}"

    async def spoken(version: int) -> None:
        """Return once ten calls have met that version."""

        async def met() -> bool:
            return seen_versions.count(version) >= 10 or any(task.done() for task in load_)

        await until(met, lambda: f"calls meet version {version}; they met {Counter(seen_versions)}", 60.0)
        none_failed()

    try:
        async with talking(url, 10) as old:
            assert {await talk.say("a") for talk in old} == {1}
            before = {pid for name in ("gateway", "Fore", "Voice") for pid in pids(await seen(app), name)}
            load_ = [asyncio.ensure_future(calls()) for _ in range(4)]
            await spoken(1)
            file.write_text(VERSIONED.format(2))
            port = urlsplit(url).port
            kept = replace(plan, door={**plan.door, "port": port})
            upgrading = asyncio.ensure_future(deploy(load(str(file)), kept, app, timeout=200.0))
            while 2 not in seen_versions:
                assert {await talk.say("b") for talk in old} == {1}
                none_failed()
                assert not upgrading.done() or upgrading.result() == url
                await asyncio.sleep(0.1)
            for talk in old:
                assert await talk.say("c") == 1, "who was on the line stays where it was"
                await talk.end()
            assert await watched(upgrading, 120.0) == url
        await ended(*before)
        async with talking(url, 20) as new:
            assert {await talk.say("n") for talk in new} == {2}
            for talk in new:
                await talk.end()
        await spoken(2)
        over.set()
        await watched(asyncio.gather(*load_))
    finally:
        over.set()
        await delete(app)
