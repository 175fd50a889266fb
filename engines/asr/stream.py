"""What to transcribe when, for one stream: segments of speech in, requests out; results in, transcripts out.
No I/O.

A segment is asked for when it may have ended (speculative) and again only if something was spoken after
that; while it
goes on, partial requests may be made. Every transcript names its segment, so a late one can never end
another's turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import soxr

RATE = 16000
_CUT_TAIL_S = 5

Samples = npt.NDArray[np.float32]
Kind = Literal["partial", "speculative", "final"]


class AsrSettingsError(ValueError):
    """A setting makes no sense; the message names it and its range."""


@dataclass(frozen=True, slots=True)
class AsrSettings:
    """partial_ms: a partial text after every this much of speech, 0 for none. max_segment_ms: longer speech
    is
    transcribed piece by piece (its final text is still one), which bounds memory."""

    partial_ms: int = 1_000
    max_segment_ms: int = 28_000

    def __post_init__(self) -> None:
        if self.partial_ms != 0 and not 200 <= self.partial_ms <= 30_000:
            raise AsrSettingsError(f"partial_ms is {self.partial_ms}; it must be 0 (none) or from 200 to 30000")
        if not 2 * _CUT_TAIL_S * 1000 <= self.max_segment_ms <= 30_000:
            raise AsrSettingsError(f"max_segment_ms is {self.max_segment_ms}; it must be from 10000 to 30000")


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Audio to transcribe: float32 at 16 kHz, at most 30 s. `part` counts the pieces of a long segment."""

    segment: int
    kind: Kind
    version: int
    part: int
    samples: Samples


@dataclass(frozen=True, slots=True)
class Transcript:
    """Text of a segment so far. `final` comes once per segment; `speculative` may be withdrawn by a later
    one.
    """

    segment: int
    kind: Kind
    text: str
    start_ms: int
    end_ms: int


@dataclass
class _Segment:
    number: int
    start_ms: int
    end_ms: int
    version: int = 0  # grows with everything that makes earlier results stale
    part: int = 0
    pieces: list[Samples] = field(default_factory=list)
    held: int = 0  # samples in pieces
    since_partial: int = 0
    asked: int = -1  # the version that the last speculative or final request was made of
    known: str | None = None  # the text of that version, when it has come
    cut: dict[int, str] = field(default_factory=dict)  # texts of the pieces that were cut off
    ended: bool = False

    def text(self, last: str) -> str:
        whole = [self.cut[part] for part in sorted(self.cut)] + [last]
        return " ".join(piece for piece in whole if piece)

    def complete(self) -> bool:
        return self.ended and self.known is not None and len(self.cut) == self.part


