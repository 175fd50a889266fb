"""Cases: how replicas share the work. What may be tried again, whom a call prefers, what load says, what is carried."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from chains.dsl.graph import build
from chains.errors import DeadlineExceeded, Unavailable
from chains.testing.harness import Case, Make, at_rest, expect, raises, until
from chains.testing.probes import Entry, Insured, Order


def _graph() -> Any:
    return build(Entry)


def _loads(runtime: Any) -> list[Any]:
    return [one for one in runtime.load() if one.node == "Probe"]


# accept and retry


async def queued_is_answered_elsewhere(make: Make) -> None:
    """A hop that queues at a replica that goes away was not accepted: another replica answers it."""
    async with make(_graph(), replicas={"Probe": 2}) as runtime, runtime.open_call():
        probe = runtime.handle("Probe")
        running: list[Any] = []
        for number in range(16):  # each in a call of its own, so that both replicas fill up
            running.append(_in_own_call(runtime, number))

        async def full() -> bool:
            return all(one.running == 8 for one in _loads(runtime))

        await until(full, "8 calls running on each replica")
        waiting = asyncio.ensure_future(_awaited(probe.echo(7)))

        async def queued() -> bool:
            return bool(sum(one.queued for one in _loads(runtime)) == 1)

        await until(queued, "the call queues")
        victim = next(index for index, one in enumerate(_loads(runtime)) if one.queued)
        await runtime.kill("Probe", victim)

        async def moved() -> bool:
            return bool(_loads(runtime)[1 - victim].queued == 1)

        await until(moved, "the call queues at the other replica")
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        expect(await asyncio.wait_for(waiting, 5.0) == 7, "answered by the replica that is left")


def _in_own_call(runtime: Any, number: int) -> asyncio.Task[Any]:
    async def hold_a_slot() -> Any:
        async with runtime.open_call():
            return await runtime.handle("Probe").gated(number)

    return asyncio.ensure_future(hold_a_slot())


async def _awaited(result: Any) -> Any:
    return await result


async def consumed_is_not_repeated(make: Make) -> None:
    """An idempotent hop that has taken of its input is not begun again: that part of the input is gone."""

    async def numbers() -> AsyncIterator[int]:
        for n in range(3):
            yield n

    async with make(_graph(), replicas={"Probe": 2}) as runtime, runtime.open_call():
        probe = runtime.handle("Probe")
        result = probe.idempotent_total(numbers())

        async def started() -> bool:
            return bool((await probe.seen()).get("idempotent_total", 0))

        await until(started, "the hop takes its first item")
        victim = next(index for index, one in enumerate(_loads(runtime)) if one.running)
        await runtime.kill("Probe", victim)
        await raises(Unavailable, result)
        expect((await probe.seen()).get("idempotent_total", 0) == 0, "the other replica never saw the hop")


# a second way to the answer


def _running(runtime: Any, count: int) -> Any:
    async def check() -> bool:
        return bool(sum(one.running for one in _loads(runtime)) == count)

    return check


async def slow_is_hedged(make: Make) -> None:
    """An idempotent hop that gives nothing for `hedge` seconds is asked of a second replica too: the first answer
    counts, the other attempt is cancelled, and the account shows both."""
    async with make(build(Insured), replicas={"Probe": 2}) as runtime, runtime.open_call() as call:
        result = asyncio.ensure_future(_awaited(runtime.entry.hedged_lookup(7)))
        await until(_running(runtime, 2), "both replicas are asked")
        await runtime.handle("Probe").open_gate()  # at one of them
        expect(await asyncio.wait_for(result, 5.0) == 7, "the one whose gate is open answers")
        await until(_running(runtime, 0), "the other attempt is cancelled")
        record = runtime.recorder.find(call.id)
        hops = [hop.outcome for hop in record.hops if hop.label == "Probe.lookup"] if record else []
        expect(sorted(hops) == ["cancelled", "done", "done"], f"the hop, and its two attempts: {hops}")


async def streams_are_hedged(make: Make) -> None:
    """So is a stream, until its first item."""
    async with make(build(Insured), replicas={"Probe": 2}) as runtime, runtime.open_call():
        numbers = aiter(runtime.entry.hedged_numbers(300, 0))
        first = asyncio.ensure_future(anext(numbers))
        await until(_running(runtime, 2), "both replicas are asked")
        await runtime.handle("Probe").open_gate()
        got = [await asyncio.wait_for(first, 5.0)] + [n async for n in numbers]
        expect(got == list(range(300)), f"each item once, in order: {got[:5]}... {len(got)}")
        await until(_running(runtime, 0), "the other attempt is cancelled")


async def hedging_repeats_nothing(make: Make) -> None:
    """What is not idempotent is never asked of two, nor is a stream that has begun."""
    async with make(build(Insured), replicas={"Probe": 2}) as runtime, runtime.open_call():
        entry = runtime.entry
        numbers = aiter(entry.hedged_numbers(2, 1))
        expect(await anext(numbers) == 0, "the first item")
        booking = asyncio.ensure_future(_awaited(entry.hedged_gated(1)))
        await until(_running(runtime, 2), "both are at work")
        lookup = asyncio.ensure_future(_awaited(entry.hedged_lookup(1)))
        await until(_running(runtime, 4), "the lookup is hedged; it began last")
        await at_rest()
        running = sum(one.running for one in _loads(runtime))
        expect(running == 4, f"stream, booking, two lookups: {running} hops")
        for task in (booking, lookup):
            task.cancel()


async def fallback_answers_in_time(make: Make) -> None:
    """A hop that eats its time, and may be repeated, is answered by the fall-back; so is a stream without an item."""
    async with make(build(Insured)) as runtime, runtime.open_call():
        expect(await asyncio.wait_for(_awaited(runtime.entry.rescued_lookup(7)), 5.0) == -7, "the fall-back's answer")
        got = [n async for n in runtime.entry.rescued_numbers(3, 0)]
        expect(got == [0, -1, -2], f"the fall-back's stream: {got}")
        await until(_running(runtime, 0), "what was too slow is cancelled")


async def fallback_answers_for_the_dead(make: Make) -> None:
    """When no replica takes the hop, the fall-back answers, whatever the hop is: nobody has begun it."""
    async with make(build(Insured)) as runtime, runtime.open_call():
        await runtime.kill("Probe", 0)

        async def rescued() -> bool:
            try:
                return bool(await asyncio.wait_for(_awaited(runtime.entry.rescued_echo(7)), 5.0) == -7)
            except Unavailable:  # it had left before its caller heard of the death
                return False

        await until(rescued, "the fall-back's answer")


async def fallback_repeats_nothing(make: Make) -> None:
    """What had begun and is not idempotent, or has delivered, does not fall back."""
    async with make(build(Insured)) as runtime, runtime.open_call():
        await raises(DeadlineExceeded, runtime.entry.rescued_gated(1))
        numbers = aiter(runtime.entry.rescued_numbers(3, 1))
        expect(await anext(numbers) == 0, "the first item")
        await runtime.kill("Probe", 0)
        await raises(Unavailable, anext(numbers))
        expect("spare" not in await runtime.handle("Spare").seen(), "the fall-back was not asked")


# load


async def affinity_keeps_the_replica(make: Make) -> None:
    """A conversation stays with the replica that it had before; another one may have another."""
    async with make(_graph(), replicas={"Probe": 3}) as runtime:
        for number in range(3):
            async with runtime.open_call(affinity=f"caller {number}"):
                probe = runtime.handle("Probe")
                before = (await probe.seen()).get("echo", 0)
                for n in range(6):
                    await probe.echo(n)
                after = (await probe.seen()).get("echo", 0)
                expect(after - before == 6, f"all six calls went to one replica: {after - before}")


async def load_counts_turns_and_wait(make: Make) -> None:
    """Active turns and the wait in the queue are told apart from hops and streams."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe = runtime.handle("Probe")
        outside = [probe.gated(n) for n in range(6)]
        async with call.new_turn() as turn:
            inside = [probe.gated(n) for n in range(2)]

            async def full() -> bool:
                return bool(_loads(runtime)[0].running == 8)

            await until(full, "8 running calls")
            load = _loads(runtime)[0]
            expect((load.turns, load.streams) == (2, 0), f"2 of 8 hops belong to a turn, no stream is open: {load}")
            late = probe.echo(1)
            await until(_queue_is(runtime, 1), "a call queues")
            start = time.monotonic()
            await at_rest()
            waited = (time.monotonic() - start) * 1e3
            load = _loads(runtime)[0]
            expect(load.queue_wait_ms >= waited - 1.0, f"at least {waited:.0f} ms of wait: {load}")
            inside.clear()
            expect(await late == 1, "the queued call")
            turn.mark("seen")
        outside.clear()


