"""The clocks, and the account of a hop: its parts always add up to its wall time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chains.errors import InvalidValue
from chains.testing import FakeClock
from chains.timing import RECENT, LoopClock, Timing, Wait, Work


def hop(opened: float = 0.0, parent: Timing | None = None, method: str = "m") -> Timing:
    return Timing("1", parent, "c", 0, "Node", method, opened)


def total(timing: Timing, now: float | None = None) -> float:
    return sum(timing.parts(now).values())


steps = st.lists(
    st.tuples(
        st.sampled_from(["wait", "unwait", "work", "unwork", "serialise"]), st.floats(0.0, 3.0), st.integers(0, 9)
    ),
    max_size=40,
)


@given(st.floats(0.0, 2.0), st.floats(0.0, 2.0), steps, st.floats(0.0, 2.0))
def test_parts_sum_to_the_wall_time(wire: float, queue: float, moves: Any, rest: float) -> None:
    """Any order of waits that overlap, work inside of them, and values that are encoded meanwhile."""
    timing, now = hop(opened=10.0), 10.0 + wire
    timing.serialise = wire * 1.5
    timing.arrive(now, "Node#0")
    now += queue
    timing.accepted = now
    waits: list[Wait] = []
    works: list[Work] = []
    for move, seconds, which in moves:
        now += seconds
        if move == "wait":
            waits.append(timing.begin_wait(now, "hop", None, 0))
        elif move == "unwait" and waits:
            timing.end_wait(waits.pop(which % len(waits)), now)
        elif move == "work":
            timing.begin_work(now)
            works.append(Work("w", now, 0.0, 0))
        elif move == "unwork" and works:
            timing.end_work(works.pop(which % len(works)), now)
        elif move == "serialise":
            timing.serialise += seconds / 10
        check(timing.parts(now), now - 10.0)
    now += rest
    timing.finish(now, "done")
    check(timing.parts(), now - 10.0)
    before = timing.parts()
    for wait in waits:
        timing.end_wait(wait, now + 5.0)  # a task that outlives its hop
    assert timing.parts() == before


def check(parts: dict[str, float], elapsed: float) -> None:
    assert sum(parts.values()) == pytest.approx(elapsed, abs=1e-9)
    assert min(parts.values()) >= -1e-9, parts


def test_overlapping_waits_count_once_and_work_counts_as_compute() -> None:
    timing = hop()
    timing.received = timing.accepted = 0.0001
    first = timing.begin_wait(1.0, "hop", None, 0)
    second = timing.begin_wait(2.0, "input", None, 0)
    timing.begin_work(3.0)  # decodes while both wait
    timing.end_work(Work("decode", 3.0, 0.0, 0), 5.0)
    timing.end_wait(first, 6.0)
    timing.end_wait(second, 7.0)
    timing.finish(10.0, "done")
    parts = timing.parts()
    assert parts["wait"] == pytest.approx(4.0)
    assert parts["compute"] == pytest.approx(6.0, abs=0.001)
    assert [work.name for work in timing.works] == ["decode"]


def test_a_hop_that_never_arrived_was_on_the_way_all_the_time() -> None:
    timing = hop(opened=1.0)
    timing.finish(4.0, "cancelled")
    assert timing.parts() == {"serialise": 0.0, "wire": 3.0, "queue": 0.0, "compute": 0.0, "wait": 0.0}


def test_a_hop_that_queued_and_was_given_up() -> None:
    timing = hop(opened=1.0)
    timing.received = 2.0
    timing.finish(4.0, "cancelled")
    assert (timing.parts()["wire"], timing.parts()["queue"]) == (1.0, 2.0)


def test_a_hop_that_goes_on_is_accounted_until_now() -> None:
    timing = hop(opened=1.0)
    assert total(timing) == 0.0
    timing.received = timing.accepted = 2.0
    timing.begin_wait(3.0, "credit", None, 0)
    parts = timing.parts(5.0)
    assert (parts["wire"], parts["compute"], parts["wait"]) == (1.0, 1.0, 2.0)


def test_what_is_encoded_on_the_way_is_no_compute() -> None:
    timing = hop(opened=0.0)
    timing.serialise += 1.0
    timing.arrive(3.0, "Node#0")
    timing.accepted = 3.0
    timing.serialise += 0.5
    timing.finish(10.0, "done")
    assert timing.parts() == {"serialise": 1.5, "wire": 2.0, "queue": 0.0, "compute": 6.5, "wait": 0.0}


def test_an_attempt_that_failed_was_on_the_way() -> None:
    timing = hop(opened=0.0)
    timing.arrive(1.0, "Node#0")
    timing.accepted = 1.0
    timing.end_wait(timing.begin_wait(1.0, "hop", None, 0), 8.0)
    timing.again()
    timing.arrive(9.0, "Node#1")
    timing.accepted = 9.0
    timing.finish(10.0, "done")
    assert timing.parts() == {"serialise": 0.0, "wire": 9.0, "queue": 0.0, "compute": 1.0, "wait": 0.0}
    assert (timing.attempts, timing.replica) == (2, "Node#1")


def test_a_finished_hop_stays_as_it_is() -> None:
    timing = hop()
    timing.finish(1.0, "error", "ValueError")
    timing.finish(2.0, "done")
    assert (timing.ended, timing.outcome, timing.error) == (1.0, "error", "ValueError")
    assert timing.label == "Node.m"


def test_waits_of_a_long_hop_are_bounded_and_their_sum_is_not() -> None:
    timing = hop()
    timing.received = timing.accepted = 0.5
    for n in range(1, 2 * RECENT + 1):
        timing.end_wait(timing.begin_wait(float(n), "input", None, 0), n + 0.5)
        timing.add_work(Work("w", float(n), n + 0.1, 0))
    assert len(timing.waits) == len(timing.works) == RECENT
    assert timing.waited == pytest.approx(RECENT)


# clocks


async def test_loop_clock_fires_in_order_and_only_what_was_not_cancelled() -> None:
    clock, fired, last = LoopClock(), [], asyncio.Event()
    now = clock.now()
    clock.call_at(now + 0.03, last.set)
    clock.call_at(now + 0.02, lambda: fired.append("second"))
    dropped = clock.call_at(now + 0.015, lambda: fired.append("dropped"))
    clock.call_at(now + 0.01, lambda: fired.append("first"))
    clock.call_at(now - 5.0, lambda: fired.append("overdue"))
    dropped.cancel()
    dropped.cancel()
    await asyncio.wait_for(last.wait(), 5.0)
    assert fired == ["overdue", "first", "second"]
    assert clock.now() >= now + 0.03
    assert abs(clock.wall() - time.time()) < 1.0


async def test_loop_clock_forgets_what_was_cancelled() -> None:
    clock = LoopClock()
    for _ in range(10_000):
        clock.call_at(clock.now() + 60.0, lambda: None).cancel()
    assert len(clock._heap) < 1_000


async def test_a_timer_may_set_and_cancel_timers() -> None:
    clock, done = LoopClock(), asyncio.Event()
    other = clock.call_at(clock.now() + 60.0, lambda: None)

    def first() -> None:
        other.cancel()
        clock.call_at(clock.now(), done.set)

    clock.call_at(clock.now() + 0.005, first)
    await asyncio.wait_for(done.wait(), 5.0)


async def test_a_timer_that_fails_does_not_stop_the_others() -> None:
    clock, done = LoopClock(), asyncio.Event()
    told: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))

    def fails() -> None:
        raise ValueError("in a timer")

    now = clock.now()
    clock.call_at(now + 0.001, fails)
    clock.call_at(now + 0.002, done.set)
    await asyncio.wait_for(done.wait(), 5.0)
    assert [type(error) for error in told] == [ValueError]


async def test_fake_clock_fires_in_order_at_their_own_times() -> None:
    clock = FakeClock(now=100.0, wall=1_000.0)
    seen: list[tuple[str, float]] = []
    clock.call_at(103.0, lambda: seen.append(("b", clock.now())))
    clock.call_at(101.0, lambda: seen.append(("a", clock.now())))
    clock.call_at(101.5, lambda: seen.append(("never", clock.now()))).cancel()
    assert clock.pending == 2
    await clock.advance(2.0)
    assert seen == [("a", 101.0)]
    assert (clock.now(), clock.wall()) == (102.0, 1_002.0)
    await clock.advance(2.0)
    assert seen == [("a", 101.0), ("b", 103.0)]
    assert clock.pending == 0


def test_notes_are_plain_and_bounded() -> None:
    timing = hop()
    for name, value in {"a": "text", "b": 3, "c": 0.5, "d": True, "e": ["x", "y"], "f": ()}.items():
        timing.note(name, value)
    assert timing.notes == {"a": "text", "b": 3, "c": 0.5, "d": True, "e": ("x", "y"), "f": ()}
    timing.note("a", "x" * 5_000)
    timing.note("g", "broken \ud800")
    assert timing.notes["a"] == "x" * 1024 and timing.notes["g"] == "broken ?"
    for number in range(100):
        timing.note(f"n{number}", number)
    timing.note("b", 4)
    assert len(timing.notes) == 64 and timing.notes["b"] == 4, "those that are there can still change"


@pytest.mark.parametrize(
    ("name", "value"), [("", 1), ("x" * 129, 1), ("é", 1), (3, 1), ("a", None), ("a", [1]), ("a", b"x")]
)
def test_a_note_that_no_span_can_hold_is_an_error(name: Any, value: Any) -> None:
    with pytest.raises(InvalidValue, match="give"):
        hop().note(name, value)
