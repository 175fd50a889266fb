"""A burst leaves every call either answered or refused."""

from __future__ import annotations

import random

import pytest

from benchmarks.burst import BURST, CALM, Model, Phase, load
from benchmarks.peers.ours import started
from chains.dsl.graph import build


@pytest.mark.slow
async def test_each_call_of_a_burst_is_answered_or_refused() -> None:
    async with started("processes", build(Model)) as runtime, runtime.open_call():
        calm = await load(runtime.entry, CALM, 2.0, random.Random(0))
        burst = await load(runtime.entry, CALM * BURST, 2.0, random.Random(1))
    assert calm.wrong == burst.wrong == []
    assert len(calm.firsts) > len(calm.refused)
    assert len(burst.refused) > len(burst.firsts) > 0


async def test_what_is_neither_answered_nor_refused_is_kept_as_wrong() -> None:
    class Short:
        async def answer(self, times: int) -> object:
            for number in range(times - 1):
                yield number

    phase: Phase = await load(Short(), 1000.0, 0.01, random.Random(0))
    assert phase.wrong and "9 tokens of 10" in phase.wrong[0]
