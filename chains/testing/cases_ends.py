"""Cases: how hops end. Cancel, hold, deadlines, errors, retries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from chains.call import Call
from chains.dsl.graph import build
from chains.errors import Cancelled, DeadlineExceeded, RemoteError, Unavailable
from chains.testing.harness import AT_ONCE, Case, Make, expect, promptly, raises, until
from chains.testing.probes import Entry, Listed


def _graph() -> Any:
    return build(Entry)


async def _count(probe: Any, name: str, call: Call) -> int:
    with call.activate():
        seen: dict[str, int] = await probe.seen()
    return seen.get(name, 0)


# cancel


async def break_stops_every_producer(make: Make) -> None:
    """A consumer's break releases it, and every producer upstream has run its finally within 50 ms."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe, relay = runtime.handle("Probe"), runtime.handle("Relay")

        async def attempt() -> float:
            before = await _count(probe, "endless_finally", call), await relay.finishes()
            async for _ in runtime.entry.endless():
                break
            start = time.monotonic()

            async def stopped() -> bool:
                produced, relayed = await _count(probe, "endless_finally", call), await relay.finishes()
                return produced > before[0] and relayed > before[1]

            await until(stopped, "the producers' finally after a break")
            return time.monotonic() - start

        await promptly(attempt, "from break to the last finally")


async def hang_up_stops_the_call(make: Make) -> None:
    """Cancelling the call ends its hops as CANCELLED and stops their producers within 50 ms."""
    async with make(_graph()) as runtime, runtime.open_call() as watch:
        probe = runtime.handle("Probe")

        async def attempt() -> float:
            before = await _count(probe, "endless_finally", watch)
            async with runtime.open_call() as call:
                stream = aiter(runtime.entry.endless())
                await anext(stream)
                start = time.monotonic()
                call.cancel("hang-up")

                async def drained() -> None:
                    async for _ in stream:
                        pass

                error = await raises(Cancelled, drained())
                expect("hang-up" in str(error), f"the reason is told: {error}")

            async def stopped() -> bool:
                return await _count(probe, "endless_finally", watch) > before

            await until(stopped, "the producer's finally after a hang-up")
            return time.monotonic() - start

        await promptly(attempt, "from hang-up to the last finally")


async def cancelled_task_stops_its_hop(make: Make) -> None:
    """A consumer task that is cancelled while it waits stops the hop that it waited for, through the hops between."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe, relay = runtime.handle("Probe"), runtime.handle("Relay")

        async def attempt() -> float:
            begun = await _count(probe, "gated", call)
            ended = await _count(probe, "gated_finally", call)

            async def consume() -> int:
                return int(await relay.gated(1))

            task = asyncio.ensure_future(consume())

            async def started() -> bool:
                return await _count(probe, "gated", call) > begun

            await until(started, "the hop's start")
            start = time.monotonic()
            task.cancel()

            async def stopped() -> bool:
                return await _count(probe, "gated_finally", call) > ended

            await until(stopped, "the finally after a cancelled task")
            return time.monotonic() - start

        await promptly(attempt, "from the task's cancel to the finally")


async def dropped_result_is_cancelled(make: Make) -> None:
    """A result or stream whose last reference is dropped is cancelled."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe = runtime.handle("Probe")
        result, stream = probe.gated(1), probe.gated_numbers(3, 1)
        await anext(stream)

        async def started() -> bool:
            return await _count(probe, "gated", call) == 1

        await until(started, "the hop's start")
        del result, stream

        async def stopped() -> bool:
            seen = await probe.seen()
            return bool(seen.get("gated_finally") and seen.get("gated_numbers_finally"))

        await until(stopped, "the finally after the reference was dropped", AT_ONCE)


async def blocking_code_keeps_its_slot(make: Make) -> None:
    """Blocking code stops at its next step: its caller is released at once, its slot counts as draining till then."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe = runtime.handle("Probe")
        async with runtime.open_call() as other:
            with other.activate():
                result = probe.blocking(1)

            async def started() -> bool:
                return await _count(probe, "blocking", call) == 1

            await until(started, "the blocking code's start")
            start = time.monotonic()
            other.cancel("hang-up")
            await raises(Cancelled, result)
            expect(time.monotonic() - start < AT_ONCE, "the caller of blocking code is released at once")
        load = next(one for one in runtime.load() if one.node == "Probe")
        expect(load.draining == 1, f"the slot is shown as draining: {load}")
        with call.activate():
            await probe.open_gate()

        async def free() -> bool:
            return next(one for one in runtime.load() if one.node == "Probe").draining == 0

        await until(free, "the slot is given back when the blocking code ends")


async def blocking_generator_stops_at_its_next_step(make: Make) -> None:
    """A blocking generator stops at its next step when its consumer leaves, and runs its finally."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe = runtime.handle("Probe")
        async for n in probe.blocking_numbers(1_000_000):
            if n == 3:
                break

        async def stopped() -> bool:
            return await _count(probe, "blocking_numbers_finally", call) == 1

        await until(stopped, "the blocking generator's finally")


