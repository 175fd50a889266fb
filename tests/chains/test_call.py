"""Scopes: nesting, cancel, hold, deadlines, and the turn as a block."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from chains.call import Call, Hop, Played, Scope, Turn, context_of, current, current_or_none
from chains.channel import Channel
from chains.errors import Cancelled, DeadlineExceeded, NotFound, SettingError
from chains.testing import FakeClock, settle


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def call(clock: FakeClock) -> Call:
    return Call(clock, id="c1")


def hop_in(scope: Scope, deadline: float | None = None) -> Hop:
    return Hop(scope, "Node", "method", deadline)


# nesting


def test_scopes_know_what_is_around_them(call: Call) -> None:
    assert (call.turn, call.hop) == (None, None)
    with call.activate():
        hop = hop_in(call)
        with hop.activate():
            turn = call.new_turn()
            inner = hop_in(turn)
            assert current() is hop
    assert current_or_none() is None
    assert turn.parent is hop, "a turn that a hop opens ends with the hop"
    assert (inner.call, inner.turn, inner.hop, turn.hop) == (call, turn, inner, hop)
    assert inner.timing.parent is hop.timing
    assert (inner.timing.turn, hop.timing.turn) == (1, 0)


def test_outside_of_a_call_there_is_no_scope() -> None:
    assert current_or_none() is None
    with pytest.raises(NotFound, match="open_call"):
        current()


def test_a_turn_belongs_to_the_call_that_made_it(clock: FakeClock, call: Call) -> None:
    other = Call(clock)
    with other.activate():
        assert call.new_turn().parent is call
    hop = hop_in(call)
    hop.close()
    with hop.activate():
        assert call.new_turn().parent is call, "not a hop that has ended"
    assert [turn.number for turn in call.turns] == [1, 2]


async def test_tasks_and_contexts_carry_the_scope(call: Call) -> None:
    async def where() -> Scope | None:
        return current_or_none()

    hop = hop_in(call)
    with hop.activate():
        task = asyncio.ensure_future(where())
    assert await task is hop
    assert context_of(call).run(current_or_none) is call
    assert contextvars.copy_context().run(current_or_none) is None


# cancel


def test_cancel_reaches_everything_inside_and_nothing_outside(call: Call) -> None:
    seen: list[str] = []
    turn, beside = call.new_turn(), call.new_turn()
    outer = hop_in(turn)
    inner = hop_in(outer)
    for name, scope in {"turn": turn, "outer": outer, "inner": inner, "beside": beside, "call": call}.items():
        scope.on_cancel(lambda reason, name=name: seen.append(f"{name}: {reason}"))
    turn.cancel("barge-in")
    turn.cancel("again")
    assert seen == ["inner: barge-in", "outer: barge-in", "turn: barge-in"], "the innermost first, each once"
    assert (inner.reason, beside.cancelled, call.cancelled) == ("barge-in", False, False)


def test_what_is_opened_in_a_cancelled_scope_is_cancelled(call: Call) -> None:
    call.cancel("hang-up")
    hop = hop_in(call)
    assert hop.reason == "hang-up"
    told: list[str] = []
    hop.on_cancel(told.append)
    assert told == ["hang-up"]


def test_what_is_opened_in_an_ended_scope_never_begins(call: Call) -> None:
    """A task that a hop left behind: a hang-up would not reach it any more."""
    hop = hop_in(call)
    hop.close()
    assert hop_in(hop).reason == "hop ended"


def test_undo_takes_a_callback_back(call: Call) -> None:
    told: list[str] = []
    call.on_cancel(told.append)()
    call.cancel()
    assert told == []
    call.on_cancel(told.append)()
    assert told == ["cancelled"], "of a cancelled scope it was called at once"


def test_a_callback_that_fails_keeps_no_cancel_from_the_others(call: Call, caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    def fails(reason: str) -> None:
        raise ValueError("what the caller said")

    for fn in (fails, told.append):
        call.on_cancel(fn)
    call.cancel("hang-up")
    assert told == ["hang-up"]
    assert "failed: ValueError" in caplog.text
    assert "what the caller said" not in caplog.text


def test_a_callback_may_cancel_and_register_others(call: Call) -> None:
    told: list[str] = []
    hop = hop_in(call)

    def first(reason: str) -> None:
        call.on_cancel(told.append)
        hop.cancel("late")

    call.on_cancel(first)
    call.cancel("hang-up")
    assert told == ["hang-up"]
    assert hop.reason == "hang-up"


def test_close_tells_who_still_listens_and_lets_go(call: Call) -> None:
    told: list[str] = []
    hop = hop_in(call)
    inner = hop_in(hop)
    hop.on_cancel(told.append)
    hop.close()
    hop.close()
    assert told == ["hop ended"]
    assert inner.reason == "hop ended"
    assert not hop.cancelled, "it ended by itself"
    assert hop not in call._children
    hop.cancel("late")
    assert not hop.cancelled


# deadlines


def test_a_scope_can_only_shorten_its_deadline(clock: FakeClock) -> None:
    call = Call(clock, deadline=clock.now() + 10.0)
    assert hop_in(call).remaining() == 10.0
    assert hop_in(call, clock.now() + 3.0).remaining() == 3.0
    assert hop_in(call, clock.now() + 30.0).remaining() == 10.0
    assert Call(clock).remaining() is None


async def test_a_passed_deadline_cancels_what_is_inside(clock: FakeClock) -> None:
    call = Call(clock, deadline=clock.now() + 5.0)
    call.arm()
    hop = hop_in(call, clock.now() + 2.0)
    hop.arm("Node.method gave no result within 2 s")
    beside = hop_in(call)
    beside.arm()
    assert clock.pending == 2, "an inherited deadline is watched above"
    await clock.advance(1.9)
    assert not hop.cancelled
    await clock.advance(0.2)
    assert isinstance(hop.error(), DeadlineExceeded)
    assert "gave no result within 2 s" in str(hop.error())
    assert not beside.cancelled
    await clock.advance(3.0)
    assert isinstance(beside.error(), DeadlineExceeded)
    assert beside.remaining() == 0.0


async def test_what_ends_in_time_leaves_no_timer(clock: FakeClock, call: Call) -> None:
    hop = hop_in(call, clock.now() + 2.0)
    hop.arm()
    hop.close()
    hop.arm()
    assert clock.pending == 0


def test_a_cancel_is_told_as_what_it_was(call: Call) -> None:
    call.cancel("hang-up")
    error = call.error()
    assert isinstance(error, Cancelled)
    assert error.reason == "hang-up"


# hold


def test_hold_reaches_streams_inside_and_is_inherited(call: Call) -> None:
    turn, outside = call.new_turn(), Channel[int]()
    call_hop, hop, stream = hop_in(call), hop_in(turn), Channel[int]()
    call_hop.attach(outside)
    hop.attach(stream)
    turn.hold()
    turn.hold()
    assert (turn.held, hop.held, call_hop.held) == (True, True, False)
    assert (stream.admits(), outside.admits()) == (False, True)
    late, late_stream = hop_in(turn), Channel[int]()
    late.attach(late_stream)
    assert not late_stream.admits(), "what is opened in a held turn is held"
    turn.resume()
    assert stream.admits()
    assert late_stream.admits()
    hop.close()
    turn.hold()
    assert stream.admits(), "an ended hop has no part in it"


# the turn as a block


def watched(call: Call) -> list[str]:
    events: list[str] = []
    call.watch(lambda event, turn: events.append(f"{event} {turn.number}"))
    return events


async def test_a_turn_tells_how_it_went(clock: FakeClock, call: Call) -> None:
    events = watched(call)
    async with call.new_turn() as turn:
        assert current() is turn
        turn.hold()
        turn.resume()
        turn.mark("speech_end")
        await clock.advance(1.0)
        turn.mark("speech_end")
        turn.mark("first_audio", at=5.0)
    assert events == ["turn_started 1", "turn_held 1", "turn_resumed 1", "turn_ended 1"]
    assert turn.marks == {"speech_end": 1_000.0, "first_audio": 5.0}
    assert turn.ended == clock.now()
    assert turn.closed
    assert current_or_none() is None


async def test_a_watcher_can_be_taken_back(call: Call) -> None:
    events: list[str] = []
    call.watch(lambda event, turn: events.append(event))()
    async with call.new_turn():
        pass
    assert events == []


async def test_cancelled_from_outside_the_block_ends_quietly(call: Call) -> None:
    events = watched(call)
    entered, after = asyncio.Event(), []

    async def body() -> None:
        async with call.new_turn() as turn:
            entered.set()
            await asyncio.Event().wait()
        after.append(turn.reason)
        await asyncio.sleep(0)  # the task itself was not cancelled

    task = asyncio.ensure_future(body())
    await entered.wait()
    call.turns[0].cancel("barge-in")
    await task
    assert after == ["barge-in"]
    assert task.cancelling() == 0
    assert events == ["turn_started 1", "turn_cancelled 1"]


async def test_cancelled_inside_the_block_with_no_await_ends_quietly(call: Call) -> None:
    async with call.new_turn() as turn:
        turn.cancel("barge-in")
    await asyncio.sleep(0)
    assert turn.cancelled
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_a_body_that_meets_the_cancelled_hop_ends_quietly(call: Call) -> None:
    async with call.new_turn() as turn:
        turn.cancel("barge-in")
        raise turn.error()  # as awaiting a result of a cancelled hop does
    await asyncio.sleep(0)
    assert turn.cancelled


async def test_a_body_that_answers_a_cancel_with_an_error_is_heard(call: Call) -> None:
    with pytest.raises(ValueError, match="own"):
        async with call.new_turn() as turn:
            turn.cancel("barge-in")
            raise ValueError("own")
    await asyncio.sleep(0)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_a_turn_of_a_cancelled_call_is_left_at_once(call: Call) -> None:
    call.cancel("hang-up")
    async with call.new_turn() as turn:
        await asyncio.Event().wait()
    assert turn.reason == "hang-up"


async def test_the_tasks_own_cancel_is_not_swallowed(call: Call) -> None:
    events, entered = watched(call), asyncio.Event()

    async def body() -> None:
        async with call.new_turn() as turn:
            turn.spawn(asyncio.Event().wait())
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(body())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert call.turns[0].cancelled
    assert events == ["turn_started 1", "turn_cancelled 1"]


async def test_both_cancels_at_once_cancel_the_task(call: Call) -> None:
    entered = asyncio.Event()

    async def body() -> None:
        async with call.new_turn():
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(body())
    await entered.wait()
    task.cancel()
    call.turns[0].cancel("barge-in")
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_tasks_cancel_that_comes_while_the_turns_is_absorbed(call: Call) -> None:
    async def body() -> None:
        async with call.new_turn() as turn:
            turn.cancel("barge-in")  # lands after the block, where nothing else awaits
            asyncio.get_running_loop().call_soon(task.cancel)
        raise AssertionError("the task was cancelled")

    task = asyncio.ensure_future(body())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_in_the_block_cancels_what_was_spawned(call: Call) -> None:
    events, ended = watched(call), asyncio.Event()

    async def aside() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(ValueError, match="own"):
        async with call.new_turn() as turn:
            turn.spawn(aside())
            await asyncio.sleep(0)
            raise ValueError("own")
    await asyncio.wait_for(ended.wait(), 1.0)
    assert turn.reason == "turn failed"
    assert events == ["turn_started 1", "turn_cancelled 1"]


async def test_a_block_that_ends_well_waits_for_what_it_spawned(call: Call) -> None:
    gate, done = asyncio.Event(), []

    async def aside() -> None:
        await gate.wait()
        assert isinstance(current(), Turn)
        done.append(True)

    asyncio.get_running_loop().call_soon(gate.set)
    async with call.new_turn() as turn:
        turn.spawn(aside())
    assert done == [True]


async def test_a_spawned_tasks_error_comes_out_of_the_block(call: Call) -> None:
    async def fails() -> None:
        raise ValueError("aside")

    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(ValueError, match="aside"):
        async with call.new_turn() as turn:
            turn.spawn(waits())
            turn.spawn(fails())


async def test_a_cancel_while_the_block_waits_for_its_tasks(call: Call) -> None:
    async with call.new_turn() as turn:
        turn.spawn(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(turn.cancel, "barge-in")
    assert turn.reason == "barge-in"
    late = turn.spawn(asyncio.Event().wait())
    await settle()
    assert late.cancelled(), "spawned into a cancelled turn"


async def test_a_turns_deadline_raises(clock: FakeClock, call: Call) -> None:
    entered = asyncio.Event()

    async def body() -> None:
        async with call.new_turn(deadline_s=2.0):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(body())
    await entered.wait()
    await clock.advance(2.5)
    with pytest.raises(DeadlineExceeded, match="turn 1 ran out of time"):
        await task
    assert clock.pending == 0


async def test_turns_nest_and_the_inner_ends_alone(call: Call) -> None:
    async with call.new_turn() as outer:
        async with call.new_turn() as inner:
            inner.cancel("again")
            await asyncio.Event().wait()
        assert not outer.cancelled
        assert current() is outer


# the call


@pytest.mark.parametrize(
    ("traceparent", "known"),
    [
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", False),
        ("junk", False),
        ("00-zzf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", False),
        (None, False),
    ],
)
def test_a_trace_goes_on_or_begins(clock: FakeClock, traceparent: str | None, known: bool) -> None:
    call = Call(clock, traceparent=traceparent)
    assert len(call.trace_id) == 32
    assert int(call.trace_id, 16)
    assert (call.trace_id == "0af7651916cd43dd8448eb211c80319c") == known
    assert call.parent_span == ("b7ad6b7169203331" if known else "")


def test_a_call_says_what_it_is(clock: FakeClock) -> None:
    call = Call(clock, id="c", tenant="clinic", priority="batch")
    assert (call.affinity, call.tenant, call.priority) == ("c", "clinic", "batch")
    assert Call(clock).id != Call(clock).id
    with pytest.raises(SettingError, match="interactive"):
        Call(clock, priority="high")  # type: ignore[arg-type]


async def test_played_wakes_who_waits_for_it() -> None:
    played = Played()
    waiting = [asyncio.ensure_future(played.reached(1, ms)) for ms in (100.0, 200.0)]
    await settle()
    played.report(2, 500.0)
    played.report(1, 120.0)
    await settle()
    assert [task.done() for task in waiting] == [True, False]
    played.report(1, 100.0)
    assert played.of(1) == 120.0
    played.report(1, 200.0)
    await asyncio.wait_for(waiting[1], 1.0)


async def test_work_is_named_in_the_account(clock: FakeClock, call: Call) -> None:
    hop = hop_in(call)
    with hop.activate():
        turn = call.new_turn()
        with turn.activate(), current().work("decode"):
            await clock.advance(0.5)
        current().worked("endpoint", 1.0, 2.0)
    assert [(w.name, w.end - w.start, w.turn) for w in hop.timing.works] == [("decode", 0.5, 1), ("endpoint", 1.0, 0)]
    with pytest.raises(NotFound, match="within a chainlet"), call.work("x"):
        pass


def test_blocking_code_may_read_its_scope(call: Call) -> None:
    seen: list[Any] = []

    def blocking() -> None:
        seen.extend([current().cancelled, current().remaining()])

    thread = threading.Thread(target=context_of(hop_in(call)).run, args=(blocking,))
    thread.start()
    thread.join()
    assert seen == [False, None]
