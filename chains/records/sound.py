"""Recorded sound: a chunk of about a second as FLAC, and beside it when its pieces came and how loud they are."""

from __future__ import annotations

import io
from dataclasses import dataclass, field

import msgspec
import numpy as np
import soundfile
from numpy.typing import NDArray

from chains.errors import MediaError

CHUNK_S = 1.0
BUCKET_MS = 20
_TOGETHER_MS = 5.0
_UNIT = 10.0  # of the index, to the millisecond


class Index(msgspec.Struct, array_like=True):
    """Of a chunk's pieces: `after` the chunk's start (0.1 ms) and `samples` of each, `peaks` (0-255) of each 20 ms.

    `late` is the longest that a piece came after the ones before it had played (0.1 ms), if played from the start on.
    """

    late: int
    after: list[int]
    samples: list[int]
    peaks: bytes

    def pieces(self) -> list[tuple[float, int]]:
        """(milliseconds after the chunk's start, samples) of each piece."""
        return [(after / _UNIT, count) for after, count in zip(self.after, self.samples, strict=True)]

    @property
    def late_ms(self) -> float:
        return self.late / _UNIT


@dataclass
class Chunk:
    """Sound of one stream and one turn, as it gathers. `at_ms` is when its first piece came."""

    at_ms: float
    rate: int
    turn: int
    parts: list[NDArray[np.int16]] = field(default_factory=list)
    pieces: list[tuple[float, int]] = field(default_factory=list)
    samples: int = 0

    @property
    def ms(self) -> float:
        return self.samples * 1e3 / self.rate

    @property
    def full(self) -> bool:
        return self.samples >= self.rate * CHUNK_S

    def room(self) -> int:
        """Samples until it is full."""
        return max(0, round(self.rate * CHUNK_S) - self.samples)

    def fits(self, at_ms: float, rate: int, turn: int) -> bool:
        """Whether a piece that came then belongs into this chunk: the same rate and turn, and no long silence."""
        return (rate, turn) == (self.rate, self.turn) and at_ms < self.at_ms + self.ms + 1e3 * CHUNK_S

    def add(self, at_ms: float, pcm: NDArray[np.int16]) -> None:
        self.parts.append(pcm)
        self.samples += len(pcm)
        if self.pieces and at_ms - self.pieces[-1][0] < _TOGETHER_MS:
            self.pieces[-1] = (self.pieces[-1][0], self.pieces[-1][1] + len(pcm))
        else:
            self.pieces.append((at_ms, len(pcm)))

    def index(self) -> bytes:
        pcm = np.concatenate(self.parts)
        late, before = 0.0, 0
        for at, count in self.pieces:
            late = max(late, at - self.at_ms - before * 1e3 / self.rate)
            before += count
        after = [round((at - self.at_ms) * _UNIT) for at, _ in self.pieces]
        made = Index(round(late * _UNIT), after, [count for _, count in self.pieces], _peaks(pcm, self.rate))
        return msgspec.msgpack.encode(made)

    def flac(self) -> bytes:
        """Its samples, lossless."""
        out = io.BytesIO()
        soundfile.write(out, np.concatenate(self.parts), self.rate, format="FLAC", subtype="PCM_16")
        return out.getvalue()


def index_of(blob: bytes) -> Index:
    return msgspec.msgpack.decode(blob, type=Index)


def samples_of(flac: bytes) -> NDArray[np.int16]:
    """int16 of shape (samples,). Raises MediaError for a chunk that is broken on disk."""
    try:
        pcm: NDArray[np.int16] = soundfile.read(io.BytesIO(flac), dtype="int16")[0]
    except soundfile.LibsndfileError:
        raise MediaError(
            "a piece of the recording is broken", mend="the store's file was damaged; delete the call"
        ) from None
    return pcm


def _peaks(pcm: NDArray[np.int16], rate: int) -> bytes:
    """The loudest sample of each 20 ms, 255 for full scale."""
    step = max(1, rate * BUCKET_MS // 1000)
    padded = np.abs(np.pad(pcm, (0, -len(pcm) % step)).astype(np.int32))
    loudest: NDArray[np.int32] = (padded.reshape(-1, step).max(axis=1) + 127) >> 7
    return np.minimum(loudest, 255).astype(np.uint8).tobytes()
