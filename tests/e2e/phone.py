"""A caller whom a test moves by hand: speaks when told, hears all the while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chains.client import ClientCall, connect
from chains.client.playback import Playback
from chains.gateway.audio import Resampler
from chains.messages import Audio
from examples.phone_call import dial

LINES = {line.text: line for line in dial.read_lines(Path(__file__).parent / "questions" / "questions.json")}


def line_of(samples: NDArray[np.float32], text: str = "") -> dial.Line:
    """Any sound at 16 kHz as something to say."""
    pcm = Audio.from_float(samples, dial.RATE).pcm
    return dial.Line(text, pcm, len(pcm) / dial.RATE)


class Listening(dial.Conversation):
    """Tells when the first sound of a reply to the last line has come."""

    def __init__(self, call: ClientCall, playback: Playback, exchanges: list[dial.Exchange]) -> None:
        super().__init__(call, playback, exchanges, quiet=True)
        self.sounded = asyncio.Event()

    def _on_audio(self, piece: Audio) -> None:
        super()._on_audio(piece)
        if self.exchanges and self.exchanges[-1].turn:
            self.sounded.set()


class Phone:
    """One open line. `events` are (event, turn) as the clinic sends them: "clear", "held", ..."""

    def __init__(self, call: ClientCall, caller: dial.Caller) -> None:
        self.call = call
        self.caller = caller
        self.playback = Playback()
        self.playback.began = caller.began
        self.exchanges: list[dial.Exchange] = []
        self.events: list[tuple[str, int]] = []
        self.conversation = Listening(call, self.playback, self.exchanges)
        call.watch(self._on_event)

    def _on_event(self, event: str, turn: int) -> None:
        self.events.append((event, turn))
        self.playback.on_event(event, turn)

    def start(self, line: dial.Line | str) -> dial.Exchange:
        """Begin to say a line (one of the thirty by its text); what was being said is forgotten."""
        line = LINES[line] if isinstance(line, str) else line
        exchange = dial.Exchange(line.text)
        self.exchanges.append(exchange)
        self.conversation.replied.clear()
        self.conversation.sounded.clear()
        self.caller.say(line, exchange)
        return exchange

    async def said(self) -> None:
        """The line is said to its end."""
        await self.caller.finished.wait()

    async def ask(self, line: dial.Line | str) -> dial.Exchange:
        """Say a line and hear the whole reply; AssertionError when there was none."""
        exchange = self.start(line)
        await self.said()
        assert await self.conversation.reply_is_over(), f"no reply to {exchange.said!r}"
        return exchange

    async def hears(self, seconds: float) -> None:
        """Until that much of the reply to the last line has been played."""
        await self.conversation.sounded.wait()
        played = self.playback.played().get(self.exchanges[-1].turn, 0.0)
        await asyncio.sleep(seconds - played / 1000)

    @property
    def texts(self) -> list[tuple[str, str]]:
        """(role, text) of all that was said so far."""
        return [(line["role"], line["text"]) for line in self.conversation.transcript]


@asynccontextmanager
async def phone(url: str, rate: int = dial.RATE, encoding: Literal["pcm16", "mulaw"] = "pcm16") -> AsyncIterator[Phone]:
    """Dial; the greeting has been heard when the block begins, and the line is cut when it ends."""
    caller = dial.Caller()
    frames = caller.frames() if rate == dial.RATE else _at_rate(caller.frames(), rate)
    options: dict[str, Any] = {} if encoding == "pcm16" else {"rate": rate, "encoding": encoding}
    async with connect(url, **options) as client, client.call("run", audio=frames) as call:
        line = Phone(call, caller)
        tasks = [asyncio.ensure_future(line.conversation.listen()), asyncio.ensure_future(line.conversation.report())]
        try:
            assert await line.conversation.reply_is_over(), "no greeting"
            yield line
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _at_rate(frames: AsyncIterator[Audio], rate: int) -> AsyncIterator[Audio]:
    resampler = Resampler(dial.RATE, rate)
    async for frame in frames:
        yield Audio(resampler.push(frame.pcm), rate)
