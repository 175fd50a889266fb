"""A chain for the tests of runtimes with processes: what it does shows in files and on stderr."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from chains.call import current
from chains.dsl.chainlet import chainlet, depends


@chainlet
class Worker:
    def __init__(self, broken: str = "") -> None:
        if broken == "raise":
            raise RuntimeError("the weights are not there")
        if broken == "exit":
            print("a library gives up", file=sys.stderr, flush=True)
            os._exit(3)

    async def pid(self) -> int:
        return os.getpid()

    async def say(self, text: str) -> str:
        print(f"said {text}", file=sys.stderr, flush=True)
        return text

    async def exit(self) -> str:
        sys.exit("no way to end a process")

    async def crash(self, numbers: AsyncIterator[int]) -> AsyncIterator[int]:
        async for n in numbers:
            yield n
            if n == 2:
                os._exit(9)

    async def book(self, file: str, name: str) -> None:
        """Writes the name down as the first thing it does, and dies of it."""
        os.write(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), f"{name}\n".encode())
        os._exit(9)

    async def leave(self, file: str) -> None:
        async def write() -> None:
            await asyncio.to_thread(Path(file).write_text, "done afterwards")

        current().after(write)


@chainlet(entry=True)
class Front:
    worker: Worker = depends(Worker)

    async def pids(self) -> list[int]:
        return [os.getpid(), await self.worker.pid()]

    async def both(self, text: str) -> str:
        return await self.worker.say(await self.worker.say(text))

    async def book(self, file: str, name: str) -> None:
        await self.worker.book(file, name)


@chainlet(entry=True)
class Raises:
    worker: Worker = depends(Worker, broken="raise")

    async def run(self) -> None: ...


@chainlet(entry=True)
class Exits:
    worker: Worker = depends(Worker, broken="exit")

    async def run(self) -> None: ...


@chainlet(entry=True)
class NeedsBroken:
    raises: Raises = depends(Raises)

    async def run(self) -> None: ...
