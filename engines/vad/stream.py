"""Where one stream's speech starts and ends: frames of any length in, events and the speech itself out. No
I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

FRAME_MS = 32

Samples = npt.NDArray[np.float32]
Score = Callable[[Samples], float]
"""Probability that one 32 ms frame is speech; it may remember the frames before (SileroVad.probability with
a memory).
"""


class VadSettingsError(ValueError):
    """A setting that does not exist or makes no sense; the message names it and its range."""


@dataclass(frozen=True, slots=True)
class VadSettings:
    """When speech begins and ends. Times are counted in frames of 32 ms, rounded up.

    threshold: a frame counts as speech from this probability on; `threshold - hysteresis` ends it.
    min_speech_ms: shorter bursts (clicks, coughs) are no speech.
    maybe_end_ms: silence after which the end is guessed, so that work on it can begin.
    end_ms: silence after which the segment has ended.
    prefix_ms: audio from before the onset that belongs to the segment.
    forget_ms: in silence the detector's memory is cleared this often (its confidence decays in long streams).
    """

    threshold: float = 0.5
    hysteresis: float = 0.15
    min_speech_ms: int = 64
    maybe_end_ms: int = 64
    end_ms: int = 320
    prefix_ms: int = 300
    forget_ms: int = 10_000

    def __post_init__(self) -> None:
        for name, low, high in (
            ("threshold", 0.01, 0.99),
            ("hysteresis", 0.0, self.threshold),
            ("min_speech_ms", 0, 2_000),
            ("end_ms", FRAME_MS, 10_000),
            ("maybe_end_ms", 0, self.end_ms),
            ("prefix_ms", 0, 2_000),
            ("forget_ms", 1_000, 3_600_000),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise VadSettingsError(f"{name} is {value!r}; it must be a number from {low} to {high}")

    @classmethod
    def of(cls, settings: dict[str, Any]) -> VadSettings:
        """Settings from a mapping, as a configuration file or a control message gives them."""
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(settings) - set(known))
        if unknown:
            raise VadSettingsError(f"no setting is called {', '.join(unknown)}; there are: {', '.join(known)}")
        return cls(**settings)


@dataclass(frozen=True, slots=True)
class SpeechStart:
    """Speech began at `at_ms` of the stream, which was certain at `seen_ms`. Segments count from 1."""

    segment: int
    at_ms: int
    seen_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class Speech:
    """The segment's audio (float32), in order and without gaps, from prefix_ms before its start until its
    end is certain.
    """

    segment: int
    at_ms: int
    samples: Samples


@dataclass(frozen=True, slots=True)
class MaybeEnd:
    """Silence since `at_ms`: the segment may be over. Resume or SpeechEnd follows."""

    segment: int
    at_ms: int
    seen_ms: int


@dataclass(frozen=True, slots=True)
class Resume:
    """The segment went on after a MaybeEnd: what was made of it is stale."""

    segment: int
    at_ms: int
    seen_ms: int


@dataclass(frozen=True, slots=True)
class SpeechEnd:
    """The segment's last speech lay before `at_ms`; the hold passed at `seen_ms`."""

    segment: int
    at_ms: int
    seen_ms: int


VadEvent = SpeechStart | Speech | MaybeEnd | Resume | SpeechEnd


