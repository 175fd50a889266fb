"""A recorded call as a WAV that can be read from any byte on, and as the peaks to draw."""

from __future__ import annotations

import math
import sqlite3
import struct
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
import soxr
from numpy.typing import NDArray

from chains.errors import InvalidValue, LimitExceeded, NotFound
from chains.records.heard import Run, lane
from chains.records.recorded import CALLER, REPLY
from chains.records.sound import BUCKET_MS, index_of, samples_of

HEADER = 44
LONGEST = 1 << 32  # bytes: the fields of a WAV's sizes have 32 bits
_MOST_RATE = 48_000
_AROUND = 800  # samples of the sound before and after that a resampler is given, so that no seam is heard
WavSide = Literal["caller", "reply", "both"]


@dataclass(frozen=True, slots=True)
class Wav:
    """Bytes `start` to `stop` (exclusive) of a WAV of `total` bytes."""

    data: bytes
    start: int
    stop: int
    total: int


@dataclass(frozen=True, slots=True)
class _Placed:
    """A run on the WAV's samples: `first` to `last` there; `before` source samples of its string came before it."""

    run: Run
    first: int
    last: int
    before: int


def wav(conn: sqlite3.Connection, call: int, side: str, start: int = 0, stop: int | None = None) -> Wav:
    """16-bit WAV of what was heard of a side ("both": caller left, reply right) from the call's opening on.

    The same bytes come each time, whichever range is asked for; only the chunks in it are decoded. LimitExceeded when
    the whole would be too long for a WAV.
    """
    sides = _sides(side)
    sound = _Sound(conn, call)
    frame = 2 * len(sides)
    total = HEADER + frame * sound.samples
    if total >= LONGEST:
        raise LimitExceeded(f"the sound would be {total >> 30} GiB, and a WAV can be 4", mend="ask for one side alone")
    start = max(0, min(start, total))
    stop = total if stop is None else max(start, min(stop, total))
    head = _header(sound.rate, len(sides), frame * sound.samples)[start : min(stop, HEADER)]
    from_byte, to_byte = max(0, start - HEADER), max(0, stop - HEADER)
    if to_byte <= from_byte:
        return Wav(head, start, stop, total)
    first, last = from_byte // frame, -(-to_byte // frame)
    lanes = [sound.rendered(one, first, last) for one in sides]
    body = np.stack(lanes, axis=1).astype("<i2").tobytes()
    skip = from_byte - first * frame
    return Wav(head + body[skip : skip + to_byte - from_byte], start, stop, total)


def wav_size(conn: sqlite3.Connection, call: int, side: str = "both") -> int:
    """Bytes of the whole WAV; 0 where no sound was recorded."""
    samples = _Sound(conn, call).samples
    return HEADER + 2 * len(_sides(side)) * samples if samples else 0


def peaks(conn: sqlite3.Connection, call: int, side: str, bins: int) -> dict[str, Any]:
    """{"ms", "peaks"}: how loud (0-1) each of `bins` equal stretches of the whole call was; no sound is decoded."""
    bins = max(1, min(bins, 20_000))
    sound = _Sound(conn, call)
    ms = sound.samples * 1e3 / sound.rate if sound.rate else 0.0
    out = np.zeros(bins)
    if not ms:
        return {"ms": 0.0, "peaks": []}
    found: dict[int, NDArray[np.float64]] = {}
    for one in _sides(side):
        query = "SELECT seq, pieces FROM recordings WHERE call = ? AND side = ? AND kind = 'audio'"
        for seq, pieces in conn.execute(query, (call, one)):
            found[seq] = np.frombuffer(index_of(pieces).peaks, np.uint8) / 255
        for run in sound.lanes[one]:
            _draw(out, run, found[run.seq], bins / ms)
    return {"ms": round(ms, 1), "peaks": [round(value, 3) for value in out.tolist()]}


