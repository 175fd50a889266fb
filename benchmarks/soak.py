"""A soak: many streams at once, random cancels, a replica killed every now and then, for as long as is asked.

Every item is checked by its place and checksum. A typed error is right only where the contract's retry rule does not
cover the call: a replica was killed meanwhile, and something had been delivered or the method is not idempotent. An
operation that takes longer than HANG seconds hangs. Memory is sampled each second; what counts is its slope.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter as Tally
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

import numpy as np
import psutil

from benchmarks.peers.ours import RUNTIME, ground, started
from benchmarks.report import Row, arguments, bounded, report
from chains.dsl.chainlet import chainlet, depends, method
from chains.dsl.graph import build
from chains.dsl.specs import Limits
from chains.errors import Unavailable

HANG = 30.0
LATE = 5.0
"""Seconds after a kill in which an error may still be its doing."""
REPLICAS = {"Relay": 3, "Numbers": 5}
"""Where killed ones do not come back, the whole runtime is started anew when two of a kind would be one."""
MB = 1e6


@dataclass
class Numbered:
    index: int
    payload: bytes
    crc: int


def made(seed: int, index: int) -> Numbered:
    """The item of that place in the stream of that seed: 1 to 4,096 bytes."""
    chance = random.Random(seed * 1_000_003 + index)
    payload = chance.randbytes(1 << chance.randrange(13))
    return Numbered(index, payload, crc32(payload))


@chainlet(limits=Limits(running=128, queued=128))
class Numbers:
    @method(idempotent=True)
    async def count(self, seed: int, times: int) -> AsyncIterator[Numbered]:
        for index in range(times):
            if index % 8 == 0:
                await asyncio.sleep(0.02)
            yield made(seed, index)

    @method(idempotent=True)
    async def checksum(self, seed: int) -> int:
        return made(seed, 0).crc

    async def total(self, items: AsyncIterator[Numbered]) -> int:
        crc = 0
        async for item in items:
            crc = crc32(item.payload, crc)
        return crc


@chainlet(entry=True, limits=Limits(running=128, queued=128))
class Relay:
    numbers: Numbers = depends(Numbers, timeout=20.0, first=20.0, idle=20.0)

    @method(idempotent=True)
    async def count(self, seed: int, times: int) -> AsyncIterator[Numbered]:
        async for item in self.numbers.count(seed, times):
            yield item

    @method(idempotent=True)
    async def checksum(self, seed: int) -> int:
        return await self.numbers.checksum(seed)

    async def total(self, items: AsyncIterator[Numbered]) -> int:
        return await self.numbers.total(items)


class Wrong(Exception):
    """An answer that is not the right one."""


@dataclass
class Operation:
    """One call: what it is, and how far it came."""

    kind: str
    seed: int
    began: float
    delivered: int = 0
    retried: bool = True
    """Whether the retry rule covers it as long as nothing was delivered."""


@dataclass
class Found:
    """What the soak saw."""

    outcomes: Tally[str] = field(default_factory=Tally)
    wrong: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    left_behind: int = 0
    kills: list[float] = field(default_factory=list)
    own: list[tuple[float, float]] = field(default_factory=list)
    others: dict[int, list[tuple[float, float]]] = field(default_factory=dict)


async def stream(runtime: Any, op: Operation, chance: random.Random) -> None:
    """All of a stream, or a part after which it is left."""
    times = chance.randrange(1, 200)
    leave = chance.randrange(times) if op.kind == "left" else times
    async with aclosing(runtime.entry.count(op.seed, times)) as items:
        async for item in items:
            if op.delivered == leave:
                return
            if item != made(op.seed, op.delivered) or item.crc != crc32(item.payload):
                raise Wrong(f"item {op.delivered} of seed {op.seed} came as {item.index}, {len(item.payload)} bytes")
            op.delivered += 1
    if op.delivered != times:
        raise Wrong(f"the stream of seed {op.seed} ended after {op.delivered} of {times} items")


async def cancelled(runtime: Any, op: Operation, chance: random.Random) -> None:
    """A stream whose task is cancelled at any moment."""
    with suppress(TimeoutError):
        async with asyncio.timeout(chance.random() * 0.3):
            await stream(runtime, op, chance)


async def unary(runtime: Any, op: Operation, chance: random.Random) -> None:
    if await runtime.entry.checksum(op.seed) != made(op.seed, 0).crc:
        raise Wrong(f"the checksum of seed {op.seed}")


async def upload(runtime: Any, op: Operation, chance: random.Random) -> None:
    """A stream as argument, passed on from hop to hop."""
    items = [made(op.seed, index) for index in range(chance.randrange(100))]
    op.retried, expected = False, 0
    for item in items:
        expected = crc32(item.payload, expected)

    async def sent() -> AsyncIterator[Numbered]:
        for item in items:
            yield item

    if await runtime.entry.total(sent()) != expected:
        raise Wrong(f"the sum of {len(items)} items of seed {op.seed}")


KINDS: dict[str, Callable[[Any, Operation, random.Random], Awaitable[None]]] = {
    "stream": stream,
    "left": stream,
    "cancelled": cancelled,
    "unary": unary,
    "upload": upload,
}
WEIGHTS = (50, 15, 10, 15, 10)


class Soak:
    """Workers that call without pause, one that kills, one that weighs, for `seconds` from the first runtime on."""

    def __init__(self, runtime: str, seconds: float, streams: int, kill_every: float, seed: int) -> None:
        self._name, self._seconds, self._streams, self._kill_every = runtime, seconds, streams, kill_every
        self._chance = random.Random(seed)
        self._until = 0.0
        self._over = asyncio.Event()
        self.found = Found()

    async def run(self) -> Found:
        """Until the time is over; where replicas do not come back, in one generation of the runtime after another."""
        weigh, before = asyncio.ensure_future(self._weigh()), _children()
        while not self._until or time.monotonic() < self._until:
            await self._generation()
            if self._name == "processes":
                self.found.left_behind += len(_children() - before)
        weigh.cancel()
        return self.found

    async def _generation(self) -> None:
        self._over = asyncio.Event()
        async with started(self._name, build(Relay), replicas=REPLICAS) as runtime:
            self._until = self._until or time.monotonic() + self._seconds
            killer = asyncio.ensure_future(self._kill(runtime))
            await asyncio.gather(*(self._work(runtime) for _ in range(self._streams)))
            killer.cancel()
            with suppress(asyncio.CancelledError):
                await killer

    async def _work(self, runtime: Any) -> None:
        while not self._over.is_set() and time.monotonic() < self._until:
            (kind,) = self._chance.choices(list(KINDS), WEIGHTS)
            op = Operation(kind, self._chance.getrandbits(30), time.monotonic())
            try:
                await asyncio.wait_for(self._one(runtime, op), HANG)
            except TimeoutError:
                self.found.hung.append(f"{op.kind} of seed {op.seed} after {op.delivered} items")

    async def _one(self, runtime: Any, op: Operation) -> None:
        found = self.found
        try:
            async with runtime.open_call(deadline_s=HANG * 2):
                await KINDS[op.kind](runtime, op, random.Random(op.seed))
            found.outcomes[op.kind] += 1
        except Wrong as wrong:
            found.wrong.append(str(wrong))
        except Unavailable as error:
            killed = any(op.began - LATE < kill for kill in found.kills)
            if killed and (op.delivered or not op.retried):
                found.outcomes[f"{op.kind} lost to a kill"] += 1
            else:
                found.wrong.append(f"{op.kind} after {op.delivered} items, killed={killed}: {error}")
        except Exception as error:
            found.wrong.append(f"{op.kind} after {op.delivered} items: {type(error).__name__}: {error}")

    async def _kill(self, runtime: Any) -> None:
        """Kill a replica, now of one node, now of another; end the generation when one more would be too many."""
        left = {node: list(range(count)) for node, count in REPLICAS.items()}
        for node in self._turns():
            await asyncio.sleep(self._kill_every)
            if self._name == "processes" and len(left[node]) <= 2:
                self._over.set()
                return
            index = self._chance.choice(left[node])
            if self._name == "processes":
                left[node].remove(index)
            self.found.kills.append(time.monotonic())
            await runtime.kill(node, index)

    def _turns(self) -> Any:
        while True:
            yield from ("Numbers", "Relay", "Numbers")

    async def _weigh(self) -> None:
        """Resident memory of this process and of all below it, each second."""
        me = psutil.Process()
        while True:
            now = time.monotonic()
            self.found.own.append((now, me.memory_info().rss))
            for child in me.children(recursive=True):
                with suppress(psutil.Error):
                    self.found.others.setdefault(child.pid, []).append((now, child.memory_info().rss))
            await asyncio.sleep(1.0)


def _children() -> set[int]:
    """The processes below this one."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def slope(samples: list[tuple[float, float]], warm: float) -> float | None:
    """MB per minute after the first `warm` seconds; None when less than 15 samples are left."""
    kept = [(at, rss) for at, rss in samples if at >= samples[0][0] + warm]
    if len(kept) < 15:
        return None
    at, rss = np.asarray(kept).T
    return float(np.polyfit(at - at[0], rss, 1)[0]) * 60 / MB


