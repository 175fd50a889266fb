"""What a caller put into a recorded call, and which reply each piece of it came after: all that a replay needs."""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from chains import protocol
from chains.errors import NotFound, Unavailable
from chains.messages import Audio
from chains.records.heard import Run, lane
from chains.records.recorded import CALLER, REPLY
from chains.records.recordings import incomplete, opening
from chains.records.sound import index_of, samples_of

PAUSE_MS = 700.0
"""A reply without turns is over when nothing has been heard of it for so long."""
_FRAME_MS, _LONGEST_MS = 20, 100


@dataclass(frozen=True, slots=True)
class Input:
    """Something that the caller sent `at` ms after the call was opened. `kind` and `value` as in Recorded."""

    at: float
    stream: int
    kind: str
    value: Any

    @property
    def ms(self) -> float:
        return self.value.seconds * 1e3 if isinstance(self.value, Audio) else 0.0


@dataclass
class Reply:
    """One answer as it was heard: `heard` are stretches (start, end) in ms, `whole` that nothing of it was cut off."""

    turn: int
    heard: list[tuple[float, float]] = field(default_factory=list)
    whole: bool = True

    @property
    def start(self) -> float:
        return self.heard[0][0]

    @property
    def end(self) -> float:
        return self.heard[-1][1]

    def until(self, at: float) -> float:
        """Milliseconds of it that had been heard at a moment."""
        return sum(max(0.0, min(end, at) - start) for start, end in self.heard)


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded call: how it was opened, what the caller sent, what was answered. `ended` is its length in ms,
    `left` that the caller hung up, `reported` that the client told what it had played."""

    call: str
    method: str
    arguments: dict[str, Any]
    streams: list[str]
    rate: int | None
    encoding: protocol.Encoding
    inputs: list[Input]
    replies: list[Reply]
    ended: float
    left: bool
    reported: bool

    def answered(self, at: float) -> tuple[int, float] | None:
        """Which reply was the last to begin before a moment, and how much of it had been heard then (inf: all)."""
        number = bisect_right([reply.start for reply in self.replies], at) - 1
        if number < 0:
            return None
        reply = self.replies[number]
        return number, float("inf") if at >= reply.end and reply.whole else reply.until(at)


def recorded_input(conn: sqlite3.Connection, call: int) -> Recording:
    """The recording of a call (its rowid). Raises NotFound for one that was not recorded, Unavailable for one that
    is not whole."""
    id, state = conn.execute("SELECT call, recorded FROM calls WHERE id = ?", (call,)).fetchone()
    if not state:
        raise NotFound(
            f"call {id} was not recorded", mend="record calls from now on: chains run FILE --record (docs/recording.md)"
        )
    if why := incomplete(conn, call):
        raise Unavailable(f"the recording of call {id} is not whole: {why}", mend="replay another call")
    about = opening(conn, call)
    events = _events(conn, call)
    sound = about.get("audio") or {}
    inputs = [*_plain_inputs(conn, call), *_sound(conn, call)]
    inputs.sort(key=lambda one: one.at)  # keeps what came together in its order: sound before its end
    return Recording(
        id,
        about["method"],
        about.get("arguments", {}),
        about.get("streams", []),
        sound.get("rate"),
        sound.get("encoding", "pcm16"),
        inputs,
        _replies(conn, call),
        max((at for at, _ in events), default=0.0),
        any(what == "hang-up" for _, what in events),
        any(what == "played" for _, what in events),
    )


def _events(conn: sqlite3.Connection, call: int) -> list[tuple[float, str]]:
    query = "SELECT at_ms, data FROM recordings WHERE call = ? AND kind = 'event' ORDER BY seq"
    return [(at, msgspec.json.decode(data)["event"]) for at, data in conn.execute(query, (call,))]


def _sound(conn: sqlite3.Connection, call: int) -> list[Input]:
    """The caller's sound in the frames in which it came; what came in one long piece in frames of 20 ms."""
    query = (
        "SELECT stream, at_ms, turn, rate, pieces, data FROM recordings"
        " WHERE call = ? AND side = ? AND kind = 'audio' ORDER BY seq"
    )
    made = []
    for stream, at, turn, rate, pieces, data in conn.execute(query, (call, CALLER)):
        pcm, skip = samples_of(data), 0
        for after, count in index_of(pieces).pieces():
            step = count if count * 1000 <= rate * _LONGEST_MS else rate * _FRAME_MS // 1000
            for begin in range(skip, skip + count, step):
                part = pcm[begin : min(begin + step, skip + count)]
                made.append(Input(at + after, stream, "audio", Audio(np.ascontiguousarray(part), rate, turn)))
            skip += count
    return made


def _plain_inputs(conn: sqlite3.Connection, call: int) -> list[Input]:
    query = (
        "SELECT at_ms, stream, kind, data FROM recordings WHERE call = ? AND side = ? AND kind != 'audio' ORDER BY seq"
    )
    made = []
    for at, stream, kind, data in conn.execute(query, (call, CALLER)):
        value: Any
        if kind == "tensor":
            value = protocol.decode_binary(data)[1]
        elif kind == "end":
            value = None
        else:
            value = msgspec.json.decode(data)
            if kind == "text" and value.pop("spoken", False):
                continue  # what is said in the sound beside it
            if kind in ("text", "control"):
                value = protocol.from_kind(kind, value)
            elif kind == "event" and value["event"] not in ("hold", "resume", "cancel"):
                continue
        made.append(Input(at + 1e-3 * (kind == "end"), stream, kind, value))
    return made


def _replies(conn: sqlite3.Connection, call: int) -> list[Reply]:
    """The answers in the order in which they began; of a turn without sound the times of its items."""
    reply = lane(conn, call, REPLY)
    cut = {turn for turn, _, _ in reply.unheard}
    made: list[Reply] = []
    for run in sorted(reply.runs, key=lambda run: run.start):
        last = made[-1] if made else None
        if last is None or _another(last, run):
            last = Reply(run.turn, whole=run.turn not in cut)
            made.append(last)
        last.heard.append((run.start, run.end))
    sounding = {one.turn for one in made}
    query = (
        "SELECT turn, min(at_ms), max(at_ms) FROM recordings"
        " WHERE call = ? AND side = ? AND turn > 0 AND kind IN ('text', 'control', 'value', 'tensor') GROUP BY turn"
    )
    for turn, first, at in conn.execute(query, (call, REPLY)):
        if turn not in sounding:
            made.append(Reply(turn, [(first, at)]))
    return sorted(made, key=lambda one: one.start)


def _another(last: Reply, run: Run) -> bool:
    return run.turn != last.turn if run.turn or last.turn else run.start - last.end > PAUSE_MS
