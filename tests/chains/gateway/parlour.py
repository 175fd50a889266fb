"""The chain that the gateway's tests call: one method for each thing that may happen behind a door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from chains import Audio, Control, Tensor, Text, Tokens, chainlet, current


@dataclass
class Order:
    dish: str
    count: int = 1


class Watched:
    """What a test sees of the inside: which methods began and which ran their `finally`."""

    def __init__(self) -> None:
        self.began: dict[str, asyncio.Event] = {}
        self.left: dict[str, asyncio.Event] = {}
        self.made = 0
        self.seen: list[Any] = []
        self.gate = asyncio.Event()
        self.call: Any = None
        self.turn: Any = None

    def event(self, events: dict[str, asyncio.Event], name: str) -> asyncio.Event:
        return events.setdefault(name, asyncio.Event())


@chainlet(entry=True)
class Parlour:
    watched = Watched()

    def _enter(self, name: str) -> None:
        self.watched.call = current().call
        self.watched.event(self.watched.began, name).set()

    def _leave(self, name: str) -> None:
        self.watched.event(self.watched.left, name).set()

    async def run(self, audio: AsyncIterator[Audio]) -> AsyncIterator[Audio | Text]:
        """The echo: each piece of audio as it came, and how many there were."""
        self._enter("run")
        pieces = 0
        try:
            async for piece in audio:
                self.watched.seen.append(piece)
                pieces += 1
                yield piece
            yield Text(f"{pieces} pieces", role="assistant")
        finally:
            self._leave("run")

    async def shout(self, text: str, times: int = 1) -> str:
        return text.upper() * times

    async def order(self, order: Order) -> dict[str, Any]:
        return {"dish": order.dish, "count": order.count}

    async def tensors(self, tensors: AsyncIterator[Tensor]) -> AsyncIterator[Tensor]:
        async for tensor in tensors:
            yield Tensor(tensor.data * 2, tensor.name, tensor.turn)

    async def words(self, words: AsyncIterator[Text]) -> AsyncIterator[Text]:
        async for word in words:
            yield Text(word.text.upper(), turn=word.turn)

    async def anything(self, things: AsyncIterator[Text | Control | Tokens]) -> AsyncIterator[Text | Control | Tokens]:
        async for thing in things:
            yield thing

    async def count(self, to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    async def nap(self) -> str:
        self._enter("nap")
        try:
            await asyncio.Event().wait()
            return "never"
        finally:
            self._leave("nap")

    async def drip(self) -> AsyncIterator[str]:
        """One item, and then nothing for ever."""
        self._enter("drip")
        try:
            yield "first"
            await asyncio.Event().wait()
        finally:
            self._leave("drip")

    async def flood(self) -> AsyncIterator[Audio]:
        """Audio for ever, 8 KB a piece, as fast as it is taken."""
        self._enter("flood")
        pcm = np.zeros(4000, np.int16)
        try:
            while True:
                self.watched.made += 1
                yield Audio(pcm, 16000)
        finally:
            self._leave("flood")

    async def deaf(self, audio: AsyncIterator[Audio]) -> AsyncIterator[str]:
        """Takes no audio until the gate opens."""
        self._enter("deaf")
        await self.watched.gate.wait()
        async for _ in audio:
            self.watched.made += 1
        yield "heard"

    async def interrupted(self) -> AsyncIterator[Audio | Control]:
        """A turn that speaks twice and is then waiting to be cancelled; a second turn that speaks once."""
        self._enter("interrupted")
        call = current().call
        pcm = np.zeros(4000, np.int16)
        async with call.new_turn() as turn:
            self.watched.turn = turn
            yield Audio(pcm, 16000, turn.number)
            yield Audio(pcm, 16000, turn.number)
            await self.watched.gate.wait()
        async with call.new_turn() as turn:
            yield Audio(pcm, 16000, turn.number)
            yield Control("played", {"ms": call.played.of(1)})

    async def fail(self, how: str) -> str:
        if how == "value":
            raise ValueError("no such dish")
        if how == "own":
            raise KitchenFire("the kitchen burns")
        return how

    async def fail_late(self) -> AsyncIterator[int]:
        yield 1
        raise ValueError("no such dish")


class KitchenFire(Exception):
    pass
