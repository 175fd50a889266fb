"""A chain for tests that kill its processes: the front passes the maker's stream on to the reader."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
from collections.abc import AsyncIterator

from chains.channel import Channel
from chains.dsl.chainlet import chainlet, depends, method
from chains.runtime.claims import Claim
from chains.runtime.keeping import Claimed, Keep


async def left() -> dict[str, int]:
    """What there is in this process of tasks, and of what a stream consists of."""
    gc.collect()
    kinds = (Channel, Claim, Claimed, Keep)
    found = {kind.__name__: sum(isinstance(one, kind) for one in gc.get_objects()) for kind in kinds}
    return {**found, "tasks": len(asyncio.all_tasks())}


@chainlet
class Maker:
    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def open_gate(self) -> None:
        self.gate.set()

    async def gated(self, count: int, before: int) -> AsyncIterator[int]:
        for n in range(count):
            if n == before:
                await self.gate.wait()
            yield n

    async def blocks(self, count: int, size: int) -> AsyncIterator[bytes]:
        for n in range(count):
            yield n.to_bytes(4, "big") + bytes(size - 4)

    async def paced(self, count: int) -> AsyncIterator[int]:
        for n in range(count):
            await asyncio.sleep(0.002)
            yield n

    async def left(self) -> dict[str, int]:
        return await left()


@chainlet
class Reader:
    async def weigh(self, blocks: AsyncIterator[bytes]) -> int:
        return sum([len(block) async for block in blocks])

    async def same(self, numbers: AsyncIterator[int]) -> AsyncIterator[int]:
        async for n in numbers:
            yield n

    @method(idempotent=True)
    async def total(self, numbers: AsyncIterator[int]) -> int:
        return sum([n async for n in numbers])

    async def left(self) -> dict[str, int]:
        return await left()


@chainlet(entry=True)
class Front:
    maker: Maker = depends(Maker)
    reader: Reader = depends(Reader)

    async def weigh(self, count: int, size: int) -> list[float]:
        """The bytes that the reader got, and how many more this process holds at its most, in KiB, and CPU seconds."""
        await self.reader.weigh(self.maker.blocks(2, size))
        before, cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, sum(os.times()[:2])
        weight = await self.reader.weigh(self.maker.blocks(count, size))
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return [weight, after - before, sum(os.times()[:2]) - cpu]

    async def same(self, count: int) -> AsyncIterator[int]:
        async for n in self.reader.same(self.maker.paced(count)):
            yield n
