"""One conversation at the reception: who speaks when. What is said is thought up in `mind`; here it is only timed.

A reply is begun as soon as the caller may have finished (64 ms of silence), and is let out when the end of the
sentence is certain; if the caller goes on, it is withdrawn unheard. A caller who makes a sound while the reception
speaks holds its reply at once; words end it, a cough lets it go on. What is remembered of a reply is what was heard.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from chains import Audio, Control, Text
from chains.call import Call, Turn
from chains.channel import Channel, End
from chains.errors import Cancelled, ModelError
from chains.timing import Timer
from examples.phone_call.records import Taken
from examples.phone_call.reply import Reply, Said

if TYPE_CHECKING:
    from examples.phone_call.call import PhoneCall
    from examples.phone_call.mind import Mind

Out = Audio | Text | Control
log = logging.getLogger("examples.phone_call")


@dataclass(frozen=True)
class Manners:
    """What the reception says of itself, and how long it waits for the caller (seconds)."""

    greeting: str
    still_there: str = "Are you still there?"
    give_up: str = "I can't hear you. Please call again. Goodbye."
    sorry: str = "I am sorry, something went wrong here. Could you say that again, please?"
    patience: float = 12.0


class Conversation:
    """Runs one call: `async for item in Conversation(...).run(audio)` gives what the caller hears and sees."""

    def __init__(self, chain: PhoneCall, mind: Mind, call: Call, manners: Manners) -> None:
        self.chain = chain
        self.mind = mind
        self.call = call
        self.manners = manners
        self.said: list[Said] = []
        self._out: Channel[Out] = Channel()
        self._dropped: set[int] = set()  # turns of which nothing more goes out
        self._replies: list[Reply] = []  # those that may still be heard
        self._unclear: list[float] = []  # starts of the caller's speech (at_ms) whose final text has not come
        self._finals: dict[float, Text] = {}  # final texts that came before those of earlier speech
        self._quiet = asyncio.Event()  # the caller is silent, and all that was said is known
        self._quiet.set()
        self._speech_end = 0.0
        self._silences = 0
        self._timer: Timer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, audio: AsyncIterator[Audio]) -> AsyncGenerator[Out]:
        """The caller's audio in, everything that goes to the caller out, until one of them hangs up.

        What was being said when the call ends is remembered as far as it was heard.
        """
        listening = asyncio.ensure_future(self._listen(audio))
        listening.add_done_callback(self._line_closed)
        try:
            async for item in self._out:
                if item.turn not in self._dropped:
                    yield item
        finally:
            self._stop_waiting()
            for reply in self._replies:
                self._remember(reply)
            tasks = (listening, *self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _line_closed(self, listening: asyncio.Task[None]) -> None:
        """The caller sends nothing more: the reply under way may still be said, then the stream ends."""
        if listening.cancelled():
            return
        error = listening.exception()
        if error is not None:
            self._out.end(End("error", error))
            return
        self._unclear.clear()
        self._withdraw_unconfirmed()
        self._go_on()
        self._start(self._say_the_rest())

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._out.end(End("error", error))

    async def _say_the_rest(self) -> None:
        tasks = [reply.task for reply in self._replies if reply.task is not None]
        if tasks:
            await asyncio.wait(tasks)
        self._out.end()

    # hearing

    async def _listen(self, audio: AsyncIterator[Audio]) -> None:
        self._say(self.manners.greeting)
        async for event in self.chain.asr.transcribe(self.chain.vad.listen(audio)):
            match event:
                case Control(kind="speech_started", data=data):
                    self._on_speech(float(data["at_ms"]))
                case Control(kind="transcript_guess", data=data):
                    self._on_guess(data["text"])
                case Control(kind="speech_resumed"):
                    self._withdraw_unconfirmed()
                case Control(kind="speech_ended", data=data):
                    self._speech_end = self.call.clock.now() - (data["seen_ms"] - data["at_ms"]) / 1e3
                case Text(final=True):
                    await self._on_final(event)

    def _on_speech(self, at_ms: float) -> None:
        """The caller makes a sound: nothing goes out until it is known what it was."""
        self._unclear.append(at_ms)
        self._quiet.clear()
        self._stop_waiting()
        for reply in self._replies:
            if reply.begun:
                reply.hold(self.call.clock.now())

    def _on_guess(self, text: str) -> None:
        """The caller may have finished: a reply to what was said so far is prepared, unheard."""
        if has_words(text):
            self._withdraw_unconfirmed()
            self._prepare(self._joined(text.strip()))

    async def _on_final(self, text: Text) -> None:
        """Final texts count in the order of the speech, in whichever order they come."""
        start = text.start_ms if text.start_ms in self._unclear else next(iter(self._unclear), text.start_ms)
        self._finals[start] = text
        while self._unclear and self._unclear[0] in self._finals:
            await self._understood(self._finals.pop(self._unclear[0]))
            self._unclear.pop(0)
        if not self._unclear:
            self._go_on()

    async def _understood(self, text: Text) -> None:
        words = text.text.strip()
        if not has_words(words):
            self._withdraw_unconfirmed()
            return
        for reply in [r for r in self._replies if r.begun]:
            self._cut(reply)
        await self._out.send(replace(text, text=words))
        joined = self._joined(words)
        ready = next((r for r in self._replies if not r.confirmed.is_set() and r.heard == joined), None)
        if ready is None:
            self._withdraw_unconfirmed()
            ready = self._prepare(joined)
        for reply in [r for r in self._replies if r is not ready and r.confirmed.is_set()]:
            self._drop(reply, "the caller went on")
        self._confirm(ready)

    def _joined(self, text: str) -> str:
        """With the words before it, when the reply to those has not been heard yet: one sentence with a pause in it."""
        before = next((r for r in self._replies if r.confirmed.is_set() and not r.begun and r.heard), None)
        return f"{before.heard} {text}" if before is not None else text

    def _go_on(self) -> None:
        """It is known what the caller said. A reply that was held, and not cut for it, goes on."""
        for reply in self._replies:
            reply.resume(self.call.clock.now())
        self._quiet.set()
        self._wait_for_speech()

    # deciding about replies

    def _prepare(self, text: str) -> Reply:
        reply = Reply(text)
        self._replies.append(reply)
        reply.task = self._start(self._speak(reply, self.mind.words(reply)))
        return reply

    def _say(self, text: str, *, hang_up: bool = False) -> None:
        """Something that the reception says by itself."""
        reply = Reply("", hang_up=hang_up)
        reply.confirmed.set()
        self._replies.append(reply)
        reply.task = self._start(self._speak(reply, recited(text)))

    def _confirm(self, reply: Reply) -> None:
        """The caller has finished: what was prepared may go out."""
        reply.ended_at = self._speech_end
        reply.line = Said("user", reply.heard)
        self.said.append(reply.line)
        self._silences = 0
        reply.confirmed.set()

    def _withdraw_unconfirmed(self) -> None:
        for reply in [r for r in self._replies if not r.confirmed.is_set()]:
            self._drop(reply, "speech resumed")

    def _drop(self, reply: Reply, reason: str) -> None:
        """The reply stops at its source and nothing more of it goes out. If none has, it was never asked for."""
        self._replies.remove(reply)
        if reply.line is not None and not reply.begun:
            self.said.remove(reply.line)
        if reply.turn is not None:
            self._dropped.add(reply.turn.number)
            reply.turn.cancel(reason)
        elif reply.task is not None:
            reply.task.cancel()

    def _cut(self, reply: Reply) -> None:
        """Barge-in: the reply ends here."""
        self._remember(reply)
        self._drop(reply, "barge-in")

    def _remember(self, reply: Reply) -> None:
        """Keep of the reply what was heard; nothing, if nothing was."""
        heard = reply.heard_until(self._played_ms(reply))
        if heard:
            self.said.append(Said("assistant", heard if heard == reply.text else f"{heard} ..."))

    def _played_ms(self, reply: Reply) -> float:
        """How much of the reply was played: as the client reports, or by the clock if it never does."""
        if reply.turn is not None and self._client_reports():
            return self.call.played.of(reply.turn.number)
        return reply.played_ms(self.call.clock.now())

    def _client_reports(self) -> bool:
        return any(self.call.played.of(turn.number) for turn in self.call.turns)

    # speaking

    async def _speak(self, reply: Reply, words: AsyncIterator[Text]) -> None:
        """One turn of the reception, until it has been played, is withdrawn, or is cut."""
        async with self.call.new_turn() as turn:
            reply.turn = turn
            await self._utter_something(reply, turn, words)
            await self._until_played(reply, turn)
        if reply in self._replies and not turn.cancelled:
            await self._over(reply)

    async def _utter_something(self, reply: Reply, turn: Turn, words: AsyncIterator[Text]) -> None:
        """The words; or, if they do not come, something else. A voice that fails at that too ends the call."""
        try:
            try:
                await self._utter(reply, turn, words)
            except Taken:
                await self._utter(reply, turn, self.mind.taken(reply))
        except Cancelled:
            raise
        except Exception as error:
            if turn.cancelled:
                raise
            log.warning("call %s, turn %d: no reply came of it: %s", self.call.id, turn.number, type(error).__name__)
            reply.plan, reply.hang_up = None, False
            await self._utter(reply, turn, recited(self.manners.sorry))

    async def _utter(self, reply: Reply, turn: Turn, words: AsyncIterator[Text]) -> None:
        """Let the words be spoken. Raises ModelError when there was nothing to say, or nothing to hear of it."""
        written = [reply.heard_until(reply.sent_ms), " "] if reply.sent_ms else []
        before = reply.sent_ms
        async for piece in self.chain.tts.speak(noted(written, words)):
            await self._may_speak(reply)
            if not reply.begun:
                await self._begin(reply, turn)
            reply.send(piece, self.call.clock.now())
            await self._out.send(replace(piece, turn=turn.number))
        if reply.sent_ms == before:
            raise ModelError("the model wrote nothing, or the voice said nothing of it")
        await self._may_speak(reply)
        reply.text = "".join(written).strip()
        await self._out.send(Text(reply.text, role="assistant", turn=turn.number))

    async def _begin(self, reply: Reply, turn: Turn) -> None:
        """The caller is about to hear it: what it says that is done is done now. Raises Taken."""
        reply.begun = True
        if reply.ended_at is not None:
            turn.mark("speech_end", reply.ended_at)
        for event in await self.mind.carry_out(reply):
            await self._out.send(event)
        await self._may_speak(reply)

    async def _may_speak(self, reply: Reply) -> None:
        """Wait until the caller has certainly finished, and is silent."""
        while not (reply.confirmed.is_set() and self._quiet.is_set()):
            await reply.confirmed.wait()
            await self._quiet.wait()

    async def _until_played(self, reply: Reply, turn: Turn) -> None:
        """Until the client says that it has played it, or the time that this takes has passed."""
        told = asyncio.ensure_future(self.call.played.reached(turn.number, reply.sent_ms - 20))
        try:
            while True:
                await self._quiet.wait()  # while the caller makes a sound, the reply is held
                due = reply.ends_at + (2.0 if self._client_reports() else 0.25)
                if told.done() or self.call.clock.now() >= due:
                    return
                await self._until(due, told)
        finally:
            told.cancel()

    async def _until(self, when: float, other: asyncio.Future[None]) -> None:
        """Until a moment of the call's clock has come, or `other` is done."""
        come = asyncio.Event()
        timer = self.call.clock.call_at(when, come.set)
        other.add_done_callback(lambda _: come.set())
        try:
            await come.wait()
        finally:
            timer.cancel()

    async def _over(self, reply: Reply) -> None:
        """The whole reply was heard: hang up, or wait for the caller."""
        self._replies.remove(reply)
        self.said.append(Said("assistant", reply.text))
        if reply.hang_up:
            await self._out.send(Control("hang_up", turn=reply.turn.number if reply.turn is not None else 0))
            self._out.end()
        else:
            self._wait_for_speech()

    # silence

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait_for_speech(self) -> None:
        self._stop_waiting()
        if not self._replies and self._quiet.is_set():
            self._timer = self.call.clock.call_at(self.call.clock.now() + self.manners.patience, self._on_silence)

    def _on_silence(self) -> None:
        """The caller says nothing: ask once, then say goodbye aloud and hang up."""
        self._timer = None
        self._silences += 1
        if self._silences < 2:
            self._say(self.manners.still_there)
        else:
            self._say(self.manners.give_up, hang_up=True)


async def recited(text: str) -> AsyncIterator[Text]:
    yield Text(text, role="assistant")


async def noted(written: list[str], words: AsyncIterator[Text]) -> AsyncIterator[Text]:
    """The words, each noted down in `written` as it passes."""
    async for piece in words:
        written.append(piece.text)
        yield piece


def has_words(text: str) -> bool:
    return any(c.isalnum() for c in text)
