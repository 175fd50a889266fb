"""The voice detector as a chainlet: audio in, the speech in it and what happened out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import soxr

from chains import Audio, Control, Limits, Resources, chainlet
from chains.errors import MediaError, ModelError, SettingError
from engines.vad.model import RATES, SileroVad, VadModelError
from engines.vad.stream import (
    MaybeEnd,
    Resume,
    Speech,
    SpeechEnd,
    SpeechStart,
    VadEvent,
    VadSettings,
    VadSettingsError,
    VadStream,
)

_KINDS = {
    SpeechStart: "speech_started",
    MaybeEnd: "speech_maybe_ended",
    Resume: "speech_resumed",
    SpeechEnd: "speech_ended",
}


@chainlet(resources=Resources(cpu=0.1), limits=Limits(running=256))
class Vad:
    """Finds speech. `weights`: a Silero ONNX file, None for the packaged one; `threads` for one frame; the other
    arguments are those of VadSettings.
    """

    def __init__(
        self,
        weights: str | None = None,
        *,
        threads: int = 1,
        threshold: float = 0.5,
        min_speech_ms: int = 64,
        maybe_end_ms: int = 64,
        end_ms: int = 320,
        prefix_ms: int = 300,
    ) -> None:
        self._weights = weights
        self._threads = threads
        try:
            self._settings = VadSettings(
                threshold=threshold,
                min_speech_ms=min_speech_ms,
                maybe_end_ms=maybe_end_ms,
                end_ms=end_ms,
                prefix_ms=prefix_ms,
            )
        except VadSettingsError as error:
            raise SettingError(str(error)) from error

    def load(self) -> None:
        try:
            self._model = SileroVad(self._weights, self._threads)
        except VadModelError as error:
            raise ModelError(str(error)) from error

    def warm(self) -> None:
        for rate in RATES:
            self._model.probability(self._model.open(rate), np.zeros(rate * 32 // 1000, np.float32))

    async def listen(self, audio: AsyncIterator[Audio]) -> AsyncIterator[Audio | Control]:
        """The audio of each speech segment (with what came just before it), between the controls
        speech_started,
        speech_maybe_ended, speech_resumed and speech_ended; each has `segment` (from 1), `at_ms` of the
        caller's
        audio, and `seen_ms`, when it was certain. Silence is not passed on.

        8 and 16 kHz are heard as they are; other rates come out at 16 kHz. MediaError if the rate changes.
        """
        hearing: _Hearing | None = None
        async for piece in audio:
            if hearing is None:
                hearing = _Hearing(self._model, piece.rate, self._settings)
            elif piece.rate != hearing.given:
                raise MediaError(
                    f"the audio changed from {hearing.given} to {piece.rate} Hz",
                    mend="send all audio of a call at one rate",
                )
            for item in hearing.push(piece.pcm):
                yield item
            await asyncio.sleep(0)  # a long recording must not hold up the other streams
        for item in hearing.finish() if hearing else ():
            yield item


class _Hearing:
    """One stream: its detector's memory, its state, and a resampler where the rate needs one."""

    def __init__(self, model: SileroVad, given: int, settings: VadSettings) -> None:
        self.given = given
        self._rate = given if given in RATES else 16000
        # Low quality delays by 6 to 20 ms, the better ones by more; it is only to be understood by a machine.
        self._resampler = (
            None if given in RATES else soxr.ResampleStream(given, self._rate, 1, dtype="float32", quality="LQ")
        )
        memory = model.open(self._rate)
        self._stream = VadStream(
            lambda frame: model.probability(memory, frame),
            self._rate,
            settings,
            forget=lambda: model.forget(memory),
        )

    def push(self, pcm: npt.NDArray[np.int16]) -> Iterator[Audio | Control]:
        yield from map(self._message, self._stream.push(self._resampled(pcm, last=False)))

    def finish(self) -> Iterator[Audio | Control]:
        tail = self._stream.push(self._resampled(np.zeros(0, np.int16), last=True))
        yield from map(self._message, [*tail, *self._stream.finish()])

    def _resampled(self, pcm: npt.NDArray[np.int16], *, last: bool) -> npt.NDArray[Any]:
        if self._resampler is None:
            return pcm
        resampled: npt.NDArray[Any] = self._resampler.resample_chunk(pcm.astype(np.float32) / 32768, last=last)
        return resampled

    def _message(self, event: VadEvent) -> Audio | Control:
        if isinstance(event, Speech):
            return Audio.from_float(event.samples, self._rate)
        data = {"segment": event.segment, "at_ms": event.at_ms, "seen_ms": event.seen_ms}
        return Control(_KINDS[type(event)], data)
