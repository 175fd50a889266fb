"""A hop between two processes through the whole stack, against raw grpc.aio, Ray Serve and plain websockets.

Ours goes from a chainlet's handle to another one's method and back: deadline, credit, caps, checked values, the account
of its time. Every side is a caller and a callee in processes of their own, measured by the same loop (peers/loops.py),
all in each round, in random order. Goals bound the ratio of the medians. What is not installed is left out, and said.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

from websockets.sync.client import connect

from benchmarks import burst, gateway, step
from benchmarks.inprocess import receiver
from benchmarks.peers import raw
from benchmarks.peers.loops import TOKENS, WIDE, Side
from benchmarks.peers.ours import RUNTIME, Caller, FromHere, Ours, started
from benchmarks.report import (
    Options,
    Row,
    arguments,
    bounded,
    figure,
    interleave,
    interleave_async,
    progress,
    report,
)
from chains.dsl.graph import build
from chains.export import exporter_from_env
from chains.spans import Recorder
from chains.timing import LoopClock
from chains.wire.settings import WireSettings, new_token

MIB = 2**20


@dataclass(frozen=True)
class Command:
    """What a side does in a round, and under which name its samples are kept."""

    side: str
    op: str
    times: int
    size: int = 0

    @property
    def name(self) -> str:
        return f"{self.side} {self.op}" + (f" {self.size // MIB} MB" if self.size else "")


def commands(quick: bool) -> list[Command]:
    few = 10 if quick else 1
    plain = [
        *(Command(side, "say", 200 // few) for side in ("ours", "raw", "here", "exported")),
        Command("default", "say", 40 // few),
        Command("grpc", "say", 60 // few),
        Command("ours", "wide", 6400 // few),
        Command("raw", "wide", 1600 // few),
        *(Command(side, "repeat", 20 // few) for side in ("ours", "raw")),
        *(Command(side, "paced", 200 // few) for side in ("ours", "raw")),
    ]
    arrays = [
        Command("ours", "put", 20 // few, MIB),
        Command("ours", "put", max(1, 6 // few), 8 * MIB),
        Command("ours", "put", 1, 64 * MIB),
        Command("store", "put", 1, 64 * MIB),
        Command("chunks", "put", 1, 64 * MIB),
        Command("raw", "put", 1, 64 * MIB),
    ]
    return plain + arrays


class Bench:
    """Tells sides what to do, and keeps their samples and the CPU seconds of each operation by the command's name."""

    def __init__(self, sides: dict[str, Side]) -> None:
        self._sides = sides
        self.kept: dict[str, list[float]] = defaultdict(list)

    def work(self, command: Command) -> Callable[[bool], Awaitable[None]]:
        side = self._sides[command.side]

        async def run(keep: bool) -> None:
            before = _cpu(side)
            samples = await side.run(command.op, command.times, command.size)
            if keep:
                self.kept[f"{command.name} cpu"].append((_cpu(side) - before) / command.times)
                for kind, figures in samples.items():
                    self.kept[f"{command.name} {kind}"] += figures

        return run

    async def measure(self, options: Options) -> None:
        mine = [command for command in commands(options.quick) if command.side in self._sides]
        works = {command.name: self.work(command) for command in mine}
        await interleave_async(3 if options.quick else 15, works, seed=options.seed)


def _cpu(side: Side) -> float:
    """Seconds of CPU that all threads of the side's processes have used; 0 where the processes are not known."""
    nanoseconds = 0
    for thread in (thread for pid in side.pids for thread in Path(f"/proc/{pid}/task").iterdir()):
        with suppress(OSError):  # it has ended since
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


ROWS: list[tuple[str, str, str, float | None, float]] = [
    ("us: 1 KB call / raw unary", "ours say s", "raw say s", 1.0, 1e6),
    ("us of CPU: the same, both processes", "ours say cpu", "raw say cpu", None, 1e6),
    ("us: spans exported / raw unary", "exported say s", "raw say s", None, 1e6),
    ("us: spans exported / not", "exported say s", "here say s", None, 1e6),
    ("us: 1 KB call / Serve handle", "ours say s", "default say s", 0.2, 1e6),
    ("us: 1 KB call / Serve handle, gRPC", "ours say s", "grpc say s", 0.4, 1e6),
    (f"calls/s: {WIDE} in flight / raw unary", "ours wide rate", "raw wide rate", 5.0, 1),
    ("us of CPU: the same, a call", "ours wide cpu", "raw wide cpu", None, 1e6),
    (f"us: {TOKENS} tokens, whole / raw stream", "ours repeat s", "raw repeat s", 0.2, 1e6),
    ("us: first token / raw stream", "ours repeat first", "raw repeat first", 1.3, 1e6),
    ("us: delay at 1 token per ms / raw", "ours paced delay", "raw paced delay", 1.25, 1e6),
    ("us: tensor of 1 MB / raw unary 1 KB", "ours put 1 MB s", "raw say s", 1.6, 1e6),
    ("us: tensor of 8 MB / raw unary 1 KB", "ours put 8 MB s", "raw say s", 4.0, 1e6),
    ("us: tensor of 64 MB / Ray's store", "ours put 64 MB s", "store put 64 MB s", 1.1, 1e6),
    ("us: 64 MB, no shared memory / raw bytes", "chunks put 64 MB s", "raw put 64 MB s", 1.15, 1e6),
]


