"""A chain for tests that kill its parts: conversations that stream, what may be asked twice, what may not.

Each answer names the process that gave it. What is to be in the middle of something waits for a file, `gate`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import numpy.typing as npt

from chains.call import current
from chains.dsl.chainlet import chainlet, depends, method
from chains.dsl.specs import Limits, Resources
from chains.errors import ChainsError
from chains.runtime.remote import Carried

SMALL = Resources(cpu=0.1)
NEXT = "."
"""A letter that ends the turn."""


async def opened(gate: str) -> None:
    """Return once the file is there: it is made in another process."""
    while not os.path.exists(gate):  # noqa: ASYNC110, ASYNC240 - other processes tell nothing else
        await asyncio.sleep(0.01)


@chainlet(resources=SMALL, limits=Limits(running=64))
class Spell:
    async def spell(self, picture: npt.NDArray[np.uint8], letters: AsyncIterator[str]) -> AsyncIterator[str]:
        async for letter in letters:
            yield f"{os.getpid()}:{letter}:{picture.nbytes}"

    async def count(self, to: int) -> AsyncIterator[int]:
        for n in range(to):
            yield n
            await asyncio.sleep(0.001)

    @method(idempotent=True)
    async def look(self, gate: str) -> int:
        await opened(gate)
        return os.getpid()


@chainlet(resources=SMALL, limits=Limits(running=4, queued=64))
class Ledger:
    async def book(self, file: str, name: str, gate: str) -> int:
        with open(file, "a") as ledger:  # noqa: ASYNC230 - a line
            ledger.write(f"{name}\n")
        await opened(gate)
        return os.getpid()

    async def total(self, numbers: AsyncIterator[int]) -> list[int]:
        return [os.getpid(), sum([n async for n in numbers])]


@chainlet(entry=True, resources=SMALL)
class Desk:
    spell: Spell = depends(Spell, timeout=30.0)
    ledger: Ledger = depends(Ledger, timeout=60.0, retries=2)

    async def talk(self, letters: AsyncIterator[str]) -> AsyncIterator[str]:
        """Each turn is a hop that has the rest of the turn as its argument; a turn that breaks is told, and over."""
        over = False

        async def turn() -> AsyncIterator[str]:
            nonlocal over
            async for letter in letters:
                if letter == NEXT:
                    return
                yield letter
            over = True

        while not over:
            async with current().call.new_turn():
                try:
                    async for said in self.spell.spell(np.ones(400_000, np.uint8), turn()):
                        yield said
                    yield NEXT
                except ChainsError as error:
                    yield f"!{type(error).__name__}"

    async def look(self, gate: str) -> int:
        return await self.spell.look(gate)

    async def book(self, file: str, name: str, gate: str) -> int:
        return await self.ledger.book(file, name, gate)

    async def add(self, to: int) -> list[int]:
        """A stream from one process to another: who summed it, the sum, and how many items came past here."""
        passed, on_item = 0, Carried.on_item

        def counted(carried: Carried, *item: Any) -> None:
            nonlocal passed
            passed += 1
            on_item(carried, *item)

        Carried.on_item = counted  # type: ignore[method-assign]
        try:
            return [*await self.ledger.total(self.spell.count(to)), passed]
        finally:
            Carried.on_item = on_item  # type: ignore[method-assign]

    async def pid(self) -> int:
        return os.getpid()
