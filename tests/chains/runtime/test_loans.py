"""The caller's part: what goes past it, what it gets back, and what it does without those who cannot claim."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random

import pytest

from chains.errors import Cancelled, DeadlineExceeded
from chains.spans import critical_path
from tests.chains.runtime.past import SETTINGS, Past, passing
from tests.chains.wire.hosted import eventually


@pytest.fixture
async def past() -> AsyncIterator[Past]:
    async with passing() as made:
        yield made
        await eventually(made.at_rest)


async def test_the_items_go_past_the_caller(past: Past) -> None:
    async with past.a.open_call():
        stream = past.maker.gated_numbers(3000, 1)
        total = past.reader.total(stream)
        await eventually(lambda: stream.timing.items_out == 1)
        assert past.passed <= 1
        await past.maker.open_gate()
        assert await total == sum(range(3000))
        assert past.passed <= 1


async def test_what_the_reader_did_not_take_is_the_callers(past: Past) -> None:
    async with past.a.open_call():
        stream = past.maker.paced(40, 0.001)
        assert await anext(stream) == 0
        assert await past.reader.first_of(stream, 5) == [1, 2, 3, 4, 5]
        assert await past.reader.first_of(stream, 2) == [6, 7], "a second reader goes on"
        assert await anext(stream) == 8
        assert await past.reader.total(stream) == sum(range(9, 40))
        assert await past.reader.total(stream) == 0, "its end stands"
        assert past.passed < 40


async def test_nothing_is_lost_or_doubled_however_readers_change(past: Past) -> None:
    chance = Random(7)
    async with past.a.open_call():
        for _ in range(12):
            count, taken = chance.randrange(200), list[int]()
            many = chance.random() < 0.5
            stream = past.maker.numbers(count) if many else past.maker.paced(min(count, 50), 0.0005)
            while len(taken) < count if many else len(taken) < min(count, 50):
                if chance.random() < 0.3:
                    taken.append(await anext(stream))
                    continue
                result = past.reader.first_of(stream, chance.randrange(1, 30))
                if chance.random() < 0.4:  # the claim's connection breaks at some point
                    for _ in range(chance.randrange(12)):
                        await asyncio.sleep(0)
                    for connection in list(past.c.makers.connections.values()):
                        await connection.close()
                taken += await result
            assert taken == list(range(len(taken)))
            assert [n async for n in stream] == []


async def test_a_stream_that_is_lent_on_again(past: Past) -> None:
    async with past.a.open_call():
        doubled = past.reader.doubled(past.maker.paced(20, 0.001))
        assert await past.maker.total(doubled) == 2 * sum(range(20))


async def test_a_break_reaches_the_maker(past: Past) -> None:
    async with past.a.open_call():
        stream = past.maker.gated_numbers(9, 5)
        async for n in past.reader.doubled(stream):
            if n == 4:
                break
        await stream.aclose()
        assert (await past.maker.seen())["gated_numbers_finally"] == 1


async def test_a_cancelled_maker_ends_its_readers_stream(past: Past) -> None:
    async with past.a.open_call():
        stream = past.maker.gated_numbers(9, 1)
        result = past.reader.total(stream)
        await eventually(lambda: stream.timing.items_out == 1)
        await stream.aclose()
        with pytest.raises(Cancelled):
            await result


async def test_an_error_comes_after_the_items_before_it(past: Past) -> None:
    async with past.a.open_call():
        doubled = past.reader.doubled(past.maker.fail_midway("value", 3))
        taken = []
        with pytest.raises(ValueError, match="no such day"):
            async for n in doubled:
                taken.append(n)
        assert taken == [0, 2, 4]


async def test_the_streams_timeouts_hold_where_it_is_made(past: Past) -> None:
    impatient = past.handle("impatient")
    async with past.a.open_call():
        with pytest.raises(DeadlineExceeded, match=r"no first item within 0\.08 s"):
            await past.reader.total(impatient.gated_numbers(3, 0))
        with pytest.raises(DeadlineExceeded, match=r"no further item within 0\.08 s"):
            await past.reader.total(impatient.gated_numbers(3, 2))


async def test_a_hold_reaches_the_maker_and_loses_nothing(past: Past) -> None:
    async with past.a.open_call() as call, call.new_turn() as turn:
        stream = past.maker.paced(100, 0.001)
        total = past.reader.total(stream)
        await eventually(lambda: stream.timing.items_out > 0)
        (served,) = past.b.host.served
        turn.hold()
        await eventually(lambda: served.hop.held)
        made = served.hop.timing.items_out
        await asyncio.sleep(0.02)
        assert served.hop.timing.items_out == made
        turn.resume()
        assert await total == sum(range(100))


async def test_a_slow_reader_holds_up_the_maker(past: Past) -> None:
    async with past.a.open_call():
        result = past.reader.swallow(past.maker.endless(1024))
        await eventually(lambda: bool(past.b.host.served))
        made = -1
        while made != (seen := (await past.maker.seen())["made"]):
            made = seen
            await asyncio.sleep(0.02)
        assert 60 <= made <= 140, "a window there, a window on the way"
        del result


async def test_the_account_is_as_of_a_relayed_stream(past: Past) -> None:
    async with past.a.open_call() as call, call.new_turn() as turn:
        stream = past.maker.paced(30, 0.002)
        result = past.reader.total(stream)
        await result
    await eventually(lambda: bool(stream.timing.ended))
    assert stream.timing.items_out == 30
    assert result.timing.items_in == 30
    for timing in (stream.timing, result.timing):
        assert abs(sum(timing.parts().values()) - (timing.closed - timing.opened)) < 1e-6
    assert any(wait.on is stream.timing and wait.kind == "input" for wait in result.timing.waits)
    assert result.timing.parts()["wait"] > 0.8 * (result.timing.ended - result.timing.accepted)
    path = critical_path(result.timing, turn.opened, turn.ended, turn.number)
    assert abs(sum(segment.ms for segment in path) - (turn.ended - turn.opened) * 1e3) < 1.0
    assert {segment.label for segment in path} == {"Probe.total", "Probe.paced"}


async def test_a_peer_that_cannot_claim_is_given_no_reference() -> None:
    for settings in ((replace(SETTINGS, direct=False), SETTINGS), (SETTINGS, replace(SETTINGS, direct=False))):
        async with passing(*settings) as past, past.a.open_call():
            assert await past.reader.total(past.maker.paced(20, 0.001)) == sum(range(20))
            assert past.passed == 20
            assert not past.c.makers.connections


async def test_a_maker_whose_call_leaves_later_is_found_on_the_way() -> None:
    async with passing() as past:
        past.a.target._ready.clear()
        async with past.a.open_call():
            total = past.reader.total(past.maker.paced(200, 0.001))
            await eventually(lambda: bool(past.c.host.served))
            past.a.target.opened()
            assert await total == sum(range(200))
            assert past.passed < 200
