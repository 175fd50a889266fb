"""A stream argument whose items come from the caller, from where they are made, and in turns."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.chains.runtime.past import Past, passing
from tests.chains.wire.hosted import eventually


@pytest.fixture
async def past() -> AsyncIterator[Past]:
    async with passing() as made:
        yield made
        await eventually(made.at_rest)


async def test_what_the_caller_has_comes_before_what_is_claimed(past: Past) -> None:
    async with past.a.open_call():
        stream = past.maker.gated_numbers(60, 30)
        assert await anext(stream) == 0
        await eventually(lambda: len(stream._channel._items) == 29)
        doubled = past.reader.doubled(stream)
        got = [await anext(doubled) for _ in range(29)]
        await past.maker.open_gate()
        got += [n async for n in doubled]
        assert got == [2 * n for n in range(1, 60)]
        assert past.passed == 30


async def test_two_streams_of_one_call_are_claimed_each_by_itself(past: Past) -> None:
    async with past.a.open_call():
        totals = [past.reader.total(past.maker.paced(n, 0.001)) for n in (10, 20, 30)]
        assert [await total for total in totals] == [45, 190, 435]
        assert past.passed < 60


async def test_credit_goes_to_whoever_sent(past: Past) -> None:
    async with past.a.open_call():
        stream = past.maker.gated_numbers(20, 5)
        await eventually(lambda: len(stream._channel._items) == 5)
        total = past.reader.total(stream)
        await eventually(lambda: not stream._channel._items)
        await past.maker.open_gate()
        assert await total == sum(range(20))
        assert stream._channel.queued == 0
