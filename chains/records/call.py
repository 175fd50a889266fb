"""One call in full: its spans as columns, its turns, whose clocks are off, and whether its sums hold."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import numpy as np

from chains.records import offsets, paths, recordings
from chains.records.lookup import Found, Line, find, inside, json_list, lines, names_of
from chains.records.packing import PARTS, Rest, hex_id, unpack, unpack_path
from chains.records.schema import CALL, FOREIGN, HOP, KINDS, TURN
from chains.records.waterfall import Bar, Stretch, by_children, sums, tree

COLUMNS = (
    "row", "id", "parent", "name", "kind", "turn", "replica", "source", "start", "ms", "status", "parts", "segments",
    "on_path", "attempts", "items_in", "items_out", "first_ms", "error",
)  # fmt: skip
DETAILED = 20_000  # spans up to which what each tells of itself is read


def detail(connection: sqlite3.Connection, id: str, after: int = 0, drawn: int = DETAILED) -> dict[str, Any]:
    """Everything of a call but its spans' attributes; with `after`, of its spans those alone whose rows came later.

    In a call of turns with more than `drawn` spans the hops' segments are None. Raises NotFound.
    """
    call = find(connection, id)
    view = _View(connection, call, after, drawn)
    answer = {
        "call": call.fields,
        "turns": view.turns,
        "columns": COLUMNS,
        "spans": view.rows(),
        "sources": view.sources(),
        "checks": view.checks(),
        "transcript": [],
        "audio": {"caller": False, "reply": False, "ms": 0.0},
        "last": max((line.row for line in view.lines), default=after),
    }
    if call.fields["recorded"]:
        answer["transcript"] = recordings.transcript(connection, call.row)
        answer["audio"] = recordings.summary(connection, call.row)
    if after:
        answer["paths"] = [[row, round(ms, 3)] for row, ms in view.on_path.items() if row <= after]
    return answer


def turns(connection: sqlite3.Connection, id: str) -> list[dict[str, Any]]:
    """The turns as `detail` has them; of a call that tells of its turns no other span is read. Raises NotFound."""
    return _told(connection, find(connection, id), {}) or detail(connection, id)["turns"]


_SOURCES = "SELECT DISTINCT source FROM spans WHERE call = ?"
_TURNS = "SELECT number, started, ended, latency_ms, state, reason, path FROM turns WHERE call = ? ORDER BY number"
_HOPS = "SELECT parts, duration FROM spans WHERE call = ? AND kind = ? AND parts IS NOT NULL"


class _View:
    """A call's spans, placed on one clock, with what they tell of themselves."""

    def __init__(self, connection: sqlite3.Connection, call: Found, after: int, drawn: int) -> None:
        self._connection, self._call, self._after = connection, call, after
        rich = call.fields["spans"] <= DETAILED
        self.lines = lines(connection, call.row, after, rich)
        self._sources = {line.source for line in self.lines}
        if after:
            self._sources = {row[0] for row in connection.execute(_SOURCES, (call.row,))}
        if after and (len(self._sources) > 1 or any(line.kind == TURN for line in self.lines)):
            # a path may run through what was sent before, and clocks are estimated from all there is
            self.lines = lines(connection, call.row, 0, rich)
        whole = self.lines if not after or len(self.lines) == call.fields["spans"] else ()
        self._rests = self._read_rests(rich)
        self._shifts = _shifts(self.lines)
        self.turns = self._turns()
        self._inside = self._insides() if rich and (not self.turns or call.fields["spans"] <= drawn) else {}
        self.on_path: dict[int, float] = {}
        foreign = {line.row for line in self.lines if line.kind == FOREIGN}
        if rich or not self.turns:
            bars = [self._bar(line) for line in self.lines if line.kind in (HOP, FOREIGN)]
            self._draw(bars, foreign if rich else set(), bool(whole) and not self.turns and not call.live)

    def _draw(self, bars: list[Bar], foreign: set[int], alone: bool) -> None:
        """The insides of spans of others, and what lies on a path: on those of turns, or of the call's `alone`."""
        roots = tree(bars) if alone or foreign else []
        self._inside |= {bar.row: by_children(bar) for bar in bars if bar.row in foreign}
        self.on_path = paths.matched(self.turns, bars)
        if alone and roots:
            told = {row: rest.waits for row, rest in self._rests.items()}
            turn, self.on_path = paths.computed(roots[0], self._inside, paths.waited(bars, told), self._whole())
            self.turns = [turn]

    def _whole(self) -> tuple[float, float] | None:
        """From when to when the call itself was open, where it tells."""
        for line in self.lines:
            if line.kind == CALL:
                start = self._start(line)
                return start, start + line.duration / 1e6
        return None

    def _read_rests(self, rich: bool) -> dict[int, Rest]:
        if rich:
            return {line.row: unpack(line.rest, line.name) for line in self.lines if line.rest}
        found = self._connection.execute(
            "SELECT id, rest FROM spans WHERE call = ? AND kind = ?", (self._call.row, TURN)
        )
        return {row: unpack(rest) for row, rest in found}

    def _insides(self) -> dict[int, list[Stretch]]:
        hops = [line for line in self.lines if line.kind == HOP]
        waited = {wait.on for line in hops if (rest := self._rests.get(line.row)) for wait in rest.waits}
        names = {line.span: line.name for line in self.lines}
        names |= names_of(self._connection, self._call.row, waited - names.keys())
        return {line.row: inside(line, self._rests.get(line.row), names) for line in hops}

    def _start(self, line: Line) -> float:
        return (line.start - self._call.started) / 1e6 + self._shifts.get(line.source, 0.0)

    def _bar(self, line: Line) -> Bar:
        start, ms = self._start(line), line.duration / 1e6
        return Bar(line.row, line.span, line.parent, line.name, line.replica, line.turn, start, ms)

    def _turns(self) -> list[dict[str, Any]]:
        own = {line.turn: self._rests[line.row] for line in self.lines if line.kind == TURN and line.row in self._rests}
        return _told(self._connection, self._call, own)

    def rows(self) -> list[tuple[Any, ...]]:
        """The new spans, see COLUMNS."""
        new = [line for line in self.lines if line.row > self._after]
        told = iter(_rounded([line.parts for line in new if line.parts]))
        return [self._row(line, next(told) if line.parts else None) for line in new]

    def _row(self, line: Line, parts: list[float] | None) -> tuple[Any, ...]:
        told = self._rests[line.row].attributes if line.row in self._rests else {}
        stretches = self._inside.get(line.row)
        if parts is None and stretches is not None:
            parts = [round(ms, 3) for ms in sums(stretches)]
        return (
            line.row, hex_id(line.span), hex_id(line.parent), line.name, KINDS[line.kind], line.turn, line.replica,
            line.source, round(self._start(line), 3), round(line.duration / 1e6, 3), line.status, parts,
            _drawn(stretches), round(self.on_path.get(line.row, 0.0), 3), told.get("chains.attempts", 1),
            told.get("chains.items_in", 0), told.get("chains.items_out", 0), told.get("chains.first_item_ms"),
            told.get("error.type", ""),
        )  # fmt: skip

    def sources(self) -> list[dict[str, Any]]:
        found = self._connection.execute(
            "SELECT id, service, version, instance FROM sources WHERE id IN (SELECT value FROM json_each(?))",
            (json_list(self._sources),),
        )
        return [
            {
                "id": id, "service": service, "version": version, "instance": instance,
                "offset_ms": round(self._shifts.get(id, 0.0), 3), "estimated": bool(self._shifts.get(id, 0.0)),
            }
            for id, service, version, instance in found
        ]  # fmt: skip

    def checks(self) -> dict[str, Any]:
        """How far the parts are from their hop's time and the paths from their turn's latency, at worst."""
        if self._after:
            found = self._connection.execute(_HOPS, (self._call.row, HOP)).fetchall()
        else:
            found = [(line.parts, line.duration) for line in self.lines if line.parts]
        sums_ = np.frombuffer(b"".join(parts for parts, _ in found), dtype="<f4").reshape(-1, len(PARTS)).sum(axis=1)
        off = np.abs(sums_ - np.array([duration for _, duration in found], dtype=np.float64) / 1e6)
        told = [turn for turn in self.turns if turn["latency_ms"] is not None and turn["path"]]
        turns = [abs(sum(step[5] for step in turn["path"]) - turn["latency_ms"]) for turn in told]
        return {
            "hops": len(found), "worst_hop_ms": round(float(off.max(initial=0.0)), 3),
            "turns": len(turns), "worst_turn_ms": round(max(turns, default=0.0), 3),
        }  # fmt: skip


