"""One conversation at the reception: who speaks when. What is said is thought up in `mind`; here it is only timed.

A reply is begun as soon as the caller may have finished (64 ms of silence), and is let out when the end of the
sentence is certain; if the caller goes on, it is withdrawn unheard. A caller who speaks while the reception does holds
its reply at once; words end it, a cough lets it go on. What the conversation remembers is what was heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from chains import Audio, Control, Text
from chains.call import Call, Turn
from chains.channel import Channel, End
from chains.errors import Cancelled
from chains.timing import Timer

if TYPE_CHECKING:
    from examples.phone_call.call import PhoneCall
    from examples.phone_call.mind import Mind

Out = Audio | Text | Control


@dataclass
class Said:
    """One line of the dialogue, as far as it was heard."""

    role: str
    text: str


@dataclass
class Reply:
    """A reply under way: to which words of the caller, and how much of it has gone out."""

    heard: str
    segment: int
    turn: Turn | None = None
    task: asyncio.Task[None] | None = None
    confirmed: asyncio.Event = field(default_factory=asyncio.Event)
    ended_at: float | None = None
    sent: list[tuple[float, str]] = field(default_factory=list)  # (milliseconds so far, words that end there)
    sent_at: float = 0.0
    text: str = ""

    @property
    def sent_ms(self) -> float:
        return self.sent[-1][0] if self.sent else 0.0

    def heard_of_it(self, played_ms: float) -> str:
        """The words that the caller has heard."""
        return "".join(words for end, words in self.sent if end <= played_ms).strip()


@dataclass(frozen=True)
class Manners:
    """What the reception says of itself, and how long it waits (seconds)."""

    greeting: str
    still_there: str = "Are you still there?"
    give_up: str = "I can't hear you. Please call again. Goodbye."
    patience: float = 12.0


class Conversation:
    """Runs one call: `async for item in Conversation(...).run(audio)` gives what the caller hears and sees."""

    def __init__(self, chain: PhoneCall, mind: Mind, call: Call, manners: Manners) -> None:
        self.chain = chain
        self.mind = mind
        self.call = call
        self.manners = manners
        self.said: list[Said] = []
        self.given_up = False
        self._out: Channel[Out] = Channel()
        self._replies: list[Reply] = []  # at most: one that is heard, one that is being prepared
        self._speaking = False
        self._segment = 0
        self._speech_end = 0.0
        self._silences = 0
        self._timer: Timer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, audio: AsyncIterator[Audio]) -> AsyncIterator[Out]:
        """The caller's audio in, everything that goes to the caller out, until one of them hangs up."""
        listening = asyncio.ensure_future(self._listen(audio))
        listening.add_done_callback(self._finished)
        try:
            async for item in self._out:
                yield item
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in (listening, *self._tasks):
                task.cancel()
            await asyncio.gather(listening, *self._tasks, return_exceptions=True)

    def _finished(self, listening: asyncio.Task[None]) -> None:
        """The line is closed: the reply under way may still be said, then the stream ends."""
        if listening.cancelled():
            return
        error = listening.exception()
        if error is not None:
            self._fail(error)
        else:
            self._start(self._say_the_rest())

    def _fail(self, error: BaseException) -> None:
        self._out.end(End("error", error))

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _say_the_rest(self) -> None:
        tasks = [reply.task for reply in self._replies if reply.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        self._out.end()

    # hearing

    async def _listen(self, audio: AsyncIterator[Audio]) -> None:
        self._say(self.manners.greeting)
        events = self.chain.asr.transcribe(self.chain.vad.listen(audio))
        async for event in events:
            match event:
                case Control(kind="speech_started", data=data):
                    self._on_speech(data["segment"])
                case Control(kind="transcript_guess", data=data):
                    await self._on_guess(data["segment"], data["text"])
                case Control(kind="speech_resumed"):
                    self._withdraw_unconfirmed()
                case Control(kind="speech_ended", data=data):
                    self._speech_end = self.call.clock.now() - (data["seen_ms"] - data["at_ms"]) / 1e3
                case Text(final=False, text=text):
                    self._on_words(text)
                case Text(final=True):
                    await self._on_final(event)

    def _on_speech(self, segment: int) -> None:
        self._speaking, self._segment = True, segment
        self._stop_waiting()
        audible = self._audible()
        if audible is not None and audible.turn is not None:
            audible.turn.hold()

    def _on_words(self, text: str) -> None:
        """The caller says words while a reply is held: that reply is over."""
        audible = self._audible()
        if audible is not None and audible.turn is not None and audible.turn.held and has_words(text):
            self._cut(audible)

    async def _on_guess(self, segment: int, text: str) -> None:
        self._on_words(text)
        if has_words(text):
            self._withdraw_unconfirmed()
            self._prepare(self._joined(text), segment)

    async def _on_final(self, text: Text) -> None:
        self._speaking = False
        words = text.text.strip()
        if not has_words(words):
            self._withdraw_unconfirmed()
            self._go_on()
            return
        self._on_words(words)
        await self._out.send(replace(text, text=words))
        joined = self._joined(words)
        ready = next((r for r in self._replies if not r.confirmed.is_set() and r.heard == joined), None)
        if ready is None:
            self._withdraw_unconfirmed()
            ready = self._prepare(joined, self._segment)
        self._withdraw_unheard(ready)
        self._confirm(ready)

    def _joined(self, text: str) -> str:
        """With the words before it, when the reply to those has not been heard yet: one sentence with a pause in it."""
        before = next((r for r in self._replies if r.confirmed.is_set() and not r.sent and r.heard), None)
        return f"{before.heard} {text}" if before is not None else text

    # replying

    def _prepare(self, text: str, segment: int) -> Reply:
        reply = Reply(text, segment)
        self._replies.append(reply)
        reply.task = self._start(self._answer(reply))
        return reply

    def _confirm(self, reply: Reply) -> None:
        """The caller has finished: what was prepared may go out."""
        reply.ended_at = self._speech_end
        if self.said and self.said[-1].role == "user" and reply.heard.startswith(self.said[-1].text):
            self.said.pop()
        self.said.append(Said("user", reply.heard))
        self._silences = 0
        reply.confirmed.set()

    def _withdraw_unconfirmed(self) -> None:
        for reply in [r for r in self._replies if not r.confirmed.is_set()]:
            self._drop(reply, "speech resumed")

    def _withdraw_unheard(self, but: Reply) -> None:
        for reply in [r for r in self._replies if r is not but and r.confirmed.is_set() and not r.sent]:
            self._drop(reply, "the caller went on")

    def _drop(self, reply: Reply, reason: str) -> None:
        self._replies.remove(reply)
        if reply.turn is not None:
            reply.turn.cancel(reason)
        elif reply.task is not None:
            reply.task.cancel()

    def _audible(self) -> Reply | None:
        """The reply of which something has gone out and not all has been played."""
        return next((r for r in self._replies if r.sent), None)

    def _cut(self, reply: Reply) -> None:
        """Barge-in: the reply ends here, and what is remembered of it is what was heard."""
        heard = reply.heard_of_it(self._played(reply))
        self._drop(reply, "barge-in")
        if heard:
            self.said.append(Said("assistant", heard + " ..."))

    def _go_on(self) -> None:
        """No words after all (a cough, a noise): a held reply goes on."""
        for reply in self._replies:
            if reply.turn is not None:
                reply.turn.resume()
        self._wait_for_speech()

    def _played(self, reply: Reply) -> float:
        """Milliseconds of the reply that were played: as the client reports, or by the clock if it does not."""
        turn = reply.turn.number if reply.turn is not None else 0
        reported = self.call.played.of(turn)
        return reported or min(reply.sent_ms, (self.call.clock.now() - reply.sent_at) * 1e3)

    async def _answer(self, reply: Reply) -> None:
        async with self.call.new_turn() as turn:
            reply.turn = turn
            await self._utter(reply, turn, self._noted(reply, self.mind.words(reply)))
        if not turn.cancelled:
            await self._after(reply)

    def _say(self, text: str) -> Reply:
        """Something that the reception says by itself."""
        reply = Reply("", 0)
        reply.confirmed.set()
        self._replies.append(reply)
        reply.task = self._start(self._recite(reply, text))
        return reply

    async def _recite(self, reply: Reply, text: str) -> None:
        async def words() -> AsyncIterator[Text]:
            yield Text(text, role="assistant")

        async with self.call.new_turn() as turn:
            reply.turn = turn
            await self._utter(reply, turn, self._noted(reply, words()))
        if not turn.cancelled:
            await self._after(reply)

    async def _noted(self, reply: Reply, words: AsyncIterator[Text]) -> AsyncIterator[Text]:
        async for piece in words:
            reply.text += piece.text
            yield piece

    async def _utter(self, reply: Reply, turn: Turn, words: AsyncIterator[Text]) -> None:
        """Let the words be spoken; nothing goes out before the caller has certainly finished."""
        async for piece in self.chain.tts.speak(words):
            if not reply.sent:
                await reply.confirmed.wait()
                if reply.ended_at is not None:
                    turn.mark("speech_end", reply.ended_at)
                reply.sent_at = self.call.clock.now()
            reply.sent.append((reply.sent_ms + piece.seconds * 1e3, piece.text))
            await self._out.send(replace(piece, turn=turn.number))
        await reply.confirmed.wait()
        await self._out.send(Text(reply.text.strip(), role="assistant", turn=turn.number))
        while self.mind.events:
            await self._out.send(replace(self.mind.events.pop(0), turn=turn.number))

    async def _after(self, reply: Reply) -> None:
        """When the reply has been played: remember it, and hang up or wait for the caller."""
        if reply.turn is not None and reply.sent:
            with suppress(Cancelled):
                await self._until_played(reply, reply.turn)
        if reply not in self._replies:
            return
        self._replies.remove(reply)
        self.said.append(Said("assistant", reply.text.strip()))
        if self.mind.done or self.given_up:
            await self._out.send(Control("hang_up", turn=reply.turn.number if reply.turn else 0))
            self._out.end()
        elif not self._speaking:
            self._wait_for_speech()

    async def _until_played(self, reply: Reply, turn: Turn) -> None:
        """Until the client says so, or the time that it takes has passed."""
        done = asyncio.Event()
        clock = self.call.clock
        timer = clock.call_at(reply.sent_at + reply.sent_ms / 1e3 + 0.25, done.set)
        told = asyncio.ensure_future(self.call.played.reached(turn.number, reply.sent_ms - 20))
        told.add_done_callback(lambda _: done.set())
        try:
            await done.wait()
        finally:
            timer.cancel()
            told.cancel()

    # silence

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait_for_speech(self) -> None:
        self._stop_waiting()
        if not self._replies and not self._speaking and not self.given_up:
            self._timer = self.call.clock.call_at(self.call.clock.now() + self.manners.patience, self._on_silence)

    def _on_silence(self) -> None:
        """The caller says nothing: ask once, then say goodbye aloud and hang up."""
        self._timer = None
        self._silences += 1
        if self._silences < 2:
            self._say(self.manners.still_there)
        else:
            self.given_up = True
            self._say(self.manners.give_up)


def has_words(text: str) -> bool:
    return any(c.isalnum() for c in text)
