"""A recorded call on the time axis, as the caller heard it: what played when, and what an interruption cut off.

Times are milliseconds since the call was opened. Each piece of a reply plays after the one before, never earlier than
it was sent; what the client said that it had played moves it.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from chains.records.recorded import CALLER, REPLY
from chains.records.sound import Index, index_of

_JITTER_MS = (60.0, 5.0)  # so late a piece may be without a gap: a caller's line shakes, a reply's times are rounded
_LEAST_LAG_MS, _MOST_LAG_MS = 20.0, 2_000.0


@dataclass(frozen=True, slots=True)
class Run:
    """Samples of one chunk that play without a gap: from `start` ms on, `count` samples after the first `skip`."""

    start: float
    seq: int
    skip: int
    count: int
    rate: int
    turn: int

    @property
    def end(self) -> float:
        return self.start + self.count * 1e3 / self.rate

    def until(self, end: float) -> Run:
        """What of it plays before `end`."""
        return replace(self, count=max(0, min(self.count, round((end - self.start) * self.rate / 1e3))))

    def after(self, at: float) -> Run:
        """What of it plays from `at` on."""
        gone = max(0, min(self.count, round((at - self.start) * self.rate / 1e3)))
        return replace(self, start=self.start + gone * 1e3 / self.rate, skip=self.skip + gone, count=self.count - gone)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A row of sound without its samples."""

    seq: int
    at: float
    turn: int
    rate: int
    index: Index

    @property
    def count(self) -> int:
        return sum(self.index.samples)


@dataclass
class Lane:
    """One side of a call: `runs` in the order in which they came, `unheard` (turn, start, ms) of what was cut off."""

    jitter: float
    runs: list[Run] = field(default_factory=list)
    unheard: list[tuple[int, float, float]] = field(default_factory=list)
    end: float = 0.0
    held: float | None = None

    def add(self, chunk: Chunk, lag: float) -> None:
        """Place a whole chunk: at once where its pieces follow each other without a gap, else piece by piece."""
        start = self._start(chunk.at + lag)
        if chunk.at + lag + chunk.index.late_ms <= start + self.jitter:
            self._put(Run(start, chunk.seq, 0, chunk.count, chunk.rate, chunk.turn))
            return
        skip = 0
        for after, count in chunk.index.pieces():
            self.piece(chunk, after, skip, count, lag)
            skip += count

    def piece(self, chunk: Chunk, after: float, skip: int, count: int, lag: float) -> None:
        self._put(Run(self._start(chunk.at + after + lag), chunk.seq, skip, count, chunk.rate, chunk.turn))

    def _start(self, at: float) -> float:
        return self.end if self.runs and at <= self.end + self.jitter else max(at, self.end)

    def _put(self, run: Run) -> None:
        last = self.runs[-1] if self.runs else None
        if last and last.seq == run.seq and last.skip + last.count == run.skip and run.start == self.end:
            run = replace(last, count=last.count + run.count)
            self.runs.pop()
        self.runs.append(run)
        self.end = run.end

    def clear(self, turn: int, at: float) -> None:
        """What of the turn would play after `at` never did."""
        at = at if self.held is None else min(at, self.held)
        kept = []
        for run in self.runs:
            if run.turn == turn and run.end > at:
                cut = run.after(at)
                if cut.count:
                    self.unheard.append((turn, cut.start, cut.end - cut.start))
                run = run.until(at)
            if run.count:
                kept.append(run)
        self.runs, self.held = kept, None
        self.end = max((run.end for run in kept), default=0.0)

    def hold(self, at: float) -> None:
        if self.held is None:
            self.held = at

    def resume(self, at: float) -> None:
        if self.held is None:
            return
        since, self.held = self.held, None
        moved = []
        for run in self.runs:
            before, rest = run.until(since), run.after(since)
            moved += [part for part in (before, replace(rest, start=rest.start + at - since)) if part.count]
        self.runs = moved
        self.end = max((run.end for run in moved), default=0.0)


@dataclass(frozen=True, slots=True)
class Event:
    at: float
    what: str
    turn: int
    ms: float


def lane(conn: sqlite3.Connection, call: int, side: int) -> Lane:
    """One side of the call. Several streams of a caller's sound play over each other."""
    chunks = _chunks(conn, call, side)
    if side == CALLER:
        whole = Lane(_JITTER_MS[side])
        for stream in sorted(chunks):
            one = Lane(_JITTER_MS[side])
            for chunk in chunks[stream]:
                one.add(chunk, 0.0)
            whole.runs += one.runs
            whole.end = max(whole.end, one.end)
        return whole
    events = _events(conn, call)
    sent = [chunk for stream in sorted(chunks) for chunk in chunks[stream]]
    reports = [event for event in events if event.what == "played"]
    first = _played(sent, [event for event in events if event.what != "played"], {})
    return _played(sent, events, _lags(first, events)) if reports else first


