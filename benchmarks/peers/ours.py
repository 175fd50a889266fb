"""The same hop as a chain: from a chainlet's handle to another chainlet's method, through the whole stack."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from benchmarks.peers.loops import Array, Samples, ends, every_ms, measured
from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import Graph
from chains.dsl.specs import Limits
from chains.runtime.processes import Processes


@chainlet(limits=Limits(running=64, queued=64))
class Echo:
    async def say(self, text: str) -> str:
        return text

    async def repeat(self, text: str, times: int) -> AsyncIterator[str]:
        for _ in range(times):
            yield text

    async def paced(self, times: int) -> AsyncIterator[str]:
        async for token in every_ms(times):
            yield token

    async def put(self, array: Array) -> float:
        return ends(array)

    async def pid(self) -> int:
        return os.getpid()


@chainlet(entry=True)
class Caller:
    """Measures its own hops to the other chainlet; each has a deadline, credit, and checked values."""

    echo: Echo = depends(Echo, timeout=60.0, first=60.0, idle=60.0)

    async def run(self, op: str, times: int, size: int) -> Samples:
        return await measured(self.echo, op, times, size)

    async def pids(self) -> list[int]:
        return [os.getpid(), await self.echo.pid()]


class Ours:
    """A side whose caller and callee are replicas of a runtime."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self.pids: Sequence[int] = ()

    async def find(self) -> Self:
        async with self._runtime.open_call():
            self.pids = await self._runtime.entry.pids()
        return self

    async def run(self, op: str, times: int, size: int = 0) -> Samples:
        async with self._runtime.open_call(deadline_s=300.0):
            samples: Samples = await self._runtime.entry.run(op, times, size)
            return samples


class FromHere:
    """The same, but called from this process, where spans are exported when that is switched on."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self.pids: Sequence[int] = ()

    async def run(self, op: str, times: int, size: int = 0) -> Samples:
        async with self._runtime.open_call(deadline_s=300.0):
            return await measured(self._runtime.handle("Echo"), op, times, size)


RUNTIME = {"choices": ("processes", "ray"), "default": "processes", "help": "what runs the chain (default processes)"}
"""The option --runtime, as `arguments` takes it."""


def ground(name: str) -> AbstractContextManager[None]:
    """What the runtime of that name stands on: a private Ray, or nothing."""
    if name == "ray":
        from benchmarks.peers import serve

        return serve.cluster()
    return nullcontext()


def started(name: str, graph: Graph, **settings: Any) -> Any:
    """The runtime of that name for the chain, to be entered with `async with`."""
    if name == "ray":
        from chains.runtime.ray_serve import RayServe

        return RayServe(graph, **settings)
    return Processes(graph, **settings)
