"""Cases: how values and streams pass. Scopes, credit, values, streams as arguments, load, time, played."""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from chains.dsl.graph import build
from chains.errors import Cancelled, InvalidValue, NotFound, Overloaded
from chains.messages import Audio, Control, Tensor, Text, Tokens
from chains.spans import account
from chains.testing.harness import AT_ONCE, Case, Make, at_rest, expect, raises, until
from chains.testing.probes import Booking, Entry


def _graph() -> Any:
    return build(Entry)


def _load(runtime: Any) -> Any:
    return next(one for one in runtime.load() if one.node == "Probe")


# scopes


async def callee_only_stops_reading(make: Make) -> None:
    """A borrowed stream stays with its maker: when the callee ends, the next one reads on and nothing is lost."""

    async def numbers() -> AsyncIterator[int]:
        for n in itertools.count():
            yield n

    async with make(_graph()) as runtime, runtime.open_call():
        parts = await runtime.entry.parts_in_turns(numbers(), 3)
        expect(parts == [[0, 1, 2], [3, 4, 5]], f"the second callee reads on where the first stopped: {parts}")


async def cancelled_turn_keeps_the_call(make: Make) -> None:
    """A cancelled turn does not stop the stream that came from outside of it."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe = runtime.handle("Probe")

        async def numbers() -> AsyncIterator[int]:
            yield 0
            yield 1

            async def first_reader_gone() -> bool:
                with call.activate():
                    return bool((await probe.seen()).get("doubled_finally", 0))

            await until(first_reader_gone, "the cancelled turn's hop runs its finally")
            yield 2
            yield 3

        taken = await runtime.entry.turn_cancelled_while_reading(numbers())
        expect(taken == [0, 2, 4, 6], f"the microphone goes on into the next turn: {taken}")


# credit


async def queue_is_bounded_in_bytes(make: Make) -> None:
    """A slow consumer stops its producer: what is queued never exceeds the window by more than one item."""
    async with make(_graph()) as runtime, runtime.open_call():
        probe = runtime.handle("Probe")
        stream = probe.endless()
        reader = aiter(stream)
        await anext(reader)
        made = -1
        while made != (made := (await probe.seen())["made"]):
            await at_rest()
        window = 256 * 1024
        expect(made <= window // 1024 + 16, f"{made} items of 1 KB were made against a window of {window} bytes")
        expect(stream.peak_bytes <= window + 2048, f"at most the window lay queued: {stream.peak_bytes}")
        for _ in range(100):
            await anext(reader)

        async def went_on() -> bool:
            return bool((await probe.seen())["made"] > made)

        await until(went_on, "credit comes back when items are taken")


async def one_item_is_always_admitted(make: Make) -> None:
    """One item passes, whatever its size."""
    async with make(_graph()) as runtime, runtime.open_call():
        big = 10 * 256 * 1024
        async for item in runtime.handle("Probe").endless(big):
            expect(len(item) == big, "an item ten times the window arrives whole")
            break


async def slow_reader_holds_up_nobody_else(make: Make) -> None:
    """A stalled stream holds up its own producers and no other call."""
    async with make(_graph()) as runtime, runtime.open_call():
        probe = runtime.handle("Probe")
        stalled = aiter(probe.endless())
        await anext(stalled)
        async with runtime.open_call():
            start = time.monotonic()
            expect(len([n async for n in probe.numbers(2000)]) == 2000, "the other stream")
            expect(time.monotonic() - start < 5.0, "another stream flows beside a stalled one")


async def input_has_credit_too(make: Make) -> None:
    """A callee that reads slowly holds up the stream that it was given."""
    sent = 0

    async def items() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(2000):
            sent += 1
            yield b"x" * 1024

    async with make(_graph()) as runtime, runtime.open_call():
        probe = runtime.handle("Probe")
        result = probe.swallow(items())
        before = -1
        while before != sent or not sent:
            before = sent
            await at_rest()
        expect(sent < 1000, f"the sender of a slow callee pauses: {sent} items of 1 KB were taken from it")
        await probe.open_gate()
        expect(await result == 2000, "every item arrives in the end")


# values


async def arguments_are_checked(make: Make) -> None:
    """What a method accepts is checked before it runs; the error names the place and what is expected."""
    async with make(_graph()) as runtime, runtime.open_call():
        probe = runtime.handle("Probe")

        async def wrong() -> Any:
            return await probe.echo("seven")

        error = await raises(InvalidValue, wrong())
        expect("int" in str(error) and "str" in str(error) and "echo" in str(error), f"where and what: {error}")
        expect((await probe.seen()).get("echo", 0) == 0, "the method never ran")

        async def unknown() -> Any:
            return await probe.echoo(1)

        error = await raises(NotFound, unknown())
        expect("echo" in str(error), f"an unknown method's error names the nearest: {error}")


async def results_are_checked(make: Make) -> None:
    """What a method returns or yields is checked; items before the wrong one are delivered."""
    async with make(_graph()) as runtime, runtime.open_call():
        probe = runtime.handle("Probe")
        await raises(InvalidValue, probe.wrong_result())
        taken: list[int] = []

        async def read() -> None:
            async for n in probe.wrong_item():
                taken.append(n)

        await raises(InvalidValue, read())
        expect(taken == [1], f"items before the wrong one: {taken}")


async def values_arrive_as_sent(make: Make) -> None:
    """Structures, text, numbers, lists, dicts, messages and arrays arrive equal to what was sent."""
    items: list[Any] = [
        Text("grüße 👋", final=False, turn=2, role="user"), Tokens((1, 2, 3), "abc"), Control("tool", {"a": [1, None]}),
        "", "text", 2**53, -1, 1.5, b"\x00\xff", None, [1, 2], {"k": 1},
    ]  # fmt: skip
    async with make(_graph()) as runtime, runtime.open_call():
        probe = runtime.handle("Probe")
        back = await probe.same(items)
        expect(back == items, f"equal: {back}")
        booking = Booking("Dr. Lee", "tuesday")
        expect(await probe.book(booking) == booking, "a dataclass")
        array = np.arange(12, dtype=np.float32).reshape(3, 4)
        scaled = await probe.scale(array, 2.0)
        expect(scaled.dtype == np.float32 and np.array_equal(scaled, array * 2), "an array")


async def arrays_arrive_read_only(make: Make) -> None:
    """Arrays arrive read-only, bare or in a message, and stay writeable at the sender's."""
    array = np.zeros(4)
    async with make(_graph()) as runtime, runtime.open_call():
        sound, tensor = Audio(np.zeros(8, np.int16), 16000), Tensor(np.zeros((2, 2)))
        flags = await runtime.handle("Probe").writeable(array, tensor, sound)
        expect(flags == [False, False, False], f"read-only where they arrive: {flags}")
        expect(array.flags.writeable, "writeable where they came from")


