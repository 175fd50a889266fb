"""A chain for the tests of scaling on Ray: one that is scaled, one that sleeps, one that stands still."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from chains.dsl.chainlet import chainlet, depends, method
from chains.dsl.specs import Autoscaling, Limits, Resources

SMALL = Resources(cpu=0.1)
SOON = {"up_delay": 0.5, "down_delay": 3.0}


@chainlet(resources=SMALL, scaling=Autoscaling(min=0, max=3, target_streams=8.0, **SOON))
class Asleep:
    @method(idempotent=True)
    async def pid(self) -> int:
        return os.getpid()


@chainlet(resources=SMALL, scaling=Autoscaling(min=2, max=2))
class Still:
    @method(idempotent=True)
    async def pid(self) -> int:
        return os.getpid()


@chainlet(
    entry=True,
    resources=SMALL,
    scaling=Autoscaling(min=1, max=3, target_streams=4.0, **SOON),
    limits=Limits(running=64),
)
class Front:
    asleep: Asleep = depends(Asleep, timeout=120.0)
    still: Still = depends(Still, timeout=120.0)

    async def pid(self) -> int:
        return os.getpid()

    async def wake(self) -> int:
        return await self.asleep.pid()

    async def last(self, seconds: float) -> int:
        """Work for so long."""
        await asyncio.sleep(seconds)
        return os.getpid()

    async def echo(self, items: AsyncIterator[int]) -> AsyncIterator[int]:
        """A conversation: silent for as long as nobody says anything."""
        yield os.getpid()
        async for item in items:
            yield item


@chainlet(
    resources=SMALL, scaling=Autoscaling(min=1, max=3, target_streams=4.0, **SOON), limits=Limits(running=4, queued=64)
)
class Behind:
    async def speak(self, seconds: float) -> int:
        await asyncio.sleep(seconds)
        return os.getpid()


@chainlet(entry=True, resources=SMALL, limits=Limits(running=64))
class Ahead:
    behind: Behind = depends(Behind, timeout=120.0)

    async def talk(self, heard: AsyncIterator[int], seconds: float) -> int:
        """Listen to all there is, then have the other one speak for so long."""
        async for _ in heard:
            pass
        return await self.behind.speak(seconds)
