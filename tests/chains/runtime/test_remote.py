"""The caller's side of a remote hop: large values, lent streams that are read ahead, what is given back, accounts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from chains.wire.settings import WireSettings, new_token
from tests.chains.wire.hosted import Caller, calling, hosted

SETTINGS = WireSettings(new_token())


@pytest.fixture
async def caller() -> AsyncIterator[Caller]:
    async with hosted(SETTINGS) as replica, calling(replica.server.address, SETTINGS) as made:
        await made.remote.reached()
        yield made


async def test_large_values_go_and_come(caller: Caller) -> None:
    array = np.random.default_rng(1).random(1_000_000)
    async with caller.open_call():
        results = await asyncio.gather(*(caller.probe.scale(array, float(n)) for n in range(4)), caller.probe.echo(1))
    assert all(np.array_equal(result, array * n) for n, result in enumerate(results[:4]))
    assert len(caller.remote.carried) == 0


async def test_times_add_up_and_the_wire_is_what_is_left(caller: Caller) -> None:
    async with caller.open_call() as call:
        await caller.probe.echo(1)
        [hop] = caller.recorder.find(call.id).hops  # type: ignore[union-attr]
    parts = hop.parts()
    assert sum(parts.values()) == pytest.approx(hop.closed - hop.opened)
    assert parts["wire"] > 0 and parts["serialise"] > 0 and hop.replica == "Probe#0" and hop.outcome == "done"