class SegmentTranscriber:
    """The state of one stream. The caller carries out each Request and hands its text to `take`.

    `start`, `push`, `maybe_end`, `resume`, `end` follow the voice detector; segments may overlap in time
    with results
    that are still on their way. Memory: the open segment's audio (at most max_segment_ms).
    """

    def __init__(self, rate: int, settings: AsrSettings | None = None) -> None:
        self.settings = settings or AsrSettings()
        self._rate = rate
        self._segments: dict[int, _Segment] = {}
        self._open: _Segment | None = None

    @property
    def waiting(self) -> int:
        """Segments whose final text has not come yet."""
        return len(self._segments)

    def start(self, segment: int, at_ms: int) -> list[Request | Transcript]:
        """A segment begins; one that was left open ends first."""
        requests = self.end(at_ms)
        self._open = self._segments[segment] = _Segment(segment, at_ms, at_ms)
        return requests

    def push(self, samples: npt.NDArray[Any]) -> list[Request]:
        """Speech of the open segment, int16 or float32, mono; without an open segment it is not heard."""
        segment = self._open
        if segment is None or not len(samples):
            return []
        audio = samples.astype(np.float32) / 32768.0 if samples.dtype == np.int16 else samples.astype(np.float32)
        segment.pieces.append(audio)
        segment.held += len(audio)
        segment.since_partial += len(audio)
        if segment.held * 1000 >= self.settings.max_segment_ms * self._rate:
            return [self._cut(segment)]
        wanted = self.settings.partial_ms
        if wanted and segment.asked < segment.version and segment.since_partial * 1000 >= wanted * self._rate:
            segment.since_partial = 0
            return [self._request(segment, "partial")]
        return []

    def maybe_end(self, at_ms: int) -> list[Request]:
        """The segment may have ended at `at_ms`: its text is asked for now."""
        if self._open is None:
            return []
        self._open.end_ms = at_ms
        return [self._ask(self._open, "speculative")]

    def resume(self) -> None:
        """The segment went on: what was asked for is stale."""
        if self._open is not None:
            self._open.version += 1
            self._open.known = None

    def end(self, at_ms: int) -> list[Request | Transcript]:
        """The segment ended at `at_ms`. If nothing was spoken since `maybe_end` its result is the final text,
        given here if it has come; otherwise the text is asked for.
        """
        segment, self._open = self._open, None
        if segment is None:
            return []
        segment.end_ms = at_ms
        segment.ended = True
        if segment.asked != segment.version:
            return [self._ask(segment, "final")]
        return [*self._settled()]

    def take(self, request: Request, text: str) -> list[Transcript]:
        """The text of `request` has come. A stale one gives nothing."""
        segment = self._segments.get(request.segment)
        if segment is None:
            return []
        if request.part < segment.part:
            if request.kind == "final":
                segment.cut[request.part] = text
            return self._settled()
        if request.version != segment.version or (request.kind == "partial" and segment.known is not None):
            return []
        if request.kind != "partial":
            segment.known = text
        if segment.ended:
            return self._settled()
        return [self._transcript(segment, request.kind, text)] if text else []

    def _settled(self) -> list[Transcript]:
        """Final transcripts, each once: in the order of speech, so a short segment waits for the one before it."""
        settled = []
        for segment in list(self._segments.values()):  # in the order in which they began
            if not segment.complete():
                break
            del self._segments[segment.number]
            settled.append(self._transcript(segment, "final", segment.known or ""))
        return settled

    def _transcript(self, segment: _Segment, kind: Kind, text: str) -> Transcript:
        return Transcript(segment.number, kind, segment.text(text), segment.start_ms, segment.end_ms)

    def _ask(self, segment: _Segment, kind: Kind) -> Request:
        segment.asked = segment.version
        segment.known = None
        return self._request(segment, kind)

    def _request(self, segment: _Segment, kind: Kind) -> Request:
        audio = np.concatenate(segment.pieces) if segment.pieces else np.zeros(0, np.float32)
        segment.pieces = [audio] if len(audio) else []
        return Request(segment.number, kind, segment.version, segment.part, to_16k(audio, self._rate))

    def _cut(self, segment: _Segment) -> Request:
        """Too long: the audio up to the quietest place in its last seconds becomes a part of its own."""
        audio = np.concatenate(segment.pieces)
        at = quietest(audio, self._rate, _CUT_TAIL_S)
        request = Request(segment.number, "final", segment.version, segment.part, to_16k(audio[:at], self._rate))
        segment.pieces, segment.held = [audio[at:]], len(audio) - at
        segment.part += 1
        segment.version += 1
        segment.known = None
        segment.since_partial = 0
        return request


def quietest(audio: Samples, rate: int, tail_s: int) -> int:
    """Where in its last `tail_s` seconds `audio` is quietest, as a sample index; steps of 100 ms."""
    hop = rate // 10
    start = max(0, len(audio) - tail_s * rate)
    blocks = (len(audio) - start) // hop
    if blocks < 1:
        return len(audio)
    energy = np.square(audio[start : start + blocks * hop]).reshape(blocks, hop).sum(axis=1)
    return start + int(energy.argmin()) * hop + hop // 2


def to_16k(audio: Samples, rate: int) -> Samples:
    """A whole piece resampled at once, so that no filter holds back its tail. float32, mono."""
    if rate == RATE or not len(audio):
        return audio
    resampled: Samples = soxr.resample(audio, rate, RATE, quality="HQ").astype(np.float32)
    return resampled
