"""A hop between two processes through the whole stack, against raw grpc.aio with protobuf between the same two.

Ours goes from handle to method and back: deadline, credit, caps, checked values, the account of its time, a queue of
frames that all calls share. The peer's is a generated stub's equal: one gRPC call for each call, with the
same bytes in a message, nothing else. Both servers are processes of their own; sides are measured in turn, in random
order. The goals are ratios.
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

import grpc
import psutil

from benchmarks.report import Options, Row, arguments, interleave, percentile, report
from chains.dsl.chainlet import chainlet
from chains.dsl.graph import build
from chains.dsl.specs import Limits
from chains.runtime.processes import Processes
from chains.wire.pb import carrier_pb2 as pb

TEXT = "x" * 1024
TOKEN = "t" * 32
TOKENS = 200
WIDE = 32
PEER = """
import asyncio, sys, grpc
sys.path.insert(0, sys.argv[1])
from chains.wire.pb import carrier_pb2 as pb

async def say(request, context):
    return pb.Open(method=request.method)

async def repeat(request, context):
    for _ in range(request.turn):
        yield pb.Open(method=request.method)

async def paced(request, context):
    for _ in range(request.turn):
        await asyncio.sleep(0.001)
        yield pb.Open(method=request.method)

async def main():
    server = grpc.aio.server()
    read, write = pb.Open.FromString, pb.Open.SerializeToString
    handlers = {
        "Say": grpc.unary_unary_rpc_method_handler(say, read, write),
        "Repeat": grpc.unary_stream_rpc_method_handler(repeat, read, write),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("peer.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()

asyncio.run(main())
"""


@chainlet(entry=True, limits=Limits(running=64, queued=64))
class Echo:
    async def say(self, text: str) -> str:
        return text

    async def repeat(self, text: str, times: int) -> AsyncIterator[str]:
        for _ in range(times):
            yield text


class Sides:
    """The two servers, and what is done with each of them."""

    def __init__(self, loop: asyncio.Runner, runtime: Any, peer: subprocess.Popen[str]) -> None:
        assert peer.stdout is not None
        self.loop = loop
        self.handle = runtime.entry
        self.ours = psutil.Process(next(iter(runtime._processes.values()))[0]._process.pid)
        self.peer = psutil.Process(peer.pid)
        self.me = psutil.Process()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{peer.stdout.readline().strip()}")
        read, write = pb.Open.FromString, pb.Open.SerializeToString
        self._say = self.channel.unary_unary("/peer.Echo/Say", write, read)
        self._repeat = self.channel.unary_stream("/peer.Echo/Repeat", write, read)
        self.firsts: dict[str, list[float]] = {"ours": [], "peer": []}

    async def say(self) -> None:
        assert await self.handle.say(TEXT) == TEXT

    async def peer_say(self) -> None:
        assert (await self._say(pb.Open(method=TEXT), timeout=60)).method == TEXT

    async def stream(self) -> None:
        await self._tokens(self.handle.repeat(TOKEN, TOKENS), "ours")

    async def peer_stream(self) -> None:
        await self._tokens(self._repeat(pb.Open(method=TOKEN, turn=TOKENS), timeout=60), "peer")

    async def _tokens(self, stream: Any, side: str) -> None:
        start, count = time.perf_counter(), 0
        async for _ in stream:
            if not count:
                self.firsts[side].append(time.perf_counter() - start)
            count += 1
        assert count == TOKENS

    def one_by_one(self, call: Callable[[], Awaitable[None]], times: int, taken: list[float]) -> float:
        """Seconds of each call, the median; each is kept in `taken`."""

        async def run() -> list[float]:
            seconds = []
            for _ in range(times):
                start = time.perf_counter()
                await call()
                seconds.append(time.perf_counter() - start)
            return seconds

        seconds = self.loop.run(run())
        taken += seconds
        return percentile(seconds, 50)

    def side_by_side(self, call: Callable[[], Awaitable[None]], times: int) -> float:
        """Calls per second with WIDE of them in flight."""

        async def worker() -> None:
            for _ in range(times // WIDE):
                await call()

        async def run() -> float:
            start = time.perf_counter()
            await asyncio.gather(*(worker() for _ in range(WIDE)))
            return (times // WIDE * WIDE) / (time.perf_counter() - start)

        return self.loop.run(run())

    def cpu(self, server: psutil.Process, call: Callable[[], Awaitable[None]], times: int, wide: bool) -> float:
        """Seconds of CPU for each call, of both processes together."""

        def spent() -> float:
            return sum(p.cpu_times().user + p.cpu_times().system for p in (self.me, server))

        before = spent()
        if wide:
            self.side_by_side(call, times)
        else:
            self.one_by_one(call, times, [])
        return (spent() - before) / times


def row(
    name: str, ours: list[float], peer: list[float], goal: float | None, scale: float, *, more: bool = False
) -> Row:
    """A row whose goal bounds the ratio of the medians."""
    mine, theirs = percentile(ours, 50) * scale, percentile(peer, 50) * scale
    ratio = mine / theirs
    met = None if goal is None else (ratio >= goal if more else ratio <= goal)
    return Row(name, mine, theirs, ratio, mine, percentile(ours, 99) * scale, len(ours), goal, met)


def measure(sides: Sides, options: Options) -> list[Row]:
    rounds, calls, wide, streams = (3, 100, 640, 5) if options.quick else (15, 400, 6400, 20)
    taken: dict[str, list[float]] = {name: [] for name in ("say", "peer say", "stream", "peer stream")}
    work: dict[str, Callable[[], float]] = {
        "say": lambda: sides.one_by_one(sides.say, calls, taken["say"]),
        "peer say": lambda: sides.one_by_one(sides.peer_say, calls, taken["peer say"]),
        "wide": lambda: sides.side_by_side(sides.say, wide),
        "peer wide": lambda: sides.side_by_side(sides.peer_say, wide // 4),
        "stream": lambda: sides.one_by_one(sides.stream, streams, taken["stream"]),
        "peer stream": lambda: sides.one_by_one(sides.peer_stream, streams, taken["peer stream"]),
        "cpu": lambda: sides.cpu(sides.ours, sides.say, calls * 2, False),
        "peer cpu": lambda: sides.cpu(sides.peer, sides.peer_say, calls * 2, False),
        "cpu wide": lambda: sides.cpu(sides.ours, sides.say, wide, True),
        "peer cpu wide": lambda: sides.cpu(sides.peer, sides.peer_say, wide // 4, True),
    }
    kept = interleave(rounds, work, seed=options.seed)
    firsts = sides.firsts
    return [
        row("1 KB call, one at a time, us", taken["say"], taken["peer say"], 1.0, 1e6),
        row("the same, us CPU of both processes", kept["cpu"], kept["peer cpu"], None, 1e6),
        row(f"calls per second, {WIDE} in flight", kept["wide"], kept["peer wide"], 5.0, 1, more=True),
        row("the same, us CPU for each call", kept["cpu wide"], kept["peer cpu wide"], None, 1e6),
        row(f"stream of {TOKENS} tokens, whole, us", taken["stream"], taken["peer stream"], 0.2, 1e6),
        row("the same, first token, us", firsts["ours"], firsts["peer"], 1.3, 1e6),
    ]


def main() -> None:
    options = arguments("A hop between two processes, against raw grpc.aio")
    root = str(Path(__file__).resolve().parents[1])
    started = subprocess.Popen([sys.executable, "-c", PEER, root], stdout=subprocess.PIPE, text=True)
    with started as peer, asyncio.Runner() as loop:  # its runs share a context, and so the open call
        try:
            runtime = Processes(build(Echo))
            loop.run(runtime.__aenter__())
            opened = runtime.open_call(deadline_s=3600.0)

            async def measured() -> Sides:
                await opened.__aenter__()
                return Sides(loop, runtime, peer)

            async def over() -> None:
                await sides.channel.close()
                await opened.__aexit__(None, None, None)
                await runtime.__aexit__(None, None, None)

            sides = loop.run(measured())
            rows = measure(sides, options)
            loop.run(over())
        finally:
            peer.kill()
    report(rows, options.json, "A hop between processes; goals bound the ratio")


if __name__ == "__main__":
    main()
