"""Chainlets that the conformance suite calls. What they saw is asked of them by a call, so they may run anywhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from chains.call import current
from chains.dsl.chainlet import chainlet, depends, method
from chains.dsl.specs import Limits
from chains.errors import NotFound
from chains.messages import Audio, Control, Tensor, Text, Tokens

WINDOW = 64 * 1024
FOREIGN = "tabnanny"  # a module that nobody imports: the name of an error's type must not load it


class Listed(Exception):
    """An error that a method lists in `raises`."""


class Unlisted(Exception):
    """An error that no method lists."""


@dataclass(frozen=True)
class Booking:
    doctor: str
    day: Literal["monday", "tuesday"]
    minutes: int = 30


class Order(BaseModel):
    name: str
    pieces: int
    notes: list[str] = []


@chainlet(limits=Limits(running=8, queued=4))
class Probe:
    """A chainlet that counts what happens to it."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.gate = asyncio.Event()
        self.hold = threading.Event()

    def _count(self, name: str, by: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + by

    async def seen(self) -> dict[str, int]:
        return dict(self.counts)

    async def open_gate(self) -> None:
        self.gate.set()
        self.hold.set()

    # unary

    async def echo(self, value: int) -> int:
        self._count("echo")
        return value

    async def gated(self, value: int) -> int:
        """Waits for the gate; counts how it began and ended."""
        self._count("gated")
        try:
            await self.gate.wait()
        finally:
            self._count("gated_finally")
        return value

    @method(idempotent=True)
    async def lookup(self, value: int) -> int:
        self._count("lookup")
        await self.gate.wait()
        return value

    async def remaining(self) -> float | None:
        return current().remaining()

    async def carried(self) -> list[str]:
        """What the conversation says of itself, as it is seen here."""
        call = current().call
        return [call.id, call.tenant, call.priority, call.affinity]

    def blocking(self, value: int) -> int:
        """Plain `def`: blocks its thread until the gate opens."""
        self._count("blocking")
        self.hold.wait(10.0)
        self._count("blocking_finally")
        return value

    # streams out

    async def endless(self, size: int = 1024) -> AsyncIterator[bytes]:
        """Items without end, as fast as credit allows."""
        item = b"x" * size
        try:
            while True:
                self._count("made")
                yield item
                if self.counts["made"] % 64 == 0:
                    await asyncio.sleep(0)
        finally:
            self._count("endless_finally")

    async def numbers(self, count: int) -> AsyncIterator[int]:
        for n in range(count):
            self._count("numbers")
            yield n

    async def gated_numbers(self, count: int, before_gate: int) -> AsyncIterator[int]:
        """`before_gate` numbers at once, the rest when the gate opens."""
        try:
            for n in range(count):
                if n == before_gate:
                    await self.gate.wait()
                yield n
        finally:
            self._count("gated_numbers_finally")

    @method(idempotent=True)
    async def idempotent_numbers(self, count: int, before_gate: int) -> AsyncIterator[int]:
        self._count("idempotent_numbers")
        for n in range(count):
            if n == before_gate:
                await self.gate.wait()
            yield n

    def blocking_numbers(self, count: int) -> Iterator[int]:
        """Plain `def` generator: each step runs in a thread."""
        try:
            for n in range(count):
                self._count("blocking_numbers")
                yield n
        finally:
            self._count("blocking_numbers_finally")

    async def paced(self, count: int, seconds: float) -> AsyncIterator[int]:
        """A number every so many seconds."""
        for n in range(count):
            await asyncio.sleep(seconds)
            yield n

    # streams in

    async def total(self, numbers: AsyncIterator[int]) -> int:
        return sum([n async for n in numbers])

    @method(idempotent=True)
    async def idempotent_total(self, numbers: AsyncIterator[int]) -> int:
        """Takes one number, waits for the gate, takes the rest."""
        total = await anext(numbers)
        self._count("idempotent_total")
        await self.gate.wait()
        return total + sum([n async for n in numbers])

    def blocking_total(self, numbers: Iterator[int]) -> int:
        """Plain `def` that reads a stream in its thread."""
        try:
            total = 0
            for n in numbers:
                self._count("blocking_total")
                total += n
            return total
        finally:
            self._count("blocking_total_finally")

    async def first_of(self, numbers: AsyncIterator[int], count: int) -> list[int]:
        taken: list[int] = []
        async for n in numbers:
            taken.append(n)
            if len(taken) == count:
                break
        return taken

    async def doubled(self, numbers: AsyncIterator[int]) -> AsyncIterator[int]:
        try:
            async for n in numbers:
                yield 2 * n
        finally:
            self._count("doubled_finally")

    async def swallow(self, items: AsyncIterator[bytes]) -> int:
        """Takes one item a gate's opening, then everything."""
        count = 0
        async for _ in items:
            await self.gate.wait()
            count += 1
        return count

    # errors

    async def fail(self, kind: str) -> int:
        raise _error(kind)

    @method(raises=(Listed,))
    async def fail_listed(self) -> int:
        raise Listed("as listed")

    async def fail_midway(self, kind: str, after: int) -> AsyncIterator[int]:
        for n in range(after):
            yield n
        raise _error(kind)

    async def wrong_result(self) -> int:
        return "seven"  # type: ignore[return-value]

    async def wrong_item(self) -> AsyncIterator[int]:
        yield 1
        yield "two"  # type: ignore[misc]

    # values

    async def book(self, booking: Booking) -> Booking:
        return booking

    async def order(self, order: Order) -> Order:
        return order

    async def scale(self, array: np.ndarray[Any, Any], by: float) -> np.ndarray[Any, Any]:
        return array * by

    async def writeable(self, array: np.ndarray[Any, Any], tensor: Tensor, sound: Audio) -> list[bool]:
        return [bool(a.flags.writeable) for a in (array, tensor.data, sound.pcm)]

    async def same(
        self,
        items: list[Text | Tokens | Control | str | int | float | bytes | list[int] | dict[str, int] | None],
    ) -> list[Text | Tokens | Control | str | int | float | bytes | list[int] | dict[str, int] | None]:
        return items


def _error(kind: str) -> Exception:
    if kind == "value":
        return ValueError("no such day")
    if kind == "key":
        return KeyError("doctor")
    if kind == "ours":
        return NotFound("no such patient", mend="ask for the name")
    if kind == "foreign":
        strange: type[Exception] = type("Strange", (Exception,), {"__module__": FOREIGN})
        return strange("from elsewhere")
    return Unlisted("of our own making")


@chainlet
class Relay:
    """A hop between the entry and the probe."""

    probe: Probe = depends(Probe, window=WINDOW)

    def __init__(self) -> None:
        self.finished = 0

    async def finishes(self) -> int:
        return self.finished

    async def endless(self) -> AsyncIterator[bytes]:
        try:
            async for item in self.probe.endless():
                yield item
        finally:
            self.finished += 1

    async def gated(self, value: int) -> int:
        try:
            return await self.probe.gated(value)
        finally:
            self.finished += 1

    async def fail(self, kind: str) -> int:
        return await self.probe.fail(kind)

    async def fail_midway(self, kind: str, after: int) -> AsyncIterator[int]:
        async for n in self.probe.fail_midway(kind, after):
            yield n

    async def remaining(self) -> float | None:
        return await self.probe.remaining()

    async def carried(self) -> list[str]:
        return await self.probe.carried()

    def from_thread(self, count: int) -> int:
        """A plain `def` calls another chainlet: there, the call blocks and gives values."""
        numbers: Any = self.probe.numbers(count)
        return sum(numbers)


@chainlet(entry=True)
class Entry:
    """Holds the others with the options under test; the cases call it, or the others by their handles."""

    relay: Relay = depends(Relay)
    probe: Probe = depends(Probe, window=WINDOW)
    impatient: Probe = depends(Probe, timeout=0.08, first=0.08, idle=0.08)
    steady: Probe = depends(Probe, timeout=0.2, first=0.2, idle=0.2)

    async def endless(self) -> AsyncIterator[bytes]:
        async for item in self.relay.endless():
            yield item

    async def fail(self, kind: str) -> int:
        return await self.relay.fail(kind)

    async def late_unary(self) -> int:
        return await self.impatient.gated(1)

    async def late_first(self) -> AsyncIterator[int]:
        async for n in self.impatient.gated_numbers(3, 0):
            yield n

    async def late_next(self) -> AsyncIterator[int]:
        async for n in self.impatient.gated_numbers(3, 2):
            yield n

    async def slow_but_steady(self) -> AsyncIterator[int]:
        """Longer as a whole than each of its timeouts."""
        async for n in self.steady.paced(6, 0.06):
            yield n

    async def carried(self) -> list[str]:
        return await self.relay.carried()

    async def remaining_within(self) -> float | None:
        return await self.impatient.remaining()

    async def pipe(self, count: int) -> list[int]:
        """The stream of one hop is the argument of the next, twice."""
        return [n async for n in self.probe.doubled(self.probe.doubled(self.probe.numbers(count)))]

    async def parts_in_turns(self, numbers: AsyncIterator[int], each: int) -> list[list[int]]:
        """Two hops after each other read on in the same stream."""
        first = await self.probe.first_of(numbers, each)
        second = await self.probe.first_of(numbers, each)
        return [first, second]

    async def turn_cancelled_while_reading(self, numbers: AsyncIterator[int]) -> list[int]:
        """A turn that reads the call's stream is cancelled; the stream goes on into the next turn."""
        call = current().call
        taken: list[int] = []
        async with call.new_turn() as turn:
            async for n in self.probe.doubled(numbers):
                taken.append(n)
                if len(taken) == 2:
                    turn.cancel("barge-in")
                    await asyncio.Event().wait()
        async for n in self.probe.doubled(numbers):
            taken.append(n)
            if len(taken) == 4:
                break
        return taken


@chainlet
class Spare(Probe):
    """Answers for the probe, and shows that it was not the probe."""

    async def echo(self, value: int) -> int:
        self._count("spare")
        return -value

    async def gated(self, value: int) -> int:
        self._count("spare")
        return -value

    @method(idempotent=True)
    async def lookup(self, value: int) -> int:
        self._count("spare")
        return -value

    @method(idempotent=True)
    async def idempotent_numbers(self, count: int, before_gate: int) -> AsyncIterator[int]:
        self._count("spare")
        for n in range(count):
            yield -n


@chainlet(entry=True)
class Insured:
    """Holds the probe with a second way to its answer."""

    hedged: Probe = depends(Probe, hedge=0.05)
    rescued: Probe = depends(Probe, timeout=0.15, first=0.15, fallback=Spare)

    async def hedged_lookup(self, value: int) -> int:
        return await self.hedged.lookup(value)

    async def hedged_gated(self, value: int) -> int:
        return await self.hedged.gated(value)

    async def hedged_numbers(self, count: int, before_gate: int) -> AsyncIterator[int]:
        async for n in self.hedged.idempotent_numbers(count, before_gate):
            yield n

    async def rescued_echo(self, value: int) -> int:
        return await self.rescued.echo(value)

    async def rescued_lookup(self, value: int) -> int:
        return await self.rescued.lookup(value)

    async def rescued_gated(self, value: int) -> int:
        return await self.rescued.gated(value)

    async def rescued_numbers(self, count: int, before_gate: int) -> AsyncIterator[int]:
        async for n in self.rescued.idempotent_numbers(count, before_gate):
            yield n
