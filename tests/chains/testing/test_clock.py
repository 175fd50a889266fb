"""The clock that stands until it is told to go on."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from chains.testing import FakeClock, settle


@given(st.lists(st.tuples(st.floats(0, 10), st.booleans()), max_size=20), st.floats(0, 12))
def test_exactly_what_is_due_and_was_not_cancelled_fires_in_order(timers: list[tuple[float, bool]], to: float) -> None:
    async def run() -> None:
        clock, fired = FakeClock(now=0.0), []
        for number, (when, cancelled) in enumerate(timers):
            timer = clock.call_at(when, lambda when=when, number=number: fired.append((when, number, clock.now())))
            if cancelled:
                timer.cancel()
        await clock.advance(to)
        due = sorted((when, number) for number, (when, cancelled) in enumerate(timers) if not cancelled and when <= to)
        assert [(when, number) for when, number, _ in fired] == due
        assert all(when == now for when, _, now in fired), "each at its own time"
        assert clock.pending == sum(1 for when, cancelled in timers if not cancelled and when > to)

    asyncio.run(run())


async def test_a_timer_may_set_another_that_falls_due_in_the_same_advance() -> None:
    clock, fired = FakeClock(now=0.0), []
    clock.call_at(1.0, lambda: clock.call_at(2.0, lambda: fired.append(clock.now())) and None)
    await clock.advance(5.0)
    assert fired == [2.0]
    assert clock.now() == 5.0


async def test_what_is_overdue_fires_now_and_time_never_goes_back() -> None:
    clock, fired = FakeClock(now=10.0), []
    clock.call_at(3.0, lambda: fired.append(clock.now()))
    await clock.advance(0.0)
    assert fired == [10.0]


async def test_tasks_run_before_time_goes_on_and_after_each_timer() -> None:
    clock, seen, event = FakeClock(now=0.0), [], asyncio.Event()

    async def wait() -> None:
        await event.wait()
        seen.append(clock.now())

    task = asyncio.ensure_future(wait())
    clock.call_at(1.0, event.set)
    await clock.advance(5.0)
    assert seen == [1.0]
    await task


async def test_settle_lets_a_chain_of_tasks_run_out() -> None:
    steps = 0

    async def chain() -> None:
        nonlocal steps
        for _ in range(20):
            await asyncio.sleep(0)
            steps += 1

    task = asyncio.ensure_future(chain())
    await settle()
    assert steps == 20
    await task
