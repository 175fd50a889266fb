"""The replicas of a chainlet elsewhere, after an address book that changes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from chains.errors import DeadlineExceeded, Unavailable
from chains.runtime.nodes import Place
from chains.wire.settings import WireSettings, new_token
from tests.chains.wire.hosted import calling, eventually, hosted


async def test_a_replica_that_left_the_book_ends_what_it_runs_and_gets_no_more() -> None:
    settings = WireSettings(new_token())
    async with hosted(settings) as first, calling(first.server.address, settings) as caller, caller.open_call():
        stream = caller.probe.endless(8)
        reader = aiter(stream)
        assert await anext(reader)
        left = caller.remote
        caller.target.update({})
        assert caller.target.count == 0
        assert await anext(reader)
        assert left.carried
        await stream.aclose()
        await eventually(lambda: left.load().state == "dead")


async def test_a_replica_that_stays_keeps_its_connection_and_one_that_moved_gets_a_new_one() -> None:
    settings = WireSettings(new_token())
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(hosted(settings)) for _ in range(2)]
        caller = await stack.enter_async_context(calling(first.server.address, settings))
        await stack.enter_async_context(caller.open_call())
        await caller.remote.reached()
        caller.target.update({"Probe#0": Place(first.server.address), "Probe#1": Place(second.server.address)})
        assert caller.target.remotes["Probe#0"] is caller.remote
        caller.target.update({"Probe#0": Place(second.server.address)})
        assert caller.target.remotes["Probe#0"] is not caller.remote
        await caller.target.remotes["Probe#0"].reached()
        await asyncio.wait_for(caller.probe.echo(1), 5.0)
        await caller.target.close()


async def test_a_call_that_finds_nobody_waits_for_whoever_comes() -> None:
    settings = WireSettings(new_token())
    async with hosted(settings) as first, calling(first.server.address, settings) as caller, caller.open_call():
        target, missed = caller.target, list[int]()
        target.patience, target.missing = 30.0, lambda: missed.append(target.waiting)
        target.update({})
        waiting = [asyncio.ensure_future(_said(caller.probe.echo(n))) for n in range(3)]
        await eventually(lambda: target.waiting == 3)
        target.update({"Probe#1": Place(first.server.address)})
        assert await asyncio.gather(*waiting) == [0, 1, 2]
        assert (target.waiting, missed) == (0, [1, 2, 3]), "each is told of"
        await target.close()


async def test_patience_and_the_call_s_own_deadline_end_the_wait() -> None:
    settings = WireSettings(new_token())
    async with hosted(settings) as first, calling(first.server.address, settings) as caller:
        caller.target.patience = 0.05
        caller.target.update({})
        async with caller.open_call():
            with pytest.raises(Unavailable, match=r"no replica of Probe came within 0\.05 s"):
                await caller.probe.echo(1)
        caller.target.patience = 30.0
        async with caller.open_call(deadline_s=0.05):
            with pytest.raises(DeadlineExceeded):
                await caller.probe.echo(1)
        await eventually(lambda: caller.target.waiting == 0)


async def _said(result: Any) -> Any:
    return await result
