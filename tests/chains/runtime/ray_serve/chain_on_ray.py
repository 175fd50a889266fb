"""A chain for the tests on Ray: what fails at its start, what sleeps, what says in which process it runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from chains.dsl.chainlet import chainlet, depends, method
from chains.dsl.specs import Autoscaling, Resources

SMALL = Resources(cpu=0.1)


@chainlet(resources=SMALL)
class Worker:
    def __init__(self, broken: str = "") -> None:
        if broken == "raise":
            raise RuntimeError("the weights are not there")
        if broken == "exit":
            os._exit(3)

    @method(idempotent=True)
    async def pid(self) -> int:
        return os.getpid()

    async def stand(self) -> None:
        await asyncio.Event().wait()

    @method(idempotent=True)
    async def say(self, text: str) -> None:
        print(text, flush=True)

    async def count(self, to: int, seconds: float) -> AsyncIterator[int]:
        for n in range(to):
            yield n
            await asyncio.sleep(seconds)


@chainlet(resources=SMALL, scaling=Autoscaling(min=0, max=1, down_delay=60.0))
class Sleeper:
    async def say(self, text: str) -> str:
        return text


@chainlet(entry=True, resources=SMALL)
class Front:
    worker: Worker = depends(Worker, timeout=30.0)

    async def pids(self) -> list[int]:
        return [os.getpid(), await self.worker.pid()]

    async def say(self, text: str) -> None:
        await self.worker.say(text)

    async def count(self, to: int, seconds: float) -> AsyncIterator[int]:
        async for n in self.worker.count(to, seconds):
            yield n


@chainlet(entry=True, resources=SMALL)
class Waking:
    sleeper: Sleeper = depends(Sleeper, timeout=60.0)

    async def say(self, text: str) -> str:
        return await self.sleeper.say(text)


@chainlet(entry=True, resources=SMALL)
class Raises:
    worker: Worker = depends(Worker, broken="raise")

    async def run(self) -> None: ...


@chainlet(entry=True, resources=SMALL)
class Exits:
    worker: Worker = depends(Worker, broken="exit")

    async def run(self) -> None: ...


@chainlet(entry=True, resources=Resources(cpu=0.1, gpu="B200", gpus=2, memory="2GiB"))
class Greedy:
    async def run(self) -> None: ...
