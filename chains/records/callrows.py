"""The row of each call, derived from its spans as they come."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chains.records.arrived import Arrived, CallEnd, TurnEnd
from chains.records.names import Sources
from chains.records.schema import CALL, TURN

_COLUMNS = (
    "id, call, trace, source, started, ended, latest, outcome, method, tenant, reason, turns, errors, spans, "
    "slowest_ms, theirs"
)
_BY_CALL = f"SELECT {_COLUMNS} FROM calls WHERE call = ?"  # noqa: S608
_BY_TRACE = f"SELECT {_COLUMNS} FROM calls WHERE trace = ? ORDER BY id LIMIT 1"  # noqa: S608
_NEW = (
    "INSERT INTO calls (call, trace, source, started, latest, theirs, seen) VALUES (?, ?, ?, ?, ?, ?, 0) "
    "ON CONFLICT DO NOTHING RETURNING id"
)
_TAKEN_OVER = (
    "UPDATE calls SET call = ?, source = ?, ended = NULL, outcome = 'live', method = '', slowest_ms = 0, theirs = 0 "
    "WHERE id = ?"
)
_UPDATE = (
    "UPDATE calls SET trace = ?, source = ?, started = ?, ended = ?, latest = ?, seen = ?, outcome = ?, method = ?, "
    "tenant = ?, reason = ?, turns = ?, interrupted = ?, dropped = ?, errors = ?, spans = ?, slowest_ms = ? "
    "WHERE id = ?"
)
_TURN = (
    "INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET started = excluded.started, "
    "ended = excluded.ended, latency_ms = excluded.latency_ms, state = excluded.state, reason = excluded.reason, "
    "path = excluded.path WHERE excluded.ended > ended"
)
_TURNS = (
    "SELECT count(*), coalesce(sum(state = 'interrupted'), 0), coalesce(sum(state = 'dropped'), 0), "
    "coalesce(max(CASE WHEN state != 'dropped' THEN latency_ms END), 0) FROM turns WHERE call = ?"
)
_ROOT = (
    "SELECT names.text, spans.status FROM spans JOIN names ON names.id = spans.name "
    "WHERE call = ? AND parent = 0 ORDER BY start, span LIMIT 1"
)
OPEN = ("live", "lost")


@dataclass(slots=True)
class CallRow:
    """A row of the table calls, while a batch is written."""

    id: int
    call: str
    trace: bytes
    source: int
    started: int
    ended: int | None
    latest: int
    outcome: str
    method: str
    tenant: str
    reason: str
    turns: int
    errors: int
    spans: int
    slowest_ms: float
    theirs: int

    def take(self, connection: sqlite3.Connection, fresh: Sequence[Arrived], now: int) -> None:
        """Take in spans that were not there before, and write the row; inside the caller's transaction."""
        self.spans += len(fresh)
        if self.outcome == "lost":
            self.outcome, self.ended = "live", None
        first = self.started
        for span in fresh:
            self.latest = max(self.latest, span.start + span.duration)
            first = min(first, span.start)
            if span.status == 2 and span.kind != CALL and span.kind != TURN:
                self.errors += 1
        if self.theirs or self.outcome == "live":
            self.started = first
        for span in fresh:
            if span.kind == CALL and isinstance(span.detail, CallEnd):
                self._close(span, span.detail)
            elif span.kind == TURN and isinstance(span.detail, TurnEnd):
                connection.execute(_TURN, (self.id, span.turn, *_turn(span, span.detail)))
        if self.theirs:
            self._follow_root(connection, fresh)
        count, interrupted, dropped, slowest = connection.execute(_TURNS, (self.id,)).fetchone()
        self.turns = max(self.turns, count)
        if count:
            self.slowest_ms = slowest
        elif self.ended is not None:
            self.slowest_ms = (self.ended - self.started) / 1e6
        connection.execute(
            _UPDATE,
            (
                self.trace, self.source, self.started, self.ended, self.latest, now, self.outcome, self.method,
                self.tenant, self.reason, self.turns, interrupted, dropped, self.errors, self.spans, self.slowest_ms,
                self.id,
            ),
        )  # fmt: skip

    def _close(self, span: Arrived, end: CallEnd) -> None:
        self.started, self.ended = span.start, span.start + span.duration
        self.method, self.tenant, self.reason = end.method, end.tenant, end.reason
        self.outcome = end.outcome
        self.turns = max(self.turns, end.turns)

    def _follow_root(self, connection: sqlite3.Connection, fresh: Sequence[Arrived]) -> None:
        """A foreign trace is named and ended by its root; the earliest, where there are several."""
        if any(span.parent == 0 for span in fresh):
            self.method, status = connection.execute(_ROOT, (self.id,)).fetchone()
            self.outcome = "error" if status == 2 else "done"
        if self.outcome != "live":
            self.ended = self.latest


def _turn(span: Arrived, end: TurnEnd) -> tuple[object, ...]:
    return span.start, span.start + span.duration, end.latency_ms, end.state, end.reason, end.path


class CallRows:
    """Finds, or makes, the rows that a batch belongs to."""

    def __init__(self, connection: sqlite3.Connection, sources: Sources) -> None:
        self._connection = connection
        self._sources = sources

    def of(self, spans: Iterable[Arrived]) -> dict[tuple[str, bytes], CallRow]:
        """The row of each (chains.call or "", trace): foreign spans of a trace of ours are in its call."""
        first: dict[tuple[str, bytes], Arrived] = {}
        for span in spans:
            first.setdefault((span.call, span.trace), span)
        found: dict[tuple[str, bytes], CallRow] = {}
        rows: dict[int, CallRow] = {}
        for key, span in sorted(first.items(), key=lambda entry: entry[0][0] == ""):  # ours before foreign
            row = self._ours(span) if span.call else self._foreign(span)
            found[key] = rows.setdefault(row.id, row)
        return found

    def _ours(self, span: Arrived) -> CallRow:
        row = self._read(_BY_CALL, span.call)
        if row is not None and not row.source:  # begun by its recording, which knows no source
            row.source, row.trace = self._sources[span.source], span.trace
        if row is not None and row.trace != span.trace:  # a call's id that was used before
            span_call = f"{span.call}@{span.trace.hex()[:8]}"
            return self._read(_BY_CALL, span_call) or self._new(span_call, span)
        row = row or self._read(_BY_TRACE, span.trace)
        if row is not None and row.theirs:
            self._connection.execute(_TAKEN_OVER, (span.call, self._sources[span.source], row.id))
            return self._read(_BY_CALL, span.call) or row
        return row if row is not None and row.call == span.call else self._new(span.call, span)

    def _foreign(self, span: Arrived) -> CallRow:
        return self._read(_BY_TRACE, span.trace) or self._new(span.trace.hex(), span)

    def _new(self, call: str, span: Arrived) -> CallRow:
        start, end = span.start, span.start + span.duration
        source = self._sources[span.source]
        theirs = 0 if span.call else 1
        made = self._connection.execute(_NEW, (call, span.trace, source, start, end, theirs)).fetchone()
        if made is None:  # somebody gave a call of another trace this id
            return self._new(f"{call}@{span.trace.hex()[:8]}", span)
        return CallRow(made[0], call, span.trace, source, start, None, end, "live", "", "", "", 0, 0, 0, 0.0, theirs)

    def _read(self, query: str, key: str | bytes) -> CallRow | None:
        row = self._connection.execute(query, (key,)).fetchone()
        return CallRow(*row) if row else None
