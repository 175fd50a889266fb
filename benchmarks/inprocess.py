"""CPU time of one hop in one process, without export and with it, against a plain asyncio task.

The peer does what nobody could leave out: a coroutine in a task of its own, the value's type checked on both sides; for
streams a bounded queue between two tasks. It has no scopes, no caps, no credit in bytes, no deadline, no account.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

from benchmarks.report import arguments, compare, interleave, report
from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build
from chains.export import exporter_from_env
from chains.runtime.inprocess import InProcess
from chains.spans import Recorder
from chains.timing import LoopClock

TEXT = "x" * 1024
GOAL_US = 50.0
RECEIVER = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *args): pass
server = HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@chainlet
class Echo:
    async def say(self, text: str) -> str:
        return text

    async def repeat(self, text: str, times: int) -> AsyncIterator[str]:
        for _ in range(times):
            yield text


@chainlet(entry=True)
class Caller:
    """Calls the other chainlet, as chainlets do; says how many seconds of CPU a hop took."""

    echo: Echo = depends(Echo)

    async def unary(self, times: int) -> float:
        echo, start = self.echo, time.process_time()
        for _ in range(times):
            await echo.say(TEXT)
        return (time.process_time() - start) / times

    async def stream(self, times: int) -> float:
        start = time.process_time()
        async for _ in self.echo.repeat(TEXT, times):
            pass
        return (time.process_time() - start) / times


def checked(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected str, found {type(value).__name__}")
    return value


async def plain_unary(times: int) -> float:
    async def say(text: str) -> str:
        return checked(text)

    start = time.process_time()
    for _ in range(times):
        checked(await asyncio.create_task(say(TEXT)))
    return (time.process_time() - start) / times


async def plain_stream(times: int) -> float:
    queue: asyncio.Queue[str | None] = asyncio.Queue(256)

    async def repeat() -> None:
        for _ in range(times):
            await queue.put(checked(TEXT))
        await queue.put(None)

    start = time.process_time()
    task = asyncio.create_task(repeat())
    while (item := await queue.get()) is not None:
        checked(item)
    await task
    return (time.process_time() - start) / times


async def ours(method: str, times: int, recorder: Recorder | None = None, clock: LoopClock | None = None) -> float:
    async with InProcess(build(Caller), clock=clock, recorder=recorder) as runtime, runtime.open_call():
        call: Callable[[int], Any] = getattr(runtime.entry, method)
        await call(times // 10)
        return float(await call(times))


async def exported(method: str, times: int) -> float:
    """With spans to a receiver in another process. The exporter's own thread is this process's time too.

    At most 2,000 hops: the SDK drops spans when more than 2,048 wait.
    """
    clock, exporter = LoopClock(), exporter_from_env(os.environ)
    assert exporter is not None
    start = time.process_time()
    async with InProcess(build(Caller), clock=clock, recorder=Recorder(clock, exporter=exporter)) as runtime:
        async with runtime.open_call():
            await getattr(runtime.entry, method)(times)
        exporter.close()
    return (time.process_time() - start) / times


@contextmanager
def receiver() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        try:
            yield
        finally:
            del os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
            process.kill()


def main() -> None:
    options = arguments("CPU time of one in-process hop")
    rounds, hops, items = (3, 500, 2_000) if options.quick else (15, 5_000, 50_000)

    def once(coro: Coroutine[Any, Any, float]) -> float:
        return asyncio.run(coro) * 1e6

    sides: dict[str, Callable[[], float]] = {
        "unary": lambda: once(ours("unary", hops)),
        "unary peer": lambda: once(plain_unary(hops)),
        "stream": lambda: once(ours("stream", items)),
        "stream peer": lambda: once(plain_stream(items)),
        "unary exported": lambda: once(exported("unary", min(hops, 2_000))),
    }
    with receiver():
        samples = interleave(rounds, sides, seed=options.seed)
    rows = [
        compare("unary hop, 1 KB of text, us CPU", samples["unary"], samples["unary peer"], goal=GOAL_US),
        compare("stream item, 1 KB of text, us CPU", samples["stream"], samples["stream peer"], goal=GOAL_US),
        compare("unary hop with export by OTLP, us CPU", samples["unary exported"], samples["unary peer"]),
    ]
    report(rows, options.json, f"CPU per in-process hop: {rounds} rounds of {hops:,} calls or {items:,} items")


if __name__ == "__main__":
    main()