def frames_of(milliseconds: float) -> int:
    """Whole frames that cover `milliseconds`."""
    return -(-int(milliseconds) // FRAME_MS)


def as_float(samples: npt.NDArray[Any]) -> Samples:
    """int16 or float samples, mono, as float32 in [-1, 1]. TypeError for anything else."""
    if samples.ndim != 1:
        raise TypeError(f"mono audio has one dimension, not {samples.ndim}; mix the channels first")
    if samples.dtype == np.int16:
        return samples.astype(np.float32) / 32768.0
    if samples.dtype in (np.float32, np.float64):
        return np.nan_to_num(samples.astype(np.float32, copy=False), nan=0.0, posinf=1.0, neginf=-1.0)
    raise TypeError(f"audio is int16 or float32 samples, not {samples.dtype}")


class VadStream:
    """The state of one stream. `push` takes what arrives, `finish` ends it; both give what came of it, in
    order.

    Memory is bounded: one frame of remainder and the prefix.
    """

    def __init__(
        self,
        score: Score,
        rate: int,
        settings: VadSettings | None = None,
        forget: Callable[[], None] | None = None,
    ) -> None:
        self.settings = settings or VadSettings()
        self._score = score
        self._forget = forget
        self._rate = rate
        self._size = rate * FRAME_MS // 1000
        self._rest = np.zeros(0, np.float32)
        self._frames = 0
        self._segment = 0
        self._speaking = False
        self._guessed = False
        self._loud = 0  # frames of speech that do not yet make a start
        self._quiet = 0  # frames of silence at the end of a segment, or since the memory was cleared
        onset = max(1, frames_of(self.settings.min_speech_ms))
        self._recent: deque[Samples] = deque(maxlen=frames_of(self.settings.prefix_ms) + onset)

    @property
    def speaking(self) -> bool:
        """Whether a segment is open."""
        return self._speaking

    def push(self, samples: npt.NDArray[Any]) -> list[VadEvent]:
        """Takes mono int16 or float32 samples of any length at the stream's rate."""
        heard = as_float(samples)
        audio = np.concatenate((self._rest, heard)) if len(self._rest) else heard
        whole = len(audio) - len(audio) % self._size
        self._rest = audio[whole:].copy()
        events: list[VadEvent] = []
        for start in range(0, whole, self._size):
            events += self._frame(audio[start : start + self._size])
        return events

    def finish(self) -> list[VadEvent]:
        """The stream is over: an open segment ends where it stands, with the audio that was held back."""
        events: list[VadEvent] = []
        if self._speaking:
            now = self._frames * FRAME_MS
            if len(self._rest):
                events.append(Speech(self._segment, now, self._rest))
            events.append(SpeechEnd(self._segment, now - self._quiet * FRAME_MS, now + self._ms(len(self._rest))))
        self._speaking = False
        self._rest = self._rest[:0]
        return events

    def _ms(self, samples: int) -> int:
        return samples * 1000 // self._rate

    def _frame(self, frame: Samples) -> list[VadEvent]:
        probability = self._score(frame)
        self._frames += 1
        return self._inside(frame, probability) if self._speaking else self._outside(frame, probability)

    def _outside(self, frame: Samples, probability: float) -> list[VadEvent]:
        self._recent.append(frame)
        if probability < self.settings.threshold:
            self._loud = 0
            self._quiet += 1
            if self._forget and self._quiet >= frames_of(self.settings.forget_ms):
                self._forget()
                self._quiet = 0
            return []
        self._loud += 1
        if self._loud < max(1, frames_of(self.settings.min_speech_ms)):
            return []
        self._segment += 1
        self._speaking, self._guessed = True, False
        now = self._frames * FRAME_MS
        start = SpeechStart(self._segment, now - self._loud * FRAME_MS, now)
        speech = Speech(self._segment, now - len(self._recent) * FRAME_MS, np.concatenate(self._recent))
        self._recent.clear()
        self._loud = self._quiet = 0
        return [start, speech]

    def _inside(self, frame: Samples, probability: float) -> list[VadEvent]:
        now = self._frames * FRAME_MS
        events: list[VadEvent] = [Speech(self._segment, now - FRAME_MS, frame)]
        if probability >= self.settings.threshold - (0.0 if self._guessed else self.settings.hysteresis):
            if self._guessed:
                events.insert(0, Resume(self._segment, now - FRAME_MS, now))
            self._quiet, self._guessed = 0, False
            return events
        self._quiet += 1
        ended = now - self._quiet * FRAME_MS
        if not self._guessed and self._quiet >= max(1, frames_of(self.settings.maybe_end_ms)):
            self._guessed = True
            events.append(MaybeEnd(self._segment, ended, now))
        if self._quiet >= frames_of(self.settings.end_ms):
            events.append(SpeechEnd(self._segment, ended, now))
            self._speaking = False
            self._recent.clear()
            self._quiet = 0
        return events
