"""A clinic whose models say what the test's script tells them; the conversation, its mind, the runtime and the
records are the real ones.

Each call has its own Script, found by the call's id. The caller's side is `Line`: what it hears, in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chains import Audio, Control, Text, chainlet, current, depends
from chains.call import Call
from chains.channel import Channel
from chains.dsl.graph import build
from chains.errors import Cancelled
from chains.runtime.inprocess import InProcess
from chains.testing import FakeClock, settle
from examples.phone_call.call import PhoneCall
from examples.phone_call.facts import Found

RATE = 8000
WORD_MS = 200  # how long the scripted voice takes for each word
REAL = build(PhoneCall).nodes["PhoneCall"].edges
SCRIPTS: dict[str, Script] = {}


class Gate:
    """Lets through at once, unless it is shut; shut, so many as `let` says."""

    def __init__(self) -> None:
        self._permits: asyncio.Semaphore | None = None
        self.waiting = 0

    def shut(self) -> None:
        self._permits = asyncio.Semaphore(0)

    def let(self, count: int = 1) -> None:
        assert self._permits is not None, "the gate is open"
        for _ in range(count):
            self._permits.release()

    async def __call__(self) -> None:
        if self._permits is not None:
            self.waiting += 1
            try:
                await self._permits.acquire()
            finally:
                self.waiting -= 1


@dataclass
class Script:
    """What the models of one call do.

    `replies`: what the language model writes for the caller's words (else "Answer to <words>."), or the error it
    raises. `intents`: the label of the caller's words (else question). `asked`: the words that it was asked to reply
    to, `facts` what to say, `written` what came of it, word by word, `finished` how many of these are over. `words` and
    `sounds` are the gates of the model's words and of the voice's. `dialogue` is what the summary was made of.
    """

    events: Channel[Any] = field(default_factory=Channel)
    replies: dict[str, str | Exception] = field(default_factory=dict)
    intents: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    choice: str = ""
    dialogue: list[str] = field(default_factory=list)
    summary: str | Exception = "The caller called."
    asked: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    finished: int = 0
    words: Gate = field(default_factory=Gate)
    sounds: Gate = field(default_factory=Gate)
    voice_fails: int = 0
    mute: bool = False


def script() -> Script:
    """Of the current call; what is warmed up at the start has one that nobody reads."""
    return SCRIPTS.get(current().call.id.partition("-after-")[0]) or Script()


@chainlet
class Ears:
    async def listen(self, audio: AsyncIterator[Audio]) -> AsyncIterator[Audio | Control]:
        async for piece in audio:
            yield piece


@chainlet
class Scribe:
    """Hears what the script says that it hears, until the line is closed."""

    async def transcribe(self, speech: AsyncIterator[Audio | Control]) -> AsyncIterator[Text | Control]:
        events = script().events

        async def closing() -> None:
            async for _ in speech:
                pass
            events.end()

        watching = asyncio.ensure_future(closing())
        try:
            async for event in events:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError, Cancelled):
                await watching


@chainlet
class Shelf:
    async def find(self, text: str) -> Found:
        kind = script().intents.get(text, "question")
        return Found("parking", "parking", {"question": 0.3, "book": 0.3, "goodbye": 0.3, "unknown": 0.0, kind: 0.9})


@chainlet
class Brain:
    async def reply(
        self, prompt: list[dict[str, str]] | str, sampling: dict[str, Any] | None = None, turn: int = 0
    ) -> AsyncIterator[Text]:
        act = script()
        if isinstance(prompt, str):
            yield Text(self._completed(act, prompt), final=False, role="assistant")
            yield Text("", role="assistant")
            return
        heard, _, fact = prompt[-1]["content"].removeprefix("Caller: ").partition("\nFact: ")
        act.asked.append(heard)
        act.facts.append(fact)
        said = act.replies.get(heard, f"Answer to {heard}" if act.intents.get(heard) is None else fact)
        try:
            if isinstance(said, Exception):
                await act.words()
                raise said
            for word in said.split():
                await act.words()
                act.written.append(word)
                yield Text(word + " ", final=False, role="assistant")
            yield Text("", role="assistant")
        finally:
            act.finished += 1

    def _completed(self, act: Script, prompt: str) -> str:
        """The summary of the call, or the caller's name."""
        if prompt.endswith("Summary:"):
            act.dialogue = prompt.rpartition("\n\n")[2].removesuffix("Summary:").splitlines()
            if isinstance(act.summary, Exception):
                raise act.summary
            return act.summary
        return act.names.get(prompt.rpartition("Caller: ")[2].removesuffix("\nName:"), "")

    async def score(self, prompt: str, choices: list[str], prior: str | None = None) -> dict[str, float]:
        return {choice: 1.0 if choice == script().choice else 0.1 for choice in choices}

    async def remember(self, prefix: list[dict[str, str]] | str) -> int:
        return 0

    async def prepare(self, prefixes: list[list[dict[str, str]] | str]) -> int:
        return len(prefixes)