def _rounded(parts: Sequence[bytes]) -> list[list[float]]:
    """Each hop's parts in ms, all at once: calls may have 100,000."""
    values = np.frombuffer(b"".join(parts), dtype="<f4").reshape(-1, len(PARTS)).astype(np.float64)
    found: list[list[float]] = values.round(3).tolist()
    return found


def _drawn(stretches: Sequence[Stretch] | None) -> list[Stretch] | None:
    if stretches is None:
        return None
    return [(part, round(start, 3), round(ms, 3), label) for part, start, ms, label in stretches]


def _shifts(everything: Sequence[Line]) -> dict[int, float]:
    """Ms to add to each source's times; the processes of chains are right, their hops were placed by their caller."""
    if len({line.source for line in everything}) < 2:
        return {}
    placed = [offsets.Placed(s.span, s.parent, s.source, s.start / 1e6, s.duration / 1e6) for s in everything]
    return offsets.offsets(placed, dict.fromkeys(line.source for line in everything if line.kind != FOREIGN))


def _told(connection: sqlite3.Connection, call: Found, rests: dict[int, Rest]) -> list[dict[str, Any]]:
    """The call's turns in their order; what `rests` lacks, by number, is read."""
    found = connection.execute(_TURNS, (call.row,)).fetchall()
    if {row[0] for row in found} - rests.keys():  # spans that were sent before, or not looked at
        read = connection.execute("SELECT turn, rest FROM spans WHERE call = ? AND kind = ?", (call.row, TURN))
        rests = rests | {turn: unpack(rest) for turn, rest in read}
    return [_turn(row, rests.get(row[0], Rest({}, [], [], [])), call.started) for row in found]


def _turn(row: Sequence[Any], rest: Rest, origin: int) -> dict[str, Any]:
    number, started, ended, latency, state, reason, path = row
    start = (started - origin) / 1e6
    told = rest.attributes
    first = start + float(told.get("chains.latency_start_ms", 0.0))
    steps = unpack_path(path)
    return {
        "number": number,
        "start": round(start, 3),
        "end": round((ended - origin) / 1e6, 3) if ended else None,
        "latency_ms": latency if latency or steps else None,
        "latency_start": round(first, 3),
        "state": state,
        "reason": reason,
        "spoken": bool(told.get("chains.spoken", False)),
        "played_ms": told.get("chains.played_ms", 0.0),
        "marks": {event.name: round(start + event.at, 3) for event in rest.events},
        "path": [(s.hop, s.part, s.name, s.replica, round(first + s.start, 3), s.ms) for s in steps],
    }