async def blocking_code_does_not_block_the_loop(make: Make) -> None:
    """A plain def runs beside the loop: other calls of the replica are answered meanwhile."""
    async with make(_graph()) as runtime, runtime.open_call():
        probe = runtime.handle("Probe")
        result = probe.blocking(7)
        start = time.monotonic()
        expect(await probe.echo(1) == 1, "echo")
        expect(time.monotonic() - start < AT_ONCE, "a call beside blocking code is answered at once")
        await probe.open_gate()
        expect(await result == 7, "the blocking call's own result")


# hold


async def hold_pauses_and_loses_nothing(make: Make) -> None:
    """A held turn's producers pause and nothing is lost; resumed, the items go on in order."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe = runtime.handle("Probe")
        taken: list[int] = []
        async with call.new_turn() as turn:
            stream = aiter(probe.numbers(60_000))
            taken.append(await anext(stream))
            turn.hold()
            while True:  # what is under way may still be taken; then nothing comes
                try:
                    taken.append(await asyncio.wait_for(anext(stream), 0.1))
                except TimeoutError:
                    break
            made = await _count(probe, "numbers", call)
            expect(made < 60_000, "a held producer pauses")
            expect(await _count(probe, "numbers", call) == made, "a held producer stays paused")
            turn.resume()
            async for n in stream:
                taken.append(n)
                if len(taken) == 45_000:
                    break
        expect(taken == list(range(45_000)), "items in order, none lost over hold and resume")


async def held_may_be_cancelled(make: Make) -> None:
    """From held, cancelled: a paused producer runs its finally."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe = runtime.handle("Probe")
        async with call.new_turn() as turn:
            stream = aiter(probe.endless())
            await anext(stream)
            turn.hold()
            turn.cancel("barge-in")
            await asyncio.Event().wait()
        expect(turn.cancelled, "the turn's block is left when it is cancelled")

        async def stopped() -> bool:
            return await _count(probe, "endless_finally", call) == 1

        await until(stopped, "the held producer's finally")


# deadlines


async def unary_deadline(make: Make) -> None:
    """A unary call past its timeout ends in DeadlineExceeded, and its code is cancelled."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        error = await raises(DeadlineExceeded, runtime.entry.late_unary())
        expect("Probe.gated" in str(error), f"the error names the hop: {error}")

        async def stopped() -> bool:
            return await _count(runtime.handle("Probe"), "gated_finally", call) == 1

        await until(stopped, "the late hop's finally")


async def _all(stream: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in stream]


async def stream_first_and_idle(make: Make) -> None:
    """Streams have a first and an idle timeout; what came before the idle one is delivered."""
    async with make(_graph()) as runtime, runtime.open_call():
        await raises(DeadlineExceeded, _all(runtime.entry.late_first()))
        taken: list[int] = []

        async def late() -> None:
            async for n in runtime.entry.late_next():
                taken.append(n)

        await raises(DeadlineExceeded, late())
        expect(taken == [0, 1], f"items before the idle timeout are delivered: {taken}")


async def turn_and_call_deadlines(make: Make) -> None:
    """A turn may have a deadline, a call a maximum duration."""
    async with make(_graph()) as runtime:
        probe = runtime.handle("Probe")

        async def late_turn() -> None:
            async with runtime.open_call() as call, call.new_turn(deadline_s=0.05):
                await probe.gated(1)

        await raises(DeadlineExceeded, late_turn())
        async with runtime.open_call(deadline_s=0.05):
            await raises(DeadlineExceeded, probe.gated(1))


async def hop_only_shortens(make: Make) -> None:
    """What goes down is the time that is left; a hop can only shorten it."""
    async with make(_graph()) as runtime, runtime.open_call(deadline_s=5.0):
        left = await runtime.handle("Relay").remaining()
        expect(left is not None and 4.0 < left <= 5.0, f"the call's deadline holds two hops down: {left}")
        left = await runtime.entry.remaining_within()
        expect(left is not None and 0.0 < left <= 0.08, f"a shorter timeout shortens: {left}")


async def checked_before_work(make: Make) -> None:
    """A deadline is checked before work starts: a call that waited past it never reaches the user's code."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe = runtime.handle("Probe")
        running = [probe.gated(n) for n in range(8)]
        async with runtime.open_call(deadline_s=0.05):
            await raises(DeadlineExceeded, probe.echo(1))
        with call.activate():
            for result in running:
                del result
        running.clear()

        async def idle() -> bool:
            return next(one for one in runtime.load() if one.node == "Probe").running == 0

        await until(idle, "the gated calls' end")
        expect(await _count(probe, "echo", call) == 0, "a call whose time ran out in the queue never starts")


# ends


async def done_after_the_last_item(make: Make) -> None:
    """A stream that is done ends after its last item; every item arrives, in order."""
    async with make(_graph()) as runtime, runtime.open_call():
        expect(await _all(runtime.handle("Probe").numbers(1000)) == list(range(1000)), "1,000 items in order")
        expect(await _all(runtime.handle("Probe").numbers(0)) == [], "an empty stream is a stream")