def _queue_is(runtime: Any, count: int) -> Any:
    async def check() -> bool:
        return bool(_loads(runtime)[0].queued == count)

    return check


async def queue_wait_is_accounted(make: Make) -> None:
    """The time that a hop has queued is told apart from its compute."""
    async with make(_graph()) as runtime, runtime.open_call() as call:
        probe = runtime.handle("Probe")
        running = [probe.gated(n) for n in range(8)]
        late = probe.echo(1)
        await until(_queue_is(runtime, 1), "a call queues")
        start = time.monotonic()
        await at_rest()
        waited = time.monotonic() - start
        running.clear()
        await late
        record = runtime.recorder.find(call.id)
        hop = next(hop for hop in record.hops if hop.label == "Probe.echo") if record else None
        expect(hop is not None and hop.parts()["queue"] >= waited * 0.9, f"{waited} s of queue: {hop and hop.parts()}")


# credit and values


async def slow_reader_stops_the_source(make: Make) -> None:
    """A slow reader holds up the source itself, through the hops between."""
    async with make(_graph()) as runtime, runtime.open_call():
        probe = runtime.handle("Probe")
        stream = aiter(runtime.entry.endless())  # Entry reads Relay, which reads Probe
        await anext(stream)
        made = -1
        while made != (made := (await probe.seen())["made"]):
            await at_rest()
        bound = 3 * 256 + 16
        expect(made <= bound, f"{made} items of 1 KB were made; three windows hold at most {bound}")