def _played(chunks: list[Chunk], events: list[Event], lags: dict[int, float]) -> Lane:
    """Pieces and events in the order of their times."""
    moves = [event for event in events if event.what in ("clear", "held", "resumed")]
    times = [event.at for event in moves]
    made = Lane(_JITTER_MS[REPLY])
    steps: list[tuple[float, int, Any]] = [(event.at, 1, event) for event in moves]
    for chunk in chunks:
        last = chunk.at + (chunk.index.after[-1] / 10 if chunk.index.after else 0.0)
        if bisect_left(times, chunk.at) == bisect_right(times, last):
            steps.append((chunk.at, 0, chunk))
            continue
        skip = 0
        for after, count in chunk.index.pieces():
            steps.append((chunk.at + after, 0, (chunk, after, skip, count)))
            skip += count
    steps.sort(key=lambda step: step[:2])
    for at, _, step in steps:
        match step:
            case Chunk():
                made.add(step, lags.get(step.turn, 0.0))
            case Event(what="clear"):
                made.clear(step.turn, _cut(made, step, events, at + lags.get(step.turn, 0.0)))
            case Event(what="held"):
                made.hold(at)
            case Event():
                made.resume(at)
            case (chunk, after, skip, count):
                made.piece(chunk, after, skip, count, lags.get(chunk.turn, 0.0))
    return made


def _cut(lane: Lane, clear: Event, events: list[Event], at: float) -> float:
    """When the turn fell silent: by what the client reported after it was told, else when it was told."""
    reports = [
        event.ms for event in events if event.what == "played" and event.turn == clear.turn and event.at >= clear.at
    ]
    return _moment(lane, clear.turn, max(reports)) if reports else at


def _moment(lane: Lane, turn: int, ms: float) -> float:
    """When so many milliseconds of the turn had played."""
    at = 0.0
    for run in lane.runs:
        if run.turn != turn:
            continue
        length = run.end - run.start
        if ms <= length:
            return run.start + ms
        ms -= length
        at = run.end
    return at


def _lags(lane: Lane, events: list[Event]) -> dict[int, float]:
    """By how much later than it was sent a client says that it plays a turn: the least of what its reports say."""
    lags: dict[int, float] = {}
    silent = {event.turn: event.at for event in reversed(events) if event.what == "clear"}
    whole = dict[int, float]()
    for run in lane.runs:
        whole[run.turn] = whole.get(run.turn, 0.0) + run.end - run.start
    held = {event.turn for event in events if event.what == "held"}
    for event in events:
        if event.what == "played" and 0 < event.ms < whole.get(event.turn, 0.0) and event.turn not in held:
            lag = min(event.at, silent.get(event.turn, event.at)) - _moment(lane, event.turn, event.ms)
            lags[event.turn] = min(lag, lags.get(event.turn, _MOST_LAG_MS))
    return {turn: lag for turn, lag in lags.items() if lag >= _LEAST_LAG_MS}


def _chunks(conn: sqlite3.Connection, call: int, side: int) -> dict[int, list[Chunk]]:
    found: dict[int, list[Chunk]] = {}
    query = (
        "SELECT stream, seq, at_ms, turn, rate, pieces FROM recordings"
        " WHERE call = ? AND side = ? AND kind = 'audio' ORDER BY at_ms, seq"
    )
    for stream, seq, at, turn, rate, pieces in conn.execute(query, (call, side)):
        found.setdefault(stream, []).append(Chunk(seq, at, turn, rate, index_of(pieces)))
    return found


def _events(conn: sqlite3.Connection, call: int) -> list[Event]:
    """What moved the reply's playing: `clear`, `held`, `resumed`, `played`; in order."""
    query = "SELECT at_ms, turn, data FROM recordings WHERE call = ? AND kind = 'event' ORDER BY at_ms, seq"
    found = []
    for at, turn, data in conn.execute(query, (call,)):
        fields = msgspec.json.decode(data)
        what = fields["event"]
        if what == "turn" and fields.get("state") in ("held", "resumed"):
            what = fields["state"]
        if what in ("clear", "held", "resumed", "played"):
            ms = fields.get("ms", 0.0)
            found.append(Event(at, what, turn, float(ms) if isinstance(ms, float) or type(ms) is int else 0.0))
    return found
