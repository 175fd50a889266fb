"""A voice as a chainlet: text in as it is written, audio out clause by clause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from chains import Audio, Limits, Resources, Text, chainlet
from chains.call import current_or_none
from chains.errors import ModelError, SettingError
from engines.tts.model import TtsModelError, Voice, load_voice, speak
from engines.tts.stream import Clause, ClauseSplitter, SoundSettings, TtsSettingsError


@chainlet(resources=Resources(cpu=1), limits=Limits(running=64))
class Tts:
    """Text to speech. `backend` "hibari" (bundled) or "coqui" (an extra); `frame_ms` of the audio that comes
    out;
    `rate` in Hz, None for the voice's own; `sound`: further SoundSettings; `voice_options`: those of the backend.
    """

    def __init__(
        self,
        backend: str = "hibari",
        *,
        frame_ms: int = 20,
        rate: int | None = None,
        sound: dict[str, Any] | None = None,
        voice_options: dict[str, Any] | None = None,
    ) -> None:
        self._backend = backend
        self._rate = rate
        self._options = voice_options or {}
        try:
            self._sound = SoundSettings(frame_ms=frame_ms, **(sound or {}))
        except (TtsSettingsError, TypeError) as error:
            raise SettingError(f"the sound settings do not fit: {error}") from error

    def load(self) -> None:
        try:
            self._voice: Voice = load_voice(self._backend, **self._options)
        except TtsModelError as error:
            raise ModelError(str(error)) from error
        except TypeError as error:
            raise SettingError(f"voice_options do not fit the backend {self._backend!r}: {error}") from error

    def warm(self) -> None:
        for _ in self._voice.synthesize("Warm up."):
            pass

    async def speak(self, text: AsyncIterator[str | Text]) -> AsyncIterator[Audio]:
        """Audio of what is written so far, a clause at a time: the first clause is short, later ones are
        sentences.
        Each frame's `text` has the words that end in it: all of them together are the input, so the texts of
        the
        frames that were played are what was heard. Nothing to say gives no audio. Cancelled, it stops within
        a clause.
        """
        splitter = ClauseSplitter()
        turn = 0
        said = _Said()
        async for piece in text:
            if isinstance(piece, Text):
                turn = piece.turn
            for clause in splitter.push(piece if isinstance(piece, str) else piece.text):
                for frame in said.noted(await asyncio.to_thread(self._clause, clause, turn)):
                    yield frame
        for clause in splitter.finish():
            for frame in said.noted(await asyncio.to_thread(self._clause, clause, turn)):
                yield frame

    async def say(self, text: str) -> AsyncIterator[Audio]:
        """The same for a text that is complete."""

        async def whole() -> AsyncIterator[str | Text]:
            yield text

        async for frame in self.speak(whole()):
            yield frame

    def _clause(self, clause: Clause, turn: int) -> list[Audio]:
        return [
            Audio(np.ascontiguousarray(frame.samples), self._rate or self._voice.rate, turn, frame.text)
            for frame in speak(self._voice, clause, self._sound, rate=self._rate)
        ]


class _Said:
    """Notes how much was made of a text, for the span of the running hop."""

    def __init__(self) -> None:
        self._characters, self._seconds = 0, 0.0

    def noted(self, frames: list[Audio]) -> list[Audio]:
        self._characters += sum(len(frame.text) for frame in frames)
        self._seconds += sum(frame.seconds for frame in frames)
        scope = current_or_none()
        if scope is not None and scope.hop is not None:
            scope.note("chains.characters", self._characters)
            scope.note("chains.audio_s", round(self._seconds, 3))
        return frames
