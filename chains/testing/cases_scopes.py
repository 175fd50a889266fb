"""Cases: what belongs to whom. Turns within a call, promptness of every kind of cancel, hold, ends that stand."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from chains.call import Call
from chains.dsl.graph import build
from chains.errors import Cancelled, DeadlineExceeded, InvalidValue, NotFound, RemoteError
from chains.testing.harness import AT_ONCE, Case, Make, at_rest, expect, promptly, raises, until
from chains.testing.probes import FOREIGN, Entry


def _graph() -> Any:
    return build(Entry)


async def _count(probe: Any, name: str, call: Call) -> int:
    with call.activate():
        seen: dict[str, int] = await probe.seen()
    return seen.get(name, 0)


async def _all(stream: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in stream]


async def cancelled_turn_stops_its_own(make: Make) -> None:
    """A cancelled turn stops what was opened inside it within 50 ms, and nothing that was opened outside."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe = runtime.handle("Probe")
        outside = aiter(probe.numbers(100_000))
        await anext(outside)

        async def attempt() -> float:
            before = await _count(probe, "endless_finally", call)
            async with call.new_turn() as turn:
                stream = aiter(runtime.entry.endless())
                await anext(stream)
                start = time.monotonic()
                turn.cancel("barge-in")
                await asyncio.Event().wait()

            async def stopped() -> bool:
                return await _count(probe, "endless_finally", call) > before

            await until(stopped, "the finally of what a cancelled turn had opened")
            return time.monotonic() - start

        await promptly(attempt, "from the turn's cancel to the last finally")
        expect(await anext(outside) == 1, "a stream from outside of the turn goes on")


async def spawned_tasks_end_with_the_turn(make: Make) -> None:
    """A hop that was called in a turn's spawned task is cancelled with the turn."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe = runtime.handle("Probe")

        async def aside() -> int:
            return int(await probe.gated(1))

        async with call.new_turn() as turn:
            turn.spawn(aside())

            async def started() -> bool:
                return bool((await probe.seen()).get("gated", 0))

            await until(started, "the spawned hop's start")
            turn.cancel("barge-in")
            await asyncio.Event().wait()

        async def stopped() -> bool:
            return await _count(probe, "gated_finally", call) == 1

        await until(stopped, "the finally of a spawned hop", AT_ONCE)


async def passed_deadline_is_prompt(make: Make) -> None:
    """Within 50 ms of a passed deadline the consumer is released and every producer has run its finally."""
    async with make(_graph()) as runtime, runtime.open_call() as watch:
        probe = runtime.handle("Probe")

        async def attempt() -> float:
            before = await _count(probe, "endless_finally", watch)
            async with runtime.open_call(deadline_s=0.05) as call:
                due = call.deadline or 0.0

                async def read() -> None:
                    async for _ in runtime.entry.endless():
                        await asyncio.sleep(0)

                await raises(DeadlineExceeded, read())

            async def stopped() -> bool:
                return await _count(probe, "endless_finally", watch) > before

            await until(stopped, "the producers' finally after a deadline")
            return time.monotonic() - due

        await promptly(attempt, "from the deadline to the last finally")


async def lent_stream_ends_with_its_maker(make: Make) -> None:
    """A caller's own generator, lent to a hop, runs its finally within 50 ms when its maker's scope is cancelled."""
    async with make(_graph()) as runtime:

        async def attempt() -> float:
            ended, taken = asyncio.Event(), asyncio.Event()

            async def microphone() -> AsyncIterator[int]:
                try:
                    yield 1
                    taken.set()
                    await asyncio.Event().wait()
                finally:
                    ended.set()

            async with runtime.open_call() as call:
                result = runtime.handle("Probe").total(microphone())
                await asyncio.wait_for(taken.wait(), 5.0)
                start = time.monotonic()
                call.cancel("hang-up")
                await raises(Cancelled, result)
                await asyncio.wait_for(ended.wait(), 5.0)
                return time.monotonic() - start

        await promptly(attempt, "from hang-up to the lent generator's finally")


async def blocking_reader_is_released(make: Make) -> None:
    """Blocking code that waits for a silent stream stops when it is cancelled: it does not wait for the next item."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe = runtime.handle("Probe")

        async def microphone() -> AsyncIterator[int]:
            yield 1
            await asyncio.Event().wait()

        silent = microphone()
        async with call.new_turn() as turn:
            result = probe.blocking_total(silent)

            async def started() -> bool:
                return await _count(probe, "blocking_total", call) == 1

            await until(started, "the blocking reader's first item")
            turn.cancel("barge-in")
            await result

        async def stopped() -> bool:
            return await _count(probe, "blocking_total_finally", call) == 1

        await until(stopped, "the blocking reader's finally", AT_ONCE)