def _draw(out: NDArray[np.float64], run: Run, loud: NDArray[np.float64], per_ms: float) -> None:
    """A run's buckets, each over the bins that it reaches into."""
    bucket = max(1, run.rate * BUCKET_MS // 1000)
    first, last = run.skip // bucket, min(len(loud), -(-(run.skip + run.count) // bucket))
    at = run.start + (np.arange(first, last) * bucket - run.skip) * 1e3 / run.rate
    begin = np.clip(at * per_ms, 0, len(out) - 1).astype(int)
    end = np.clip((at + BUCKET_MS - 1e-3) * per_ms, 0, len(out) - 1).astype(int)
    for step in range(int((end - begin).max(initial=0)) + 1):
        np.maximum.at(out, np.minimum(begin + step, end), loud[first:last])


def _sides(side: str) -> tuple[int, ...]:
    known = {"caller": (CALLER,), "reply": (REPLY,), "both": (CALLER, REPLY)}
    if side not in known:
        raise InvalidValue(f"side is {side[:40]!r}", mend="write caller, reply or both")
    return known[side]


class _Sound:
    """A call's sound: both lanes, and the WAV's samples a second and length, the same for each side, so that they lie
    under one another."""

    def __init__(self, conn: sqlite3.Connection, call: int) -> None:
        query = "SELECT max(rate) FROM recordings WHERE call = ? AND kind = 'audio'"
        self.rate: int = min(conn.execute(query, (call,)).fetchone()[0] or 0, _MOST_RATE)
        self.lanes = {side: lane(conn, call, side).runs if self.rate else [] for side in (CALLER, REPLY)}
        end = max((run.end for runs in self.lanes.values() for run in runs), default=0.0)
        self.samples = math.ceil(end * self.rate / 1e3)
        self._chunk = lru_cache(maxsize=8)(partial(_chunk, conn, call))

    def source(self, run: Run) -> NDArray[np.int16]:
        """A run's own samples."""
        return self._chunk(run.seq)[run.skip : run.skip + run.count]

    def rendered(self, side: int, first: int, last: int) -> NDArray[np.int16]:
        """Samples `first` to `last` of a side, silence where nothing played."""
        out = np.zeros(last - first, np.int32)
        placed = _placed(self.lanes[side], self.rate)
        for number, one in enumerate(placed):
            if one.last <= first or one.first >= last:
                continue
            same = one.run.rate == self.rate
            pcm: NDArray[Any] = self.source(one.run) if same else _resampled(placed, number, self.rate, self.source)
            begin, end = max(one.first, first), min(one.last, last)
            out[begin - first : end - first] += pcm[begin - one.first : end - one.first].astype(np.int32)
        clipped: NDArray[np.int16] = np.clip(out, -32768, 32767).astype(np.int16)
        return clipped


def _chunk(conn: sqlite3.Connection, call: int, seq: int) -> NDArray[np.int16]:
    row = conn.execute("SELECT data FROM recordings WHERE call = ? AND seq = ?", (call, seq)).fetchone()
    if row is None:
        raise NotFound("the recording is gone", mend="it was deleted while it was read")
    return samples_of(row[0])


def _placed(runs: list[Run], rate: int) -> list[_Placed]:
    """Runs that follow each other without a gap (a string) do so to the sample."""
    made: list[_Placed] = []
    string = before = 0
    for run in runs:
        last = made[-1].run if made else None
        if last is None or run.start != last.end or run.rate != last.rate:
            string, before = math.floor(run.start * rate / 1e3 + 0.5), 0
        first = string + before * rate // run.rate
        made.append(_Placed(run, first, string + (before + run.count) * rate // run.rate, before))
        before += run.count
    return made


def _resampled(placed: list[_Placed], number: int, rate: int, source: Any) -> NDArray[np.float64]:
    """A run at another rate, made with some of its string before and after it."""
    one = placed[number]
    parts, had = [source(one.run)], 0
    if one.before:
        had = min(one.before, _AROUND, placed[number - 1].run.count)
        step = one.run.rate // math.gcd(one.run.rate, rate)
        had -= (had - one.before) % step  # the cut lies where samples of both rates meet
        had = max(had, 0)
        parts.insert(0, source(placed[number - 1].run)[-had:] if had else parts[0][:0])
    if number + 1 < len(placed) and placed[number + 1].before:
        parts.append(source(placed[number + 1].run)[:_AROUND])
    whole = np.concatenate(parts).astype(np.float32)
    out = np.asarray(soxr.resample(whole, one.run.rate, rate, quality="HQ"), np.float64)
    begin = one.before * rate // one.run.rate - math.floor((one.before - had) * rate / one.run.rate)
    out = np.rint(out[begin : begin + one.last - one.first])
    return np.pad(out, (0, one.last - one.first - len(out)))


def _header(rate: int, channels: int, size: int) -> bytes:
    frame = 2 * channels
    head = struct.pack(
        "<4sI4s4sIHHIIHH", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, channels, rate, rate * frame, frame, 16
    )
    return head + struct.pack("<4sI", b"data", size)
