"""The loops that measure a hop, the same for every side. They run in the caller's process and know nothing of the hop.

All clocks are `time.monotonic`: on Linux it is one clock for all processes of a machine.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

TEXT = "x" * 1024
TOKEN = "t" * 32
TOKENS = 200
WIDE = 32

Array = npt.NDArray[np.float32]
Samples = dict[str, list[float]]
"""Seconds (`s`, `first`, `delay`) or calls per second (`rate`) of one command."""


class Target(Protocol):
    """The callee, as its caller sees it: answers are what was sent, paced tokens say when they were made."""

    async def say(self, text: str) -> str: ...
    def repeat(self, text: str, times: int) -> AsyncIterator[str]: ...
    def paced(self, times: int) -> AsyncIterator[str]: ...
    async def put(self, array: Array) -> float: ...


class Side(Protocol):
    """A caller and a callee in processes of their own, which do what they are told."""

    pids: Sequence[int]

    async def run(self, op: str, times: int, size: int = 0) -> Samples: ...


def stamp() -> str:
    """A token of 32 characters that says when it was made."""
    return f"{time.monotonic():032.9f}"


async def every_ms(times: int) -> AsyncIterator[str]:
    """What a callee does for `paced`: a model that has a token each millisecond."""
    for _ in range(times):
        await asyncio.sleep(0.001)
        yield stamp()


def ends(array: Array) -> float:
    """What a callee answers to an array: enough to know that all of it came."""
    return float(array[0]) + float(array[-1]) + array.size


async def measured(target: Target, op: str, times: int, size: int = 0) -> Samples:
    """Do `op` `times` times: say, wide, repeat, paced, or put (an array of `size` bytes)."""
    if op == "wide":
        return {"rate": [await _wide(lambda: _say(target), times)]}
    if op == "say":
        return {"s": await _one_by_one(lambda: _say(target), times)}
    if op == "put":
        array = np.arange(size // 4, dtype=np.float32)
        return {"s": await _one_by_one(lambda: _put(target, array, ends(array)), times)}
    if op == "repeat":
        return await _streams(target, times)
    if op == "paced":
        return {"delay": [time_ - float(token) for token, time_ in await _arrivals(target.paced(times))]}
    raise ValueError(f"no operation {op!r}")


async def _say(target: Target) -> None:
    if await target.say(TEXT) != TEXT:
        raise AssertionError("the echo is not what was said")


async def _put(target: Target, array: Array, expected: float) -> None:
    if await target.put(array) != expected:
        raise AssertionError("the array did not arrive as it was")


async def _one_by_one(call: Callable[[], Awaitable[None]], times: int) -> list[float]:
    seconds = []
    for _ in range(times):
        start = time.monotonic()
        await call()
        seconds.append(time.monotonic() - start)
    return seconds


async def _wide(call: Callable[[], Awaitable[None]], times: int) -> float:
    """Calls per second with WIDE of them in flight."""

    async def worker() -> None:
        for _ in range(each):
            await call()

    each, start = -(-times // WIDE), time.monotonic()
    await asyncio.gather(*(worker() for _ in range(WIDE)))
    return each * WIDE / (time.monotonic() - start)


async def _streams(target: Target, times: int) -> Samples:
    whole, first = [], []
    for _ in range(times):
        start, count = time.monotonic(), 0
        async for token in target.repeat(TOKEN, TOKENS):
            if not count:
                first.append(time.monotonic() - start)
            count += 1
            if token != TOKEN:
                raise AssertionError("a token is not what was asked for")
        whole.append(time.monotonic() - start)
        if count != TOKENS:
            raise AssertionError(f"{count} tokens came, {TOKENS} were asked for")
    return {"s": whole, "first": first}


async def _arrivals(stream: AsyncIterator[str]) -> list[tuple[str, float]]:
    return [(token, time.monotonic()) async for token in stream]


async def obey(target: Target) -> None:
    """Serve commands from stdin, a line of JSON each, until it ends; the samples go to stdout."""
    loop = asyncio.get_running_loop()
    print("ready", flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await measured(target, **json.loads(line))), flush=True)


class Told:
    """A side whose caller is a process that obeys."""

    def __init__(self, *processes: asyncio.subprocess.Process) -> None:
        self._caller = processes[-1]
        self._processes = processes
        self.pids: Sequence[int] = [process.pid for process in processes]

    async def run(self, op: str, times: int, size: int = 0) -> Samples:
        assert self._caller.stdin is not None and self._caller.stdout is not None
        self._caller.stdin.write(json.dumps({"op": op, "times": times, "size": size}).encode() + b"\n")
        answer: Any = json.loads(await self._caller.stdout.readline())
        samples: Samples = answer
        return samples

    async def close(self) -> None:
        for process in self._processes:
            process.kill()
            await process.wait()