async def models_arrive_as_models(make: Make) -> None:
    """A pydantic model arrives as that model, equal to what was sent."""
    order = Order(name="gauze", pieces=3, notes=["sterile"])
    async with make(_graph()) as runtime, runtime.open_call():
        back = await runtime.handle("Probe").order(order)
        expect(type(back) is Order and back == order, f"equal: {back!r}")


async def hops_know_their_call(make: Make) -> None:
    """Tenant, priority and affinity of the call are known on every hop."""
    async with make(_graph()) as runtime:
        async with runtime.open_call(id="c1", tenant="clinic", priority="batch", affinity="lee"):
            carried = await runtime.entry.carried()
        expect(carried == ["c1", "clinic", "batch", "lee"], f"as seen three hops down: {carried}")


CASES = tuple(
    Case("replicas", run.__name__, run)
    for run in (
        queued_is_answered_elsewhere,
        consumed_is_not_repeated,
        slow_is_hedged,
        streams_are_hedged,
        hedging_repeats_nothing,
        fallback_answers_in_time,
        fallback_answers_for_the_dead,
        fallback_repeats_nothing,
        affinity_keeps_the_replica,
        load_counts_turns_and_wait,
        queue_wait_is_accounted,
        slow_reader_stops_the_source,
        models_arrive_as_models,
        hops_know_their_call,
    )
)