def rows_of(kept: dict[str, list[float]]) -> list[Row]:
    """The table, of what was measured."""
    return [
        bounded(name, kept[ours], kept[peer], goal, scale=scale, higher_is_better=ours.endswith("rate"))
        for name, ours, peer, goal, scale in ROWS
        if kept.get(ours) and kept.get(peer)
    ]


async def hops(options: Options, peers: dict[str, Side]) -> list[Row]:
    """Ours and raw gRPC, and the `peers` that run already."""
    name, clock = options.more["runtime"], LoopClock()
    async with AsyncExitStack() as stack:
        stack.enter_context(receiver())
        plain = await stack.enter_async_context(started(name, build(Caller)))
        exporting = Recorder(clock, exporter=exporter_from_env(os.environ))
        exported = await stack.enter_async_context(started(name, build(Caller), clock=clock, recorder=exporting))
        other = await raw.start()
        stack.push_async_callback(other.close)
        sides: dict[str, Side] = {
            "ours": await Ours(plain).find(),
            "here": FromHere(plain),
            "exported": FromHere(exported),
            "raw": other,
            **peers,
        }
        if "shared_memory" in WireSettings.__dataclass_fields__:
            off: dict[str, Any] = {"shared_memory": False}
            wire = WireSettings(new_token(), **off)
            chunks = await stack.enter_async_context(started("processes", build(Caller), wire=wire))
            sides["chunks"] = await Ours(chunks).find()
        bench = Bench(sides)
        await bench.measure(options)
    return rows_of(bench.kept)


def websockets(options: Options, proxy: int | None) -> list[Row]:
    """An echo of 20 ms of audio through the gateway, bare uvicorn, and Serve's proxy where there is one."""
    with ExitStack() as stack:
        port, bare = stack.enter_context(gateway.served())
        ports = {"bare": f"{bare}/"} | ({} if proxy is None else {"proxy": f"{proxy}/peer/"})
        echoes: dict[str, Callable[[], float | None]] = {
            name: gateway.roundtrip(stack.enter_context(connect(f"ws://127.0.0.1:{path}", compression=None)))
            for name, path in ports.items()
        }
        echoes["ours"] = gateway.roundtrip(stack.enter_context(gateway.opened(port)))
        kept = interleave(100 if options.quick else 2000, echoes, seed=options.seed, warm=50)
    rows = [bounded("us: websocket echo / raw uvicorn", kept["ours"], kept["bare"], 1.5)]
    if proxy is not None:
        rows.append(bounded("us: websocket echo / Serve's proxy", kept["ours"], kept["proxy"], 0.2))
    return rows


@contextmanager
def ray_peers() -> Iterator[Any]:
    """Serve's application, or None where Ray is not installed."""
    if find_spec("ray") is None:
        print("Ray is not installed: the rows against Serve and its object store are left out")
        yield None
        return
    from benchmarks.peers import serve

    with serve.cluster(), serve.application() as application:
        yield application


def main() -> None:
    """Each part's rows on stderr as they are there, the table at the end: about three minutes, four on Ray."""
    options = arguments(__doc__ or "", more={"runtime": RUNTIME})
    rows: list[Row] = []
    with ray_peers() as peer:
        parts: dict[str, Callable[[], list[Row]]] = {
            "hops": lambda: asyncio.run(hops(options, {} if peer is None else peer.sides)),
            "websockets": lambda: websockets(options, None if peer is None else peer.port),
            "a burst": lambda: burst.rows(options),
        }
        if options.more["runtime"] == "ray":
            parts["a step of load"] = lambda: step.rows(options, rounds=1)
        for name, part in parts.items():
            progress(f"{name} ...")
            for row in part():
                rows.append(row)
                progress(f"{row.name}: {figure(row.ours)} / {figure(row.peer)} = {figure(row.ratio)}")
    report(rows, options.json, f"A hop between processes ({options.more['runtime']}); goals bound the ratio")


if __name__ == "__main__":
    main()
