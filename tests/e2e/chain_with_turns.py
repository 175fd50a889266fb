"""A conversation small enough for every runtime, with what can be wrong in it: a slow replica, a long queue.

`slow` names a file that the replica which makes it is told apart by: that one takes SLOWER seconds more.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from chains.call import current
from chains.dsl.chainlet import chainlet, depends
from chains.dsl.specs import Limits, Resources
from chains.messages import Audio, Text

SMALL = Resources(cpu=0.1)
SLOWER = 0.080
RATE = 16_000


def chosen(file: str) -> bool:
    """Whether this process is the one; the first that asks is."""
    try:
        os.write(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL), f"{os.getpid()} {_name()}".encode())
        return True
    except FileExistsError:
        return Path(file).read_text().split() == [str(os.getpid()), _name()]


def _name() -> str:
    hop = current().hop
    assert hop is not None
    return hop.timing.replica


@chainlet(resources=SMALL)
class Ears:
    async def hear(self, line: str) -> str:
        with current().work("decode"):
            await asyncio.sleep(0.005)
        return line


@chainlet(resources=SMALL)
class Brain:
    async def think(self, line: str, slow: str) -> AsyncIterator[str]:
        with current().work("prefill"):
            await asyncio.sleep(0.010 + (SLOWER if slow and chosen(slow) else 0.0))
        for word in line.split():
            yield word


@chainlet(resources=SMALL, limits=Limits(running=1))
class Tight:
    async def look_up(self, line: str) -> str:
        await asyncio.sleep(0.030)
        return line


@chainlet(resources=SMALL)
class Mouth:
    async def speak(self, words: AsyncIterator[str]) -> AsyncIterator[Audio]:
        async for word in words:
            with current().work("synthesis"):
                await asyncio.sleep(0.002)
            yield Audio(np.full(RATE // 50, 1000, np.int16), RATE, text=word)


@chainlet(entry=True, resources=SMALL)
class Reception:
    ears: Ears = depends(Ears)
    brain: Brain = depends(Brain)
    tight: Tight = depends(Tight)
    mouth: Mouth = depends(Mouth)

    async def run(self, lines: AsyncIterator[str], slow: str = "", ask: bool = False) -> AsyncIterator[Audio | Text]:
        """Each line is a turn; "stop" is one that is withdrawn before anything of it was heard."""
        async for line in lines:
            async with current().call.new_turn() as turn:
                turn.mark("speech_end")
                heard = await self.ears.hear(line)
                if heard == "stop":
                    turn.cancel("the caller went on")
                    await asyncio.Event().wait()
                if ask:
                    heard = await self.tight.look_up(heard)
                async for piece in self.mouth.speak(self.brain.think(heard, slow)):
                    yield replace(piece, turn=turn.number)
            yield Text("over", final=True, role="assistant")

    async def recite(self, pieces: int) -> AsyncIterator[Audio]:
        """As fast as it is listened to."""
        for _ in range(pieces):
            yield Audio(np.zeros(RATE, np.int16), RATE)
