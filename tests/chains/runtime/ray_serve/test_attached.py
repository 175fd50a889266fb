"""A way to a running application: it ends by itself, and needs the deployment's token."""

from __future__ import annotations

import asyncio
import os

import pytest

from chains.dsl.graph import build
from chains.errors import Cancelled, NotFound, Unauthenticated
from chains.runtime.nodes import Place, RemoteNode
from chains.timing import LoopClock
from chains.wire.settings import WireSettings, new_token
from tests.chains.runtime.ray_serve import chain_on_ray as chain
from tests.chains.wire.hosted import eventually

pytest.importorskip("ray")

from chains.runtime.ray_serve import Attached
from tests.chains.runtime.ray_serve.test_deploy import SETTINGS, deployed
from tests.e2e.census import held

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("ray_cluster")]


async def test_leaving_ends_what_was_called_from_here_and_nothing_else() -> None:
    async with deployed(chain.Front, "attached") as runtime, runtime.open_call():
        async with Attached(build(chain.Front), "attached", settings=SETTINGS) as other, other.open_call():
            stream = aiter(other.entry.count(1000, 0.01))
            assert await anext(stream) == 0
        with pytest.raises(Cancelled):
            await asyncio.wait_for(_rest(stream), 30.0)
        assert len(await runtime.entry.pids()) == 2


async def test_what_is_not_there_is_said_at_once() -> None:
    with pytest.raises(NotFound, match=r"no chain is deployed as nobody|nothing is deployed on this cluster"):
        async with asyncio.timeout(30.0), Attached(build(chain.Front), "nobody", settings=SETTINGS):
            pass


async def test_a_way_that_does_not_open_leaves_nothing() -> None:
    async with deployed(chain.Front, "unopened"):
        runtime = Attached(build(chain.Front), "unopened", settings=SETTINGS)
        before = held(os.getpid())
        entering = asyncio.ensure_future(runtime.__aenter__())
        await eventually(lambda: runtime._reach is not None)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert held(os.getpid()) == before and runtime._reach is None
        assert {one.state for one in runtime.load()} <= {"dead"}, "all connections are given up"


async def test_who_has_not_the_token_calls_nobody() -> None:
    async with deployed(chain.Front, "locked") as runtime:
        (remote,) = runtime._nodes["Worker"].remotes.values()
        stranger = RemoteNode(remote.node, WireSettings(new_token()), LoopClock(), runtime.recorder.add)
        stranger.update({remote.name: Place(remote.address)})
        with pytest.raises(Unauthenticated, match="refuses this process's token"):
            await stranger.remotes[remote.name].reached()
        await stranger.close()


async def _rest(stream: object) -> None:
    async for _ in stream:  # type: ignore[attr-defined]
        pass