# hold


async def hold_pauses_what_is_lent(make: Make) -> None:
    """A held turn pauses the generators that were lent in it too; resumed, every item arrives."""
    sent = 0

    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe = runtime.handle("Probe")
        await probe.open_gate()
        async with call.new_turn() as turn:

            async def items() -> AsyncIterator[bytes]:
                nonlocal sent
                for n in range(2000):
                    if n == 100:
                        turn.hold()
                    sent += 1
                    yield b"x"

            result = probe.swallow(items())

            async def held() -> bool:
                return turn.held

            await until(held, "a hundred items")
            await at_rest()
            paused = sent
            await at_rest()
            expect(sent == paused < 2000, f"a held turn's own generator pauses: {paused}, then {sent} items")
            turn.resume()
            expect(await result == 2000, "every item arrives in the end")


async def hold_of_a_turn_is_its_own(make: Make) -> None:
    """A held turn holds nothing of the call around it."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        outside = aiter(runtime.handle("Probe").endless())
        await anext(outside)
        async with call.new_turn() as turn:
            turn.hold()
            for _ in range(2000):  # more than any window holds
                await asyncio.wait_for(anext(outside), 5.0)
            turn.resume()


# deadlines and ends


async def long_stream_is_not_cut(make: Make) -> None:
    """A stream may be longer as a whole than each of its timeouts."""
    async with make(_graph()) as runtime, runtime.open_call():
        taken = await _all(runtime.entry.slow_but_steady())
        expect(taken == list(range(6)), f"all six items of a slow stream: {taken}")


async def ends_stand(make: Make) -> None:
    """A stream has exactly one end: whoever reads on gets the same again."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe = runtime.handle("Probe")
        done, failed, left = probe.numbers(1), probe.fail_midway("value", 0), probe.gated_numbers(2, 1)
        await anext(done)
        await anext(left)
        for _ in range(2):
            await raises(StopAsyncIteration, anext(done))
            await raises(ValueError, anext(failed))
        call.cancel("hang-up")
        for _ in range(2):
            await raises(Cancelled, anext(left))


async def our_errors_stay_ours(make: Make) -> None:
    """An error of ours keeps its type, its message and its mend, and no quotes grow around a KeyError."""
    async with make(_graph()) as runtime, runtime.open_call():
        error = await raises(NotFound, runtime.entry.fail("ours"))
        expect(str(error) == "no such patient; ask for the name", f"message and mend: {error}")
        error = await raises(KeyError, runtime.entry.fail("key"))
        expect(str(error) == str(KeyError("doctor")), f"over three hops as raised: {error}")


async def nothing_is_imported_by_name(make: Make) -> None:
    """Nothing is imported because an error names it."""
    known = FOREIGN in sys.modules
    async with make(_graph()) as runtime, runtime.open_call():
        error = await raises(RemoteError, runtime.handle("Relay").fail("foreign"))
        name = error.type_name if isinstance(error, RemoteError) else ""
        expect(name == f"{FOREIGN}.Strange", f"the type's full name is told: {name}")
        expect((FOREIGN in sys.modules) == known, f"{FOREIGN} was imported because an error named it")


async def input_items_are_checked(make: Make) -> None:
    """Each item of a lent stream is checked by the callee's annotation; items before the wrong one are taken."""

    async def items() -> AsyncIterator[Any]:
        yield 1
        yield "two"

    async with make(_graph()) as runtime, runtime.open_call():
        taken: list[int] = []

        async def read() -> None:
            async for n in runtime.handle("Probe").doubled(items()):
                taken.append(n)

        error = await raises(InvalidValue, read())
        expect("int" in str(error) and "str" in str(error) and "doubled" in str(error), f"where and what: {error}")
        expect(taken == [2], f"items before the wrong one: {taken}")


CASES = tuple(
    Case("scopes", run.__name__, run)
    for run in (
        cancelled_turn_stops_its_own,
        spawned_tasks_end_with_the_turn,
        passed_deadline_is_prompt,
        lent_stream_ends_with_its_maker,
        blocking_reader_is_released,
        hold_pauses_what_is_lent,
        hold_of_a_turn_is_its_own,
        long_stream_is_not_cut,
        ends_stand,
        our_errors_stay_ours,
        nothing_is_imported_by_name,
        input_items_are_checked,
    )
)
