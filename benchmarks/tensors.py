"""Large arrays between two processes through the whole stack, against raw gRPC and Ray's object store.

Ours goes from handle to method: deadline, credit, caps, the array checked on both sides, read-only on arrival, at both
ends of it looked at. On one machine it goes through shared memory (two copies); with that switched off, in chunks over
loopback. The peers: a 1 KB call of raw grpc.aio; the same array as raw bytes in one gRPC message; ray.put here, ray.get
in an actor. All servers are processes of their own; sides are measured in turn, in random order.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

import numpy as np
import psutil

from benchmarks.peers import raw
from benchmarks.peers.loops import Array, ends
from benchmarks.report import Options, Row, arguments, interleave, percentile, report
from chains.dsl.chainlet import chainlet
from chains.dsl.graph import build
from chains.dsl.specs import Limits
from chains.runtime.processes import Processes
from chains.wire.settings import WireSettings, new_token

MIB = 2**20
TEXT = "x" * 1024


@chainlet(entry=True, limits=Limits(running=64, queued=64))
class Sink:
    async def say(self, text: str) -> str:
        return text

    async def take(self, array: Array) -> float:
        return ends(array)

    async def make(self, megabytes: int) -> AsyncIterator[Array]:
        for number in range(megabytes):
            yield np.full(MIB // 4, number, np.float32)


def array_of(size: int) -> Array:
    return np.arange(size // 4, dtype=np.float32)


class Side:
    """A runtime with its chain, and a call that stays open for what is measured."""

    def __init__(self, loop: asyncio.Runner, *, shared: bool) -> None:
        self._loop = loop
        wire = WireSettings(new_token(), shared_memory=shared)
        self._runtime = loop.run(_entered(Processes(build(Sink), wire=wire)))
        self._call = self._runtime.open_call(deadline_s=3600.0)
        loop.run(_entered(self._call))
        self.handle = self._runtime.entry
        self.process = psutil.Process(self._runtime._processes["Sink"][0]._process.pid)

    async def take(self, array: Array) -> float:
        return float(await self.handle.take(array))

    def close(self) -> None:
        self._loop.run(_left(self._call))
        self._loop.run(_left(self._runtime))


async def _entered(manager: Any) -> Any:
    return await manager.__aenter__()


async def _left(manager: Any) -> None:
    await manager.__aexit__(None, None, None)


class Bench:
    """All sides, and how each is timed."""

    def __init__(self, loop: asyncio.Runner, port: int, options: Options) -> None:
        self.loop = loop
        self.options = options
        self.taken: dict[str, list[float]] = {}
        self.store = _store()
        self.shared, self.plain = Side(loop, shared=True), Side(loop, shared=False)
        self.channel = loop.run(_dialled(port))
        self.raw = raw.Stub(self.channel)

    def timed(self, name: str, call: Callable[[], Awaitable[Any]], times: int) -> Callable[[], float]:
        """A side: `times` calls one after the other, each of them kept under `name`."""
        taken = self.taken.setdefault(name, [])

        async def run() -> None:
            for _ in range(times):
                start = time.perf_counter()
                await call()
                taken.append(time.perf_counter() - start)

        def side() -> float:
            self.loop.run(run())
            return percentile(taken[-times:], 50)

        return side

    def ray_timed(self, name: str, array: Array, times: int) -> Callable[[], float]:
        taken = self.taken.setdefault(name, [])

        def side() -> float:
            for _ in range(times):
                start = time.perf_counter()
                self.store.put(array)
                taken.append(time.perf_counter() - start)
            return percentile(taken[-times:], 50)

        return side

    def measure(self) -> list[Row]:
        quick = self.options.quick
        sides = {"say": self.timed("say", lambda: self.raw.say(TEXT), 40)}
        for size, times in ((MIB, 20), (8 * MIB, 8), (64 * MIB, 3)):
            array, name = array_of(size), f"{size // MIB} MiB"
            assert self.loop.run(self.shared.take(array)) == self.loop.run(self.raw.put(array))
            for side, put in (("shared", self.shared.take), ("plain", self.plain.take), ("raw", self.raw.put)):
                key = f"{side} {name}"
                sides[key] = self.timed(key, lambda put=put, array=array: put(array), times)  # type: ignore[misc]
            if self.store is not None:
                sides[f"ray {name}"] = self.ray_timed(f"ray {name}", array, times)
        interleave(2 if quick else 12, sides, seed=self.options.seed)
        rows = [
            self.row("1 MiB, same machine / 1 KB raw grpc call, us", "shared 1 MiB", "say", 1.6),
            self.row("8 MiB, same machine / 1 KB raw grpc call, us", "shared 8 MiB", "say", 4.0),
            self.row("64 MiB, same machine / 1 KB raw grpc call, us", "shared 64 MiB", "say", None),
        ]
        for name, store, bytes_ in (("1 MiB", None, None), ("8 MiB", None, None), ("64 MiB", 1.1, 1.15)):
            if self.store is not None:
                rows.append(
                    self.row(f"{name}, same machine / Ray's object store, us", f"shared {name}", f"ray {name}", store)
                )
            rows.append(
                self.row(f"{name}, chunks over TCP / raw bytes grpc, us", f"plain {name}", f"raw {name}", bytes_)
            )
        return [*rows, *self.company(), *self.stalled()]

    def row(self, name: str, ours: str, peer: str, goal: float | None) -> Row:
        mine, theirs = self.taken[ours], self.taken[peer]
        figure, other = percentile(mine, 50) * 1e6, percentile(theirs, 50) * 1e6
        met = None if goal is None else figure / other <= goal
        return Row(name, figure, other, figure / other, figure, percentile(mine, 99) * 1e6, len(mine), goal, met)

    def company(self) -> list[Row]:
        """Small calls while 64 MiB arrays go to the same replica all the time, against small calls alone."""
        rows, array = [], array_of(64 * MIB)
        for name, side in (("same machine", self.shared), ("chunks over TCP", self.plain)):
            times = 40 if self.options.quick else 400
            alone, beside = self.loop.run(_small(side, times, None)), self.loop.run(_small(side, times, array))
            figure, other = percentile(beside, 99) * 1e3, percentile(alone, 99) * 1e3
            title = f"1 KB call beside 64 MiB arrays, {name} / alone, p99 in ms"
            rows.append(Row(title, figure, other, figure / other, percentile(beside, 50) * 1e3, figure, times))
        return rows

    def stalled(self) -> list[Row]:
        """A producer of 1 GB whose consumer takes one item and then nothing: MiB by which both processes grow."""
        rows = []
        for name, side in (("same machine", self.shared), ("chunks over TCP", self.plain)):
            grown, queued = self.loop.run(_stalled(side, 64 if self.options.quick else 1024))
            rows.append(Row(f"1 GB stalled, {name}: growth of both, MiB", grown, n=1, goal=64.0, met=grown <= 64))
            most = 1.26  # the window of 0.25 and one item
            rows.append(Row(f"1 GB stalled, {name}: queued, MiB", queued, n=1, goal=most, met=queued <= most))
        return rows

    def close(self) -> None:
        self.loop.run(self.channel.close())
        for side in (self.shared, self.plain):
            side.close()
        if self.store is not None:
            self.store.close()


async def _dialled(port: int) -> Any:
    return raw.dial(port)


def _store() -> Any:
    """Ray, where it is installed and starts."""
    try:
        from benchmarks.peers.ray_store import Store
    except ImportError:
        print("ray is not installed: its rows are left out", file=sys.stderr)
        return None
    try:
        return Store(1024 * MIB)
    except Exception as error:  # what Ray raises where it cannot start has no one type
        print(f"ray does not start ({type(error).__name__}: {error}): its rows are left out", file=sys.stderr)
        return None


async def _small(side: Side, times: int, array: Array | None) -> list[float]:
    async def large() -> None:
        while True:
            await side.take(array)  # type: ignore[arg-type]

    load = asyncio.ensure_future(large()) if array is not None else None
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        await side.handle.say(TEXT)
        taken.append(time.perf_counter() - start)
    if load is not None:
        load.cancel()
        await asyncio.wait((load,))
    return taken


async def _stalled(side: Side, megabytes: int) -> tuple[float, float]:
    """(MiB of growth of both processes, the most that was seen; MiB queued here)"""
    both = (psutil.Process(), side.process)

    def size() -> int:
        return sum(process.memory_info().rss for process in both)

    before = most = size()
    stream = side.handle.make(megabytes)
    await anext(stream)
    for _ in range(20):
        await asyncio.sleep(0.05)
        most = max(most, size())
    queued = stream.queued_bytes
    await stream.aclose()
    return (most - before) / MIB, queued / MIB


def main() -> None:
    options = arguments("Large arrays between two processes")
    program = [sys.executable, "-m", "benchmarks.peers.raw", "callee"]
    started = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=raw.ROOT)
    with started as peer, asyncio.Runner() as loop:  # its runs share a context, and so the open call
        try:
            assert peer.stdout is not None
            bench = Bench(loop, int(peer.stdout.readline()), options)
            try:
                rows = bench.measure()
            finally:
                bench.close()
        finally:
            peer.kill()
    report(rows, options.json, "Large arrays between processes; goals bound the ratio")


if __name__ == "__main__":
    main()
