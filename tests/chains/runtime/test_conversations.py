"""What every runtime's calls have in common: their ids, their record, and work that outlives them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chains.call import Hop
from chains.errors import SettingError
from chains.runtime.conversations import Conversations
from chains.spans import Recorder
from chains.testing import FakeClock, settle


def conversations() -> Conversations:
    clock = FakeClock()
    return Conversations(clock, Recorder(clock))


async def test_an_id_is_open_once() -> None:
    mine = conversations()
    async with mine.open_call(id="a"):
        with pytest.raises(SettingError, match="open already"):
            async with mine.open_call(id="a"):
                pass
    async with mine.open_call(id="a") as call:
        assert mine.recorder.find("a") is not None and not call.cancelled
    assert call.cancelled and mine._calls == {}


async def test_work_after_a_hop_runs_in_a_call_of_its_own() -> None:
    mine, seen = conversations(), []
    async with mine.open_call(tenant="clinic") as call:
        hop = Hop(call, "Node", "run", None)

        async def work() -> None:
            seen.append(next(iter(set(mine._calls) - {call.id})))

        hop.after(work)
        mine._after(hop)
    await settle()
    assert seen == [f"{call.id}-after-{hop.id}"] and not mine._afters


async def test_open_calls_are_cancelled_at_the_end() -> None:
    mine = conversations()
    async with mine.open_call() as call:
        mine._cancel_calls("the runtime stopped")
        assert call.reason == "the runtime stopped"
        await mine._settle(0.0)
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    "names", [{"tenant": 5}, {"tenant": "\ud800"}, {"id": "a\nb"}, {"affinity": "x" * 1025}, {"id": b"call"}]
)
async def test_names_that_could_not_travel_are_refused_in_every_runtime(names: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="is no name"):
        async with conversations().open_call(**names):
            pass
