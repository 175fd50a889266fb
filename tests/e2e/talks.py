"""Conversations with a deployment over websockets, none of whose steps may hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

import pytest

from chains.client import connect
from chains.client.aio import Client
from chains.errors import Unavailable
from tests.e2e.chain_that_crashes import NEXT

TALKS = 20
WATCH = 30.0
"""Seconds after which an operation counts as hanging: the shortest deadline in the chain."""


async def watched(what: Awaitable[Any], seconds: float = WATCH) -> Any:
    async with asyncio.timeout(seconds):
        return await what


class Talk:
    """One conversation over a websocket of its own."""

    def __init__(self, client: Client) -> None:
        self._letters: asyncio.Queue[str | None] = asyncio.Queue()
        self._call = client.call("talk", letters=self._source())

    async def _source(self) -> AsyncIterator[str]:
        while (letter := await self._letters.get()) is not None:
            yield letter

    async def __aenter__(self) -> Self:
        await watched(self._call.__aenter__())
        return self

    async def __aexit__(self, *error: Any) -> None:
        await watched(self._call.__aexit__(None, None, None))

    async def heard(self) -> str:
        said: str = await watched(anext(self._call))
        return said

    def tell(self, letter: str) -> None:
        self._letters.put_nowait(letter)

    async def say(self, letter: str) -> int:
        """Which process answers; `Unavailable` if that one ended first."""
        self.tell(letter)
        pid, back, size = self._whole(await self.heard()).split(":")
        assert (back, size) == (letter, "400000")
        return int(pid)

    async def turn(self, letter: str) -> int:
        """A whole turn; `Unavailable` if who answered ended during it."""
        pid = await self.say(letter)
        self.tell(NEXT)
        assert self._whole(await self.heard()) == NEXT
        return pid

    @staticmethod
    def _whole(said: str) -> str:
        if said == "!Unavailable":
            raise Unavailable("the replica that answered ended")
        return said

    async def end(self) -> None:
        self._letters.put_nowait(None)
        with pytest.raises(StopAsyncIteration):
            while True:
                await self.heard()


@asynccontextmanager
async def talking(url: str, count: int = TALKS) -> AsyncIterator[list[Talk]]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(url))
        talks = [Talk(client) for _ in range(count)]
        for talk in talks:
            await stack.enter_async_context(talk)
        yield talks