# streams as arguments


async def streams_pass_as_arguments(make: Make) -> None:
    """A hop's stream is another hop's argument, as often as one likes; a unary method may take one."""

    async def numbers() -> AsyncIterator[int]:
        for n in range(5):
            yield n

    async with make(_graph()) as runtime, runtime.open_call():
        expect(await runtime.entry.pipe(50) == [4 * n for n in range(50)], "numbers through two hops")
        probe = runtime.handle("Probe")
        expect(await probe.total(numbers()) == 10, "the caller's own generator")
        expect(await probe.total(probe.numbers(5)) == 10, "a hop's stream")
        expect(await runtime.handle("Relay").from_thread(5) == 10, "read by a plain def in its thread")


async def error_of_a_lent_stream_arrives(make: Make) -> None:
    """When a lent stream fails, its reader gets that error."""
    async with make(_graph()) as runtime, runtime.open_call():
        probe = runtime.handle("Probe")
        await raises(ValueError, probe.total(probe.fail_midway("value", 3)))


async def a_hops_stream_is_read_in_parts(make: Make) -> None:
    """A hop's stream may be read by its caller and by other hops in turns: each begins where the one before stopped."""
    async with make(_graph(), replicas={"Probe": 2}) as runtime, runtime.open_call():
        probe = runtime.handle("Probe")
        stream = probe.paced(40, 0.001)
        parts = [await anext(stream), *await probe.first_of(stream, 5), *await probe.first_of(stream, 3)]
        parts += [await anext(stream), *[n // 2 async for n in probe.doubled(stream)]]
        expect(parts == list(range(40)), f"nothing lost, nothing twice: {parts}")
        expect([n async for n in stream] == [], "its end stands")


# load


async def caps_are_hard(make: Make) -> None:
    """Past the running cap calls queue, past the queue's they are refused at once; both are reported."""
    async with make(_graph()) as runtime, runtime.open_call():
        probe = runtime.handle("Probe")
        results = [probe.gated(n) for n in range(12)]

        async def full() -> bool:
            load = _load(runtime)
            return bool(load.running == 8 and load.queued == 4)

        await until(full, "8 running and 4 queued")
        start = time.monotonic()
        error = await raises(Overloaded, probe.gated(99))
        expect(time.monotonic() - start < AT_ONCE, "refused at once")
        expect(error.http in (429, 503) and error.ws == 1013, f"its codes: {error.http}, {error.ws}")  # type: ignore[attr-defined]
        results[0] = None
        await until(_queue_moves(runtime), "a queued call takes the place of one that ended")
        results.clear()


def _queue_moves(runtime: Any) -> Any:
    async def moved() -> bool:
        return bool(_load(runtime).queued == 3 and _load(runtime).running == 8)

    return moved


async def interactive_before_batch(make: Make) -> None:
    """Of the calls that queue, interactive ones are taken before batch ones."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe = runtime.handle("Probe")
        running = [probe.gated(n) for n in range(8)]
        order: list[str] = []

        async def one(priority: Any) -> None:
            async with runtime.open_call(priority=priority):
                await probe.echo(1)
                order.append(priority)

        batch = asyncio.ensure_future(one("batch"))

        async def queued(count: int) -> bool:
            return bool(_load(runtime).queued == count)

        await until(lambda: queued(1), "the batch call queues")
        interactive = asyncio.ensure_future(one("interactive"))
        await until(lambda: queued(2), "the interactive call queues")
        with call.activate():
            running[0] = None
        await asyncio.wait_for(asyncio.gather(batch, interactive), 5.0)
        expect(order == ["interactive", "batch"], f"order: {order}")
        running.clear()


async def load_counts_streams(make: Make) -> None:
    """A replica reports its running hops and open streams; both go back to nothing."""
    async with make(_graph()) as runtime, runtime.open_call():
        probe = runtime.handle("Probe")
        stream = aiter(probe.gated_numbers(2, 1))
        await anext(stream)
        load = _load(runtime)
        expect((load.running, load.streams) == (1, 1), f"one hop, one stream: {load}")
        del stream

        async def idle() -> bool:
            load = _load(runtime)
            return bool((load.running, load.streams, load.queued, load.draining) == (0, 0, 0, 0))

        await until(idle, "the load goes back to nothing")


# time


async def parts_sum_to_the_whole(make: Make) -> None:
    """Each hop's serialise, wire, queue, compute and wait add up to its wall time; the wait for another hop is wait."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        relay, probe = runtime.handle("Relay"), runtime.handle("Probe")
        result = relay.gated(1)
        await asyncio.sleep(0.05)
        await probe.open_gate()
        await result
        record = runtime.recorder.find(call.id)
        expect(record is not None, "the call's account is kept")
        for hop in record.hops if record else ():
            total = hop.closed - hop.opened
            expect(abs(sum(hop.parts().values()) - total) < 1e-6, f"{hop.label}: {hop.parts()} of {total}")
            expect(min(hop.parts().values()) >= -1e-9, f"{hop.label}: no part is negative: {hop.parts()}")
        hops = {hop.label: hop.parts() for hop in record.hops} if record else {}
        expect(hops["Relay.gated"]["wait"] > 0.03, f"the relay waited: {hops['Relay.gated']}")


async def critical_path_sums_to_the_latency(make: Make) -> None:
    """The segments on a turn's critical path sum to its latency within 1 ms."""
    async with make(_graph()) as runtime, runtime.open_call() as call:

        async def numbers() -> AsyncIterator[int]:
            for n in range(4):
                await asyncio.sleep(0.005)
                yield n

        async with call.new_turn() as turn:
            await runtime.entry.parts_in_turns(numbers(), 2)
        record = runtime.recorder.find(call.id)
        entry = account(record, turn) if record else None
        expect(entry is not None, "the turn has an account")
        if entry is not None:
            total = sum(segment.ms for segment in entry.segments)
            expect(abs(total - entry.ms) < 1.0, f"{total} ms of segments, {entry.ms} ms of turn")
            expect(len({s.label for s in entry.segments}) >= 2, f"it goes through the hops: {entry.by_hop()}")


async def played_is_reported(make: Make) -> None:
    """What the client says it has played is known by turn, and never goes back."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        call.played.report(1, 240.0)
        call.played.report(1, 120.0)
        expect(call.played.of(1) == 240.0 and call.played.of(2) == 0.0, "milliseconds by turn")


# nothing is left


async def cancelled_calls_leave_nothing(make: Make) -> None:
    """A hundred cancelled calls leave no task and no running hop behind."""
    async with make(_graph()) as runtime:
        async with runtime.open_call():
            await runtime.handle("Probe").echo(1)
        await asyncio.sleep(0)
        gc.collect()
        before = len(asyncio.all_tasks())
        for _ in range(100):
            async with runtime.open_call() as call:
                stream = aiter(runtime.entry.endless())
                await anext(stream)
                call.cancel("hang-up")

                async def read(items: Any) -> None:
                    async for _ in items:
                        pass

                await raises(Cancelled, read(stream))
            del stream

        async def gone() -> bool:
            return len(asyncio.all_tasks()) <= before and all(not one.running for one in runtime.load())

        await until(gone, f"the tasks of cancelled calls end (before: {before})")


CASES = tuple(
    Case("flow", run.__name__, run)
    for run in (
        callee_only_stops_reading,
        cancelled_turn_keeps_the_call,
        queue_is_bounded_in_bytes,
        one_item_is_always_admitted,
        slow_reader_holds_up_nobody_else,
        input_has_credit_too,
        arguments_are_checked,
        results_are_checked,
        values_arrive_as_sent,
        arrays_arrive_read_only,
        streams_pass_as_arguments,
        error_of_a_lent_stream_arrives,
        a_hops_stream_is_read_in_parts,
        caps_are_hard,
        interactive_before_batch,
        load_counts_streams,
        parts_sum_to_the_whole,
        critical_path_sums_to_the_latency,
        played_is_reported,
        cancelled_calls_leave_nothing,
    )
)