async def errors_keep_their_type(make: Make) -> None:
    """A builtin error, ours, and one that the method lists come back as themselves; any other as RemoteError."""
    async with make(_graph()) as runtime, runtime.open_call():
        probe = runtime.handle("Probe")
        expect(
            "no such day" in str(await raises(ValueError, probe.fail("value"))),
            "the message of a builtin error",
        )
        await raises(Listed, probe.fail_listed())
        error = await raises(RemoteError, probe.fail("unlisted"))
        expect(
            isinstance(error, RemoteError) and error.type_name.endswith("Unlisted"),
            f"its type's name: {error}",
        )


async def errors_tell_the_way(make: Make) -> None:
    """An ERROR carries the frames of the user's code over all hops, root cause last."""
    async with make(_graph()) as runtime, runtime.open_call():
        error = await raises(RemoteError, runtime.entry.fail("unlisted"))
        hops = [frame.hop for frame in error.frames] if isinstance(error, RemoteError) else []
        expect(hops[:2] == ["Entry", "Relay"] and hops[-1] == "Probe", f"frames of Entry, Relay, Probe: {hops}")
        error = await raises(ValueError, runtime.entry.fail("value"))
        hops = [frame.hop for frame in getattr(error, "chains_frames", ())]
        expect(hops[:2] == ["Entry", "Relay"] and hops[-1] == "Probe", f"frames on a builtin error: {hops}")


async def error_in_mid_stream(make: Make) -> None:
    """A stream that fails midway delivers what came before, then its error: never a clean end."""
    async with make(_graph()) as runtime, runtime.open_call():
        taken: list[int] = []

        async def read() -> None:
            async for n in runtime.handle("Relay").fail_midway("value", 3):
                taken.append(n)

        await raises(ValueError, read())
        expect(taken == [0, 1, 2], f"items before the error are delivered: {taken}")


# accept and retry


async def not_accepted_is_retried(make: Make) -> None:
    """A hop that was not accepted when its replica went away is answered by another one."""
    async with make(_graph(), replicas={"Probe": 2}) as runtime, runtime.open_call():
        probe = runtime.handle("Probe")
        await runtime.kill("Probe", 0)
        expect([await probe.echo(n) for n in range(4)] == [0, 1, 2, 3], "calls go to the replica that is left")


async def accepted_is_not_repeated(make: Make) -> None:
    """A hop that was accepted is not repeated: its caller gets Unavailable, and the work was done at most once."""
    async with make(_graph(), replicas={"Probe": 2}) as runtime, runtime.open_call(affinity="a"):
        probe = runtime.handle("Probe")
        await probe.echo(1)
        result = probe.gated(1)
        victim = await _running_on(runtime)
        await runtime.kill("Probe", victim)
        await raises(Unavailable, result)
        expect((await probe.seen()).get("gated", 0) == 0, "the other replica never saw the call")


async def idempotent_is_answered_elsewhere(make: Make) -> None:
    """An idempotent hop of which nothing was consumed or delivered is answered by another replica."""
    async with make(_graph(), replicas={"Probe": 2}) as runtime, runtime.open_call(affinity="a"):
        probe = runtime.handle("Probe")
        result = probe.lookup(5)
        await runtime.kill("Probe", await _running_on(runtime))
        await probe.open_gate()
        expect(await asyncio.wait_for(result, 5.0) == 5, "answered elsewhere")


async def delivered_is_not_repeated(make: Make) -> None:
    """A stream that has delivered is not begun again, idempotent or not: it ends in Unavailable."""
    async with make(_graph(), replicas={"Probe": 2}) as runtime, runtime.open_call():
        stream = aiter(runtime.handle("Probe").idempotent_numbers(3, 1))
        expect(await anext(stream) == 0, "the first item")
        await runtime.kill("Probe", await _running_on(runtime))
        await raises(Unavailable, anext(stream))


async def _running_on(runtime: Any) -> int:
    found: list[int] = []

    async def running() -> bool:
        found[:] = [i for i, one in enumerate(o for o in runtime.load() if o.node == "Probe") if one.running]
        return len(found) == 1

    await until(running, "one replica that runs the call")
    return found[0]


CASES = tuple(
    Case("ends", run.__name__, run)
    for run in (
        break_stops_every_producer,
        hang_up_stops_the_call,
        cancelled_task_stops_its_hop,
        dropped_result_is_cancelled,
        blocking_code_keeps_its_slot,
        blocking_generator_stops_at_its_next_step,
        blocking_code_does_not_block_the_loop,
        hold_pauses_and_loses_nothing,
        held_may_be_cancelled,
        unary_deadline,
        stream_first_and_idle,
        turn_and_call_deadlines,
        hop_only_shortens,
        checked_before_work,
        done_after_the_last_item,
        errors_keep_their_type,
        errors_tell_the_way,
        error_in_mid_stream,
        not_accepted_is_retried,
        accepted_is_not_repeated,
        idempotent_is_answered_elsewhere,
        delivered_is_not_repeated,
    )
)