def _thirds(found: Found) -> tuple[list[float], list[float]]:
    """Resident bytes of all replicas in the middle and in the last third of the time: killed ones are replaced, so
    those of either third are of all ages."""
    samples = [sample for each in found.others.values() for sample in each]
    if not samples:
        return [], []
    first, end = min(samples)[0], max(samples)[0]
    third = (end - first) / 3
    middle = [rss for at, rss in samples if first + third <= at < end - third]
    return middle, [rss for at, rss in samples if at >= end - third]


def rows(found: Found, warm: float) -> list[Row]:
    """`warm` seconds of the caller's memory are left out: what it keeps of recent calls is full by then."""
    total = sum(found.outcomes.values()) + len(found.wrong) + len(found.hung)
    lost = sum(count for name, count in found.outcomes.items() if name.endswith("lost to a kill"))
    own = slope(found.own, warm)
    result = [
        Row("wrong answers", len(found.wrong), n=total, goal=0, met=not found.wrong),
        Row("hangs", len(found.hung), n=total, goal=0, met=not found.hung),
        Row("operations that a kill ended with a typed error", lost, n=total),
        Row("replicas killed", len(found.kills)),
        Row("processes left behind", found.left_behind, goal=0, met=not found.left_behind),
    ]
    if own is not None:
        result.append(Row("MB/min: growth of the caller", own, n=len(found.own), goal=1.0, met=own <= 1.0))
    middle, last = _thirds(found)
    if middle and last:
        result.append(bounded("MB: a replica's p95, last / middle third", last, middle, 1.1, at=95, scale=1 / MB))
    return result


def main() -> None:
    options = arguments(
        __doc__ or "",
        more={
            "runtime": RUNTIME,
            "seconds": {"type": float, "default": 600.0, "help": "how long (default 600; 20 with --quick)"},
            "streams": {"type": int, "default": 50, "help": "operations at once (default 50)"},
            "kill_every": {
                "type": float,
                "default": 20.0,
                "help": "seconds between kills (default 20; 4 with --quick)",
            },
        },
    )
    more = options.more
    seconds, every = (20.0, 4.0) if options.quick else (more["seconds"], more["kill_every"])

    async def soak() -> Found:
        return await Soak(more["runtime"], seconds, more["streams"], every, options.seed).run()

    with ground(more["runtime"]):
        found = asyncio.run(soak())
    for what in (found.wrong + found.hung)[:20]:
        print(what, file=sys.stderr)
    print(", ".join(f"{name}: {count}" for name, count in sorted(found.outcomes.items())))
    title = f"{seconds:g} s, {more['streams']} at once, a kill every {every:g} s ({more['runtime']})"
    report(rows(found, min(60.0, seconds / 5)), options.json, title)


if __name__ == "__main__":
    main()
