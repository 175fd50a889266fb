"""The recogniser as a chainlet: speech and its marks in, text out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, nullcontext

from chains import Audio, Control, Limits, Resources, Text, chainlet
from chains.call import current_or_none
from chains.errors import ModelError, SettingError
from engines.asr.model import Hints, WhisperModel
from engines.asr.stream import AsrSettings, AsrSettingsError, Request, SegmentTranscriber, Transcript, to_16k
from engines.asr.weights import AsrModelError

Heard = Text | Control
_AT_ONCE = 8


@chainlet(resources=Resources(cpu=1), limits=Limits(running=64))
class Asr:
    """Speech to text with Whisper.

    model: a name ("tiny.en"), an installed package with a model in it, a directory, or None for the bundled
    default.
    threads: cores for one transcription; workers: transcriptions at once. hotwords, prompt: what the caller
    may say.
    partial_ms: a partial text after every this much of speech (0: none), when the model is idle.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        threads: int = 1,
        workers: int = 2,
        language: str = "en",
        device: str = "cpu",
        compute_type: str = "int8",
        hotwords: Sequence[str] = (),
        prompt: str = "",
        partial_ms: int = 1000,
    ) -> None:
        self._options = {
            "threads": threads, "workers": workers, "language": language, "device": device,
            "compute_type": compute_type,
        }  # fmt: skip
        self._name = model
        self._hints = Hints(tuple(hotwords), prompt)
        try:
            self._settings = AsrSettings(partial_ms=partial_ms)
        except AsrSettingsError as error:
            raise SettingError(str(error)) from error

    def load(self) -> None:
        try:
            self._model = WhisperModel(self._name, **self._options)  # type: ignore[arg-type]
        except AsrModelError as error:
            raise ModelError(str(error)) from error

    def warm(self) -> None:
        self._model.warm()

    async def recognise(self, audio: Audio) -> Text:
        """The text of a whole recording; "" where nobody speaks."""
        _note("chains.audio_s", audio.seconds)
        samples = to_16k(audio.to_float(), audio.rate)
        found = await asyncio.to_thread(self._model.transcribe, samples, self._hints)
        return Text(found.text, role="user", turn=audio.turn, end_ms=1000 * audio.seconds)

    async def transcribe(self, speech: AsyncIterator[Audio | Control]) -> AsyncIterator[Text | Control]:
        """`speech` is what Vad.listen gives. Its controls are passed on at once; in between come, for each
        segment,
        partial texts (final=False), the control transcript_guess ({segment, text, start_ms, end_ms}: what
        the final
        text will be unless speech_resumed follows), and one final text, "" where no words were understood.

        A text's start_ms is the at_ms of its segment's speech_started. Audio without any control is one
        segment.
        """
        hearing = _Hearing(self._model, self._hints, self._settings)
        reader = asyncio.create_task(hearing.read(speech))
        try:
            while (item := await hearing.out.get()) is not None:
                yield item
            if hearing.error is not None:
                raise hearing.error
            await reader
        finally:
            await hearing.close(reader)


class _Hearing:
    """One stream: reads its input and runs its transcriptions side by side; what comes of both goes to
    `out`.
    """

    def __init__(self, model: WhisperModel, hints: Hints, settings: AsrSettings) -> None:
        self.out: asyncio.Queue[Heard | None] = asyncio.Queue()
        self.error: Exception | None = None
        self._model = model
        self._hints = hints
        self._settings = settings
        self._state: SegmentTranscriber | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, speech: AsyncIterator[Audio | Control]) -> None:
        """Until the input ends and all that was asked for has come. The first error ends it."""
        marked = False
        early: Control | None = None  # a start is acted on when the first audio tells the rate
        position = 0.0
        try:
            async for item in speech:
                if isinstance(item, Control):
                    marked = True
                    await self.out.put(item)
                    if self._state is None:
                        early = item
                    else:
                        self._control(self._state, item)
                    continue
                if self._state is None:
                    self._state = SegmentTranscriber(item.rate, self._settings)
                    if early is not None:
                        self._control(self._state, early)
                    elif not marked:
                        self._state.start(1, 0)
                position += 1000 * item.seconds
                self._ask(self._state.push(item.pcm))
                # a recording that comes faster than it can be heard has to wait, also while texts wait for their turn
                while self._tasks and max(len(self._tasks), self._state.waiting) >= _AT_ONCE:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._state is not None:
                self._ask(self._state.end(int(position)))
            while self._tasks:
                await asyncio.gather(*self._tasks)
        finally:
            _note("chains.audio_s", round(position / 1000, 3))
            await self.out.put(None)

    async def close(self, reader: asyncio.Task[None]) -> None:
        """Stops reading and waits for nothing; a transcription that runs in a thread ends there, unheard."""
        tasks = [reader, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _control(self, state: SegmentTranscriber, control: Control) -> None:
        at_ms = int(control.data.get("at_ms", 0))
        match control.kind:
            case "speech_started":
                self._ask(state.start(int(control.data["segment"]), at_ms))
            case "speech_maybe_ended":
                self._ask(state.maybe_end(at_ms))
            case "speech_resumed":
                state.resume()
            case "speech_ended":
                self._ask(state.end(at_ms))

    def _ask(self, found: Sequence[Request | Transcript]) -> None:
        for item in found:
            if isinstance(item, Transcript):
                self.out.put_nowait(_message(item))
            elif item.kind != "partial" or not self._tasks:  # partials only while there is nothing else to do
                task = asyncio.create_task(self._answer(item))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: Request) -> None:
        try:
            with _account(f"decode ({request.kind})"):
                found = await asyncio.to_thread(self._model.transcribe, request.samples, self._hints)
        except Exception as error:  # whatever it is, the consumer must hear of it
            self.error = error
            await self.out.put(None)
            return
        if self._state is not None:
            self._ask(self._state.take(request, found.text))


def _account(name: str) -> AbstractContextManager[None]:
    """Name the work in the hop's account; outside of a call (the class used by itself) there is none."""
    scope = current_or_none()
    return scope.work(name) if scope is not None and scope.hop is not None else nullcontext()


def _note(name: str, value: float) -> None:
    """For the span of the running hop, if there is one."""
    scope = current_or_none()
    if scope is not None and scope.hop is not None:
        scope.note(name, value)


def _message(transcript: Transcript) -> Heard:
    start, end = float(transcript.start_ms), float(transcript.end_ms)
    if transcript.kind == "speculative":
        data = {"segment": transcript.segment, "text": transcript.text, "start_ms": start, "end_ms": end}
        return Control("transcript_guess", data)
    final = transcript.kind == "final"
    return Text(transcript.text, final=final, role="user", start_ms=start, end_ms=end)
