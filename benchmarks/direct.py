"""A stream that one process makes and another reads, which a third has passed on: straight, against relayed.

Maker, reader and the caller between are processes of their own, twice: one chain whose streams go straight, and one
that relays them. The maker writes the moment into each token; both are on one machine, where all processes see the
same monotonic clock. CPU is that of the caller's process, which in the straight chain does nothing for a token.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

import psutil

from benchmarks.report import Options, Row, arguments, interleave, percentile, report
from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build
from chains.runtime.processes import Processes
from chains.wire.settings import WireSettings, new_token

PACE = 0.002
"""Seconds between paced tokens."""


@chainlet
class Maker:
    async def tokens(self, count: int, pace: float) -> AsyncIterator[int]:
        for _ in range(count):
            if pace:
                await asyncio.sleep(pace)
            yield time.monotonic_ns()


@chainlet
class Reader:
    async def ages(self, tokens: AsyncIterator[int]) -> list[int]:
        """How old each token is when it is taken, in nanoseconds."""
        return [time.monotonic_ns() - made async for made in tokens]


@chainlet(entry=True)
class Between:
    maker: Maker = depends(Maker, timeout=600.0, first=None, idle=None)
    reader: Reader = depends(Reader, timeout=600.0)

    async def run(self, count: int, pace: float) -> list[int]:
        return await self.reader.ages(self.maker.tokens(count, pace))


class Side:
    """One of the chains, and what is measured of it; the ages of all tokens and of the first ones are kept."""

    def __init__(self, loop: asyncio.Runner, runtime: Processes) -> None:
        self._loop = loop
        self._entry: Any = runtime.entry
        between = runtime._processes["Between"][0]._process
        assert between is not None
        self._between = psutil.Process(between.pid)
        self.ages: list[float] = []
        self.firsts: list[float] = []

    def run(self, count: int, pace: float) -> list[float]:
        async def run() -> Any:
            return await self._entry.run(count, pace)

        return [age / 1e9 for age in self._loop.run(run())]

    def paced(self, count: int) -> float:
        ages = self.run(count, PACE)
        self.firsts.append(ages[0])
        self.ages += ages[1:]
        return percentile(ages, 50)

    def cpu(self, count: int) -> float:
        """Seconds of the caller's CPU for each token."""
        before = self._spent()
        self.run(count, 0.0)
        return (self._spent() - before) / count

    def whole(self, count: int) -> float:
        """Seconds for each token of a stream that is made as fast as it is read."""
        start = time.perf_counter()
        self.run(count, 0.0)
        return (time.perf_counter() - start) / count

    def _spent(self) -> float:
        times = self._between.cpu_times()
        return float(times.user + times.system)


def row(name: str, ours: list[float], peer: list[float], goal: float | None) -> Row:
    """A row in microseconds whose goal bounds the ratio of the medians."""
    mine, theirs = percentile(ours, 50) * 1e6, percentile(peer, 50) * 1e6
    ratio = mine / theirs if theirs else None
    met = None if goal is None or ratio is None else ratio <= goal
    return Row(name, mine, theirs, ratio, mine, percentile(ours, 99) * 1e6, len(ours), goal, met)


def measure(straight: Side, relayed: Side, options: Options) -> list[Row]:
    rounds, paced, many = (3, 100, 5_000) if options.quick else (15, 300, 50_000)
    work: dict[str, Callable[[], float]] = {
        "paced": lambda: straight.paced(paced),
        "peer paced": lambda: relayed.paced(paced),
        "cpu": lambda: straight.cpu(many),
        "peer cpu": lambda: relayed.cpu(many),
        "whole": lambda: straight.whole(many),
        "peer whole": lambda: relayed.whole(many),
    }
    kept = interleave(rounds, work, seed=options.seed)
    return [
        row("a token from maker to reader, us", straight.ages, relayed.ages, 0.7),
        row("the same, first token of a stream, us", straight.firsts, relayed.firsts, None),
        row("CPU of the process between for each token, us", kept["cpu"], kept["peer cpu"], 0.05),
        row("a token of a stream at full speed, us", kept["whole"], kept["peer whole"], 1.0),
    ]


def main() -> None:
    options = arguments("A stream that a third process passes on: straight, against relayed")
    with asyncio.Runner() as loop:  # its runs share a context, and so the open call
        stack = AsyncExitStack()

        async def start(direct: bool) -> Side:
            settings = WireSettings(new_token(), direct=direct)
            runtime = await stack.enter_async_context(Processes(build(Between), wire=settings))
            await stack.enter_async_context(runtime.open_call(deadline_s=3600.0))
            return Side(loop, runtime)

        straight, relayed = loop.run(start(True)), loop.run(start(False))
        rows = measure(straight, relayed, options)
        loop.run(stack.aclose())
    report(rows, options.json, "A stream passed on; goals bound the ratio")


if __name__ == "__main__":
    main()
