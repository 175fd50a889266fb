"""A telephone without models: a tone counts as words, a reply is a tone, talking into it interrupts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np

from chains import Audio, Text, chainlet, current, depends

RATE = 16_000
LOUD = 1_000
PAUSE_MS = 200.0


def tone(ms: float, hertz: float = 300.0) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return (np.sin(np.arange(round(RATE * ms / 1000)) * 2 * np.pi * hertz / RATE) * 9000).astype(np.int16)


@chainlet
class Brain:
    def __init__(self, think_ms: float = 20.0) -> None:
        self._think_s = think_ms / 1e3

    async def answer(self, number: int) -> str:
        await asyncio.sleep(self._think_s)
        return f"answer {number}"


@chainlet
class Mouth:
    def __init__(self, pieces: int = 3) -> None:
        self._pieces = pieces

    async def speak(self, text: str) -> AsyncIterator[Audio]:
        for _ in range(self._pieces):
            yield Audio(tone(200), RATE, text=text)


@chainlet(entry=True)
class Phone:
    brain: Brain = depends(Brain)
    mouth: Mouth = depends(Mouth)

    async def run(self, audio: AsyncIterator[Audio]) -> AsyncIterator[Audio | Text]:
        out: asyncio.Queue[Audio | Text | None] = asyncio.Queue()
        listening = asyncio.create_task(self._listen(audio, out))
        try:
            while (item := await out.get()) is not None:
                yield item
        finally:
            listening.cancel()

    async def ask(self, question: str) -> str:
        return f"{question}? {await self.brain.answer(len(question))}"

    async def _listen(self, audio: AsyncIterator[Audio], out: asyncio.Queue[Audio | Text | None]) -> None:
        call = current().call
        voiced = quiet = 0.0
        answering: list[asyncio.Task[None]] = []
        async for piece in audio:
            if np.abs(piece.pcm, dtype=np.int32).max(initial=0) > LOUD:
                voiced, quiet = voiced + piece.seconds * 1e3, 0.0
                if voiced > 60 and call.turns and not call.turns[-1].closed:
                    call.turns[-1].cancel("barge-in")
            else:
                quiet += piece.seconds * 1e3
                if voiced > 60 and quiet >= PAUSE_MS:
                    voiced = 0.0
                    answering.append(asyncio.create_task(self._answer(out)))
        await asyncio.gather(*answering)
        out.put_nowait(None)

    async def _answer(self, out: asyncio.Queue[Audio | Text | None]) -> None:
        call = current().call
        async with call.new_turn() as turn:
            turn.mark("speech_end")
            text = await self.brain.answer(turn.number)
            out.put_nowait(Text(text, role="assistant", turn=turn.number))
            ms = 0.0
            async for piece in self.mouth.speak(text):
                out.put_nowait(Audio(piece.pcm, piece.rate, turn.number, piece.text))
                ms += piece.seconds * 1e3
            await call.played.reached(turn.number, ms - 1)
