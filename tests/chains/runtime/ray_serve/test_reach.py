"""Calls that find no replica: they wait for the one that is on its way, or wake the one that sleeps."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from chains.errors import Unavailable
from tests.chains.runtime.ray_serve import chain_on_ray as chain
from tests.chains.wire.hosted import eventually

pytest.importorskip("ray")

from tests.chains.runtime.ray_serve.test_deploy import deployed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("ray_cluster")]


async def test_a_call_wakes_what_sleeps() -> None:
    async with deployed(chain.Waking, "sleeps") as runtime:
        await eventually(lambda: runtime.health().ok)
        assert not runtime._nodes["Sleeper"].remotes
        async with runtime.open_call():
            assert await asyncio.gather(*(runtime.entry.say(f"{n}") for n in range(5))) == ["0", "1", "2", "3", "4"]
            assert await runtime.handle("Sleeper").say("awake") == "awake"


async def test_calls_wait_for_the_replica_that_replaces_a_dead_one() -> None:
    async with deployed(chain.Front, "replaced") as runtime:
        async with runtime.open_call():
            before = await runtime.handle("Worker").pid()
            os.kill(before, signal.SIGKILL)
            after = await asyncio.gather(*(runtime.handle("Worker").pid() for _ in range(20)))
            assert len(set(after)) == 1 and before not in after
        async with runtime.open_call():
            assert (await runtime.entry.pids())[1] == after[0], "the entry's way leads there too"


async def test_patience_ends() -> None:
    async with deployed(chain.Front, "impatient") as runtime:
        node = runtime._nodes["Worker"]
        node.patience = 0.2
        assert runtime._reach is not None
        await runtime._reach.book.close()
        async with runtime.open_call():
            os.kill(await runtime.handle("Worker").pid(), signal.SIGKILL)
            await eventually(lambda: not node.serves)
            with pytest.raises(Unavailable, match=r"no replica of Worker came within 0\.2 s"):
                await runtime.handle("Worker").pid()
            assert node.waiting == 0