@chainlet
class Voice:
    """A piece of WORD_MS for each word, as soon as it is written."""

    async def speak(self, text: AsyncIterator[str | Text]) -> AsyncIterator[Audio]:
        act = script()
        async for piece in text:
            for word in (piece if isinstance(piece, str) else piece.text).split():
                await act.sounds()
                if act.voice_fails:
                    act.voice_fails -= 1
                    raise RuntimeError("the voice broke")
                if not act.mute:
                    yield Audio(np.ones(RATE * WORD_MS // 1000, np.int16), RATE, text=word + " ")


@chainlet(entry=True)
class Reception:
    """The real PhoneCall's code and options on scripted models."""

    vad: Ears = depends(Ears, options=REAL["vad"].options)
    asr: Scribe = depends(Scribe, options=REAL["asr"].options)
    facts: Shelf = depends(Shelf, options=REAL["facts"].options)
    llm: Brain = depends(Brain, options=REAL["llm"].options)
    loading: Brain = depends(Brain, options=REAL["loading"].options)
    tts: Voice = depends(Voice, options=REAL["tts"].options)

    def __init__(self) -> None:
        PhoneCall.__init__(self)  # type: ignore[arg-type]

    async def warm(self) -> None:
        await PhoneCall.warm(self)  # type: ignore[arg-type]

    async def run(self, audio: AsyncIterator[Audio]) -> AsyncIterator[Audio | Text | Control]:
        async with aclosing(PhoneCall.run(self, audio)) as items:  # type: ignore[arg-type, type-var]
            async for item in items:
                yield item


class Line:
    """The caller's end of a call: says what it is told to, notes what comes. `played` is up to the test."""

    def __init__(self, call: Call, script: Script, clock: FakeClock) -> None:
        self.call = call
        self.script = script
        self.clock = clock
        self.heard: list[Audio | Text | Control] = []
        self.audio: Channel[Audio] = Channel()
        self.events: list[tuple[str, int]] = []
        self.error: BaseException | None = None
        self.ended = asyncio.Event()
        self._came = asyncio.Event()
        self._reads = asyncio.Event()
        self._reads.set()
        self._segment = 0
        self._at = 0
        call.watch(lambda event, turn: self.events.append((event, turn.number)))

    # the caller

    async def start(self) -> int:
        """Speech begins; its number is what the other methods take (the newest when none is given)."""
        self._segment += 1
        await self._tell(Control("speech_started", self._data(1000 * self._segment)))
        return self._segment

    async def guess(self, text: str, segment: int | None = None) -> None:
        await self._tell(Control("speech_maybe_ended", self._data(1000 * (segment or self._segment) + 500)))
        await self._tell(Control("transcript_guess", {**self._data(0), "text": text}))

    async def resume(self) -> None:
        await self._tell(Control("speech_resumed", self._data(1000 * self._segment + 600)))

    async def end(self) -> None:
        await self._tell(Control("speech_ended", self._data(1000 * self._segment + 500)))

    async def final(self, text: str, segment: int | None = None) -> None:
        await self._tell(Text(text, role="user", start_ms=1000.0 * (segment or self._segment)))

    async def say(self, text: str, *, guess: str | None = None) -> None:
        """A whole utterance, as it is mostly heard: started, guessed, ended, certain."""
        await self.start()
        await self.guess(text if guess is None else guess)
        await self.end()
        await self.final(text)

    async def hang_up(self) -> None:
        """The line is cut."""
        self.call.cancel("hang-up")
        await self.ended.wait()

    async def close(self) -> None:
        """The caller sends no more audio, and stays to hear the rest."""
        self.audio.end()
        await settle()

    def _data(self, at: int) -> dict[str, Any]:
        return {"segment": self._segment, "at_ms": at, "seen_ms": at + 64}

    async def _tell(self, event: Any) -> None:
        await self.script.events.send(event)
        await settle()

    # what the caller hears

    async def listen(self, stream: AsyncIterator[Any]) -> None:
        try:
            async for item in stream:
                self.heard.append(item)
                self._came.set()
                await self._reads.wait()
        except Cancelled:
            pass
        except Exception as error:
            self.error = error
        finally:
            self.ended.set()
            self._came.set()

    def block(self) -> None:
        """Read nothing more until `unblock`."""
        self._reads.clear()

    def unblock(self) -> None:
        self._reads.set()

    async def until(self, there: Callable[[], bool]) -> None:
        """Until something has come that makes it true: for what a thread is needed for."""
        async with asyncio.timeout(10):
            while not there():
                self._came.clear()
                await self._came.wait()

    async def play(self, seconds: float = 8.0) -> None:
        """Time goes by."""
        await self.clock.advance(seconds)

    @property
    def sound(self) -> list[tuple[int, str]]:
        """(turn, word) of each piece of sound."""
        return [(item.turn, item.text.strip()) for item in self.heard if isinstance(item, Audio)]

    def spoken(self, turn: int) -> str:
        return " ".join(word for number, word in self.sound if number == turn)

    @property
    def texts(self) -> list[tuple[str, str]]:
        return [(item.role, item.text) for item in self.heard if isinstance(item, Text)]

    @property
    def kinds(self) -> list[str]:
        return [item.kind for item in self.heard if isinstance(item, Control)]


@dataclass
class Clinic:
    """The running chain, on a clock that stands still."""

    runtime: InProcess
    clock: FakeClock
    open: int = 0
    before: set[asyncio.Task[Any]] = field(default_factory=set)

    @asynccontextmanager
    async def phone(self, id: str = "call", *, greeted: bool = True) -> AsyncIterator[Line]:
        """An open line; the greeting has been heard, unless it is not waited for. Afterwards nothing may be left."""
        before = self.before = self.before if self.open else asyncio.all_tasks()
        self.open += 1
        act = SCRIPTS[id] = Script()
        async with self.runtime.open_call(id=id) as call:
            line = Line(call, act, self.clock)
            listening = asyncio.ensure_future(line.listen(self.runtime.entry.run(line.audio)))
            await settle()
            if greeted:
                await line.play(4 * WORD_MS / 1e3 + 0.3)
            yield line
            call.cancel("hang-up")
            await listening
        self.open -= 1
        if not self.open:
            await self.at_rest(before)

    async def at_rest(self, before: set[asyncio.Task[Any]]) -> None:
        """The summary is written; no task, hop or timer of the call is left."""
        try:
            async with asyncio.timeout(5):
                while left := asyncio.all_tasks() - before:
                    await asyncio.wait(left)
        except TimeoutError:
            raise AssertionError(f"left behind: {left}") from None
        assert not [load for load in self.runtime.load() if load.running or load.queued or load.streams]
        assert self.clock.pending == 0


@asynccontextmanager
async def clinic() -> AsyncIterator[Clinic]:
    clock = FakeClock()
    async with InProcess(build(Reception), clock=clock) as runtime:
        yield Clinic(runtime, clock)
    SCRIPTS.clear()
