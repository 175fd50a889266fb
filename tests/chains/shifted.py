"""A conversation whose replicas live on clocks that are seconds off: those of other machines, as far as can be told."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator

from chains.call import current
from chains.dsl.chainlet import chainlet, depends
from chains.timing import LoopClock

SHIFT = 5.0

if sys.argv[0].endswith("host.py"):  # in the process of a replica
    ahead = SHIFT * (1 + os.getpid() % 2)
    LoopClock.now = staticmethod(lambda: time.monotonic() + ahead)
    LoopClock.wall = staticmethod(lambda: time.time() + ahead)


@chainlet
class Deep:
    def think(self, seconds: float) -> str:
        with current().work("think"):
            time.sleep(seconds)
        current().note("chains.thoughts", 1)
        return current().traceparent


@chainlet
class Mind:
    deep: Deep = depends(Deep)

    async def answer(self, words: int) -> AsyncIterator[str]:
        for _ in range(words):
            yield await self.deep.think(0.02)


@chainlet(entry=True)
class Phone:
    mind: Mind = depends(Mind)

    async def call(self, turns: int) -> AsyncIterator[str]:
        for _ in range(turns):
            async with current().call.new_turn() as turn:
                await asyncio.sleep(0.005)
                turn.mark("speech_end")
                async for word in self.mind.answer(2):
                    yield word
        async with current().call.new_turn() as turn:
            turn.cancel("barge-in")
            await asyncio.Event().wait()
