"""A person on the phone for tests: speaks, listens, interrupts, reports what was played; all in real time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chains.client import ClientCall, connect
from chains.client.playback import Playback
from chains.dsl.graph import load
from chains.messages import Audio
from chains.runtime.inprocess import InProcess
from chains.serve import Server, recorder
from tests.chains.client.voice import RATE, tone
from tests.chains.viewer.taking import taking
from tests.chains.wire.hosted import eventually

VOICE = Path(__file__).parent / "voice.py"
FRAME = RATE // 50


class Person:
    """Their microphone is always open: silence where they say nothing."""

    def __init__(self) -> None:
        self.playback = Playback()
        self.left = asyncio.Event()
        self._words: list[NDArray[np.int16]] = []
        self._spoken = asyncio.Event()

    async def microphone(self) -> AsyncIterator[Audio]:
        due = time.monotonic()
        while not self.left.is_set():
            frame = self._words.pop(0) if self._words else np.zeros(FRAME, np.int16)
            if not self._words:
                self._spoken.set()
            yield Audio(frame, RATE)
            due += 0.02
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def say(self, ms: float) -> None:
        """Return when it is said."""
        words = tone(ms, 500.0)
        self._spoken.clear()
        self._words += [words[start : start + FRAME] for start in range(0, len(words), FRAME)]
        await self._spoken.wait()

    async def hear(self, turn: int, ms: float) -> None:
        """Return when so much of a turn was heard."""
        await eventually(lambda: self.playback.played().get(turn, 0.0) >= ms)

    async def listen(self, call: ClientCall) -> None:
        async for item in call:
            if isinstance(item, Audio):
                self.playback.add(item)

    async def report(self, call: ClientCall) -> None:
        while True:
            await asyncio.sleep(0.05)
            for turn, ms in self.playback.played().items():
                await call.played(turn, ms)


Script = Callable[[Person], Awaitable[None]]


async def two_questions(person: Person) -> None:
    """A question, its answer, another one 200 ms after that, which is interrupted by a third."""
    await person.say(300)
    await person.hear(1, 599)
    await asyncio.sleep(0.2)
    await person.say(300)
    await person.hear(2, 250)
    await person.say(300)
    await person.hear(3, 599)


async def recorded_call(path: Path, script: Script = two_questions, **settings: Any) -> str:
    """A call of the voice chain with this person, kept in the store at `path`; its id."""
    graph = load(str(VOICE))
    async with taking(path) as url:
        runtime = InProcess(graph, recorder=recorder(chain=graph.entry, version="old", viewer=url))
        async with Server(graph, port=0, runtime=runtime, record=True, viewer=url, **settings) as server:
            async with connect(server.url, rate=RATE) as client:
                person = Person()
                async with client.call("run", audio=person.microphone()) as call:
                    call.watch(person.playback.on_event)
                    tasks = [asyncio.create_task(job(call)) for job in (person.listen, person.report)]
                    await script(person)
                    person.left.set()
                    for task in tasks:
                        task.cancel()
                    with suppress(asyncio.CancelledError):
                        await asyncio.gather(*tasks, return_exceptions=True)
                    id = call.id
            await eventually(lambda: not server.gateway.calls)
    return id
