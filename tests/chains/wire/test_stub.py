"""A connection is kept, ends with what was on it, and is made anew under another epoch."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from chains.errors import Unavailable
from chains.wire.settings import WireSettings, new_token
from chains.wire.stub import Connection
from tests.chains.wire.hosted import calling, eventually, hosted

SETTINGS = WireSettings(new_token())


async def test_all_calls_share_a_connection() -> None:
    async with hosted(SETTINGS) as replica, calling(replica.server.address, SETTINGS) as caller, caller.open_call():
        assert await asyncio.gather(*(caller.probe.echo(n) for n in range(8))) == list(range(8))
        assert len(replica.server._links) == 1 and caller.remote._connection.epoch == 1


async def test_nobody_listens() -> None:
    async with calling("127.0.0.1:9", SETTINGS) as caller, caller.open_call():
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9"):
            await caller.remote.reached()
        assert not caller.remote.open
        with pytest.raises(Unavailable, match="no replica of Probe takes calls now"):
            await caller.probe.echo(1)


async def test_a_broken_connection_is_made_anew_and_ends_what_was_on_it() -> None:
    async with hosted(SETTINGS) as first:
        address = first.server.address
        async with calling(address, SETTINGS) as caller, caller.open_call():
            await caller.probe.echo(1)
            accepted = caller.probe.gated(1)
            await eventually(lambda: bool(caller.remote.load().running))
            await first.server.stop(0.0)
            with pytest.raises(Unavailable, match="went away"):
                await accepted
            await eventually(lambda: not (first.host.replica.running))
            async with hosted(replace(SETTINGS, bind=address)):
                await eventually(lambda: caller.remote.open)
                assert await caller.probe.echo(2) == 2
            assert caller.remote._connection.epoch > 1


async def test_closed_is_closed() -> None:
    async with hosted(SETTINGS) as replica:
        connection = Connection(replica.server.address, SETTINGS, lambda kind, sent: None)
        await connection.live()
        await connection.close()
        with pytest.raises(Unavailable):
            await connection.live()
