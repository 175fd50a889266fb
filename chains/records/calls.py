"""The list of calls: filtered, searched and paged in SQL, one row a call."""

from __future__ import annotations

import base64
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from chains.errors import InvalidValue
from chains.records.lookup import json_list
from chains.records.ranges import Range

COLUMNS = (
    "id", "chain", "version", "started_ms", "ms", "outcome", "reason", "method", "turns", "interrupted", "dropped",
    "errors", "spans", "slowest_ms", "recorded", "live",
)  # fmt: skip
STATES = ("slow", "failed", "interrupted", "dropped", "live", "recorded")
SORTS = {"started": "c.started", "slowest": "c.slowest_ms"}
LIMIT = 1_000
COUNTED = 1_000  # calls up to which those that were found by their spans are counted
_CHAIN = "coalesce(iif(s.chain = '', s.service, s.chain), '')"
_ROW = f"""c.call, {_CHAIN}, coalesce(s.version, ''), c.started, iif(c.ended IS NULL, c.latest, c.ended),
  c.outcome, c.reason, c.method, c.turns, c.interrupted, c.dropped, c.errors, c.spans, c.slowest_ms, c.recorded"""
_FROM = "FROM calls c LEFT JOIN sources s ON s.id = c.source"  # a recording may come before any span
_BY_ID = f"SELECT {_ROW} {_FROM} WHERE c.id IN (SELECT value FROM json_each(?)) ORDER BY c.started DESC, c.id DESC"  # noqa: S608


@dataclass(frozen=True, slots=True)
class CallFilter:
    """Which calls. Empty or None: any. `state` is one of STATES; `slow` is the slowest 5 % of those that the rest of
    the filter leaves, or all from `min_ms` on. `q` is looked for in ids, methods, reasons, tenants, hops, replicas and,
    of recorded calls, in what was said. Raises InvalidValue.
    """

    q: str = ""
    chain: str = ""
    app: str = ""
    version: str = ""
    hop: str = ""
    replica: str = ""
    turn: int | None = None
    state: str = ""
    min_ms: float | None = None
    range: Range = field(default_factory=Range)

    def __post_init__(self) -> None:
        if self.state and self.state not in STATES:
            raise InvalidValue(f"state is {self.state[:40]!r}", mend=f"choose one of {', '.join(STATES)}")
        if self.turn is not None and self.turn < 0:
            raise InvalidValue(f"turn is {self.turn}", mend="count turns from 1")
        if len(self.q) > 200:
            raise InvalidValue(f"q has {len(self.q)} characters", mend="search for 200 at most")


@dataclass(slots=True)
class Where:
    """Conditions of SQL with their parameters; texts of users are parameters, never part of the statement."""

    conditions: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def add(self, condition: str, *values: Any) -> None:
        self.conditions.append(condition)
        self.values.extend(values)

    def __str__(self) -> str:
        return "WHERE " + " AND ".join(self.conditions) if self.conditions else ""


def where(connection: sqlite3.Connection, wanted: CallFilter) -> Where:
    """The filter over `calls c` joined to `sources s`."""
    out = Where()
    if wanted.range.start is not None:
        out.add("c.started >= ?", wanted.range.start_ns)
    if wanted.range.end is not None:
        out.add("c.started < ?", wanted.range.end_ns)
    for column, value in (("app", wanted.app), ("version", wanted.version)):
        if value:
            out.add(f"s.{column} = ?", value)
    if wanted.chain:
        out.add(f"{_CHAIN} = ?", wanted.chain)
    if wanted.turn is not None:
        out.add("c.turns >= ?", wanted.turn)
    if wanted.hop or wanted.replica:
        _add_span(connection, out, wanted)
    if wanted.q:
        _add_text(connection, out, wanted.q)
    _add_state(connection, out, wanted)
    return out


_LISTED = "IN (SELECT value FROM json_each(?))"
_SAID = """(c.recorded AND EXISTS (SELECT 1 FROM recordings r WHERE r.call = c.id AND r.kind = 'text'
  AND CAST(r.data AS TEXT) LIKE ? ESCAPE '\\'))"""


def _add_span(connection: sqlite3.Connection, out: Where, wanted: CallFilter) -> None:
    """A hop by its name or by its node alone; a replica, where both are given, of that very hop."""
    conditions, values = ["p.call = c.id"], []
    if wanted.hop:
        conditions.append(f"p.name {_LISTED}")
        values.append(_names(connection, wanted.hop, f"{_escaped(wanted.hop)}.%"))
    if wanted.replica:
        conditions.append(f"p.replica {_LISTED}")
        values.append(_names(connection, wanted.replica))
    out.add(f"EXISTS (SELECT 1 FROM spans p WHERE {' AND '.join(conditions)})", *values)  # noqa: S608


def _add_text(connection: sqlite3.Connection, out: Where, text: str) -> None:
    like = f"%{_escaped(text)}%"
    tests = [f"{column} LIKE ? ESCAPE '\\'" for column in ("c.call", "c.method", "c.reason", "c.tenant")]
    values: list[Any] = [like] * len(tests)
    names = _names(connection, text, like)
    if names != "[]":
        tests.append(f"EXISTS (SELECT 1 FROM spans p WHERE p.call = c.id AND p.name {_LISTED})")  # noqa: S608
        tests.append(f"EXISTS (SELECT 1 FROM spans p WHERE p.call = c.id AND p.replica {_LISTED})")  # noqa: S608
        values.extend([names, names])
    out.add(f"({' OR '.join([*tests, _SAID])})", *values, like)


def _add_state(connection: sqlite3.Connection, out: Where, wanted: CallFilter) -> None:
    if wanted.state == "slow" and wanted.min_ms is None:
        out.add("c.slowest_ms >= ?", _p95(connection, out))
    elif wanted.min_ms is not None:
        out.add("c.slowest_ms >= ?", wanted.min_ms)
    tests = {
        "failed": "(c.outcome IN ('error', 'lost') OR c.errors > 0)",
        "interrupted": "c.interrupted > 0",
        "dropped": "c.dropped > 0",
        "live": "c.outcome = 'live'",
        "recorded": "c.recorded",
    }
    if wanted.state in tests:
        out.add(tests[wanted.state])


def _p95(connection: sqlite3.Connection, out: Where) -> float:
    count = connection.execute(f"SELECT count(*) {_FROM} {out}", out.values).fetchone()[0]
    row = connection.execute(
        f"SELECT c.slowest_ms {_FROM} {out} ORDER BY c.slowest_ms LIMIT 1 OFFSET ?",
        [*out.values, int(count * 0.95)],
    ).fetchone()
    return float(row[0]) if row else 0.0


def _names(connection: sqlite3.Connection, text: str, like: str = "") -> str:
    """The numbers of the text and of up to 500 that are like the pattern, as a list for one parameter."""
    found = connection.execute(
        "SELECT id FROM names WHERE id > 0 AND (text = ? OR text LIKE ? ESCAPE '\\') LIMIT 500", (text, like)
    )
    return json_list(row[0] for row in found)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def page(
    connection: sqlite3.Connection, wanted: CallFilter, *, sort: str = "started", limit: int = 200, cursor: str = ""
) -> dict[str, Any]:
    """{"columns", "rows", "next", "total", "more"}: the newest (or the slowest) first. `more`: there are more than
    `total`, which counting would take long. Raises InvalidValue.
    """
    if sort not in SORTS:
        raise InvalidValue(f"sort is {sort[:40]!r}", mend=f"choose one of {', '.join(SORTS)}")
    if not 1 <= limit <= LIMIT:
        raise InvalidValue(f"limit is {limit}", mend=f"ask for 1 to {LIMIT}")
    chosen = where(connection, wanted)
    most = COUNTED if wanted.hop or wanted.replica or wanted.q else -1
    total = connection.execute(
        f"SELECT count(*) FROM (SELECT 1 {_FROM} {chosen} ORDER BY c.started DESC LIMIT ?)",  # noqa: S608
        [*chosen.values, most],
    ).fetchone()[0]
    if cursor:
        key, id = _read_cursor(cursor, sort)
        chosen.add(f"({SORTS[sort]}, c.id) < (?, ?)", key, id)
    found = connection.execute(
        f"SELECT {_ROW}, c.id, {SORTS[sort]} {_FROM} {chosen} ORDER BY {SORTS[sort]} DESC, c.id DESC LIMIT ?",
        [*chosen.values, limit + 1],
    ).fetchall()
    following = _cursor(sort, found[limit - 1]) if len(found) > limit else None
    return {
        "columns": COLUMNS,
        "rows": [row(line) for line in found[:limit]],
        "next": following,
        "total": total,
        "more": total == most,
    }


def row(line: Sequence[Any]) -> list[Any]:
    """A line of the database as it is answered, see COLUMNS."""
    id, chain, version, started, ended, outcome, *middle, slowest, recorded = line[:15]
    ms = round((ended - started) / 1e6, 3)
    live = outcome == "live"
    return [
        id, chain, version, started / 1e6, ms, outcome, *middle, round(slowest, 3), bool(recorded), live,
    ]  # fmt: skip


def rows_by_id(connection: sqlite3.Connection, ids: Iterable[int]) -> list[list[Any]]:
    """The rows of calls by their numbers, the newest first."""
    found = connection.execute(_BY_ID, (json_list(ids),))
    return [row(line) for line in found]


def changed(
    connection: sqlite3.Connection, since_ns: int, *, recent_ns: int = 0, newer: int = 0, among: Iterable[int] = ()
) -> list[tuple[int, int, bool]]:
    """(number, seen, live) of calls of which something arrived after `since_ns`, the newest first: of those begun since
    `recent_ns`, those numbered above `newer`, those that are live, and `among`.
    """
    found = connection.execute(
        """SELECT id, seen, outcome = 'live' FROM calls WHERE seen > :since AND (
          started >= :recent OR id > :newer OR outcome = 'live' OR id IN (SELECT value FROM json_each(:among)))
          ORDER BY started DESC, id DESC""",
        {"since": since_ns, "recent": recent_ns, "newer": newer, "among": json_list(among)},
    )
    return [(id, seen, bool(live)) for id, seen, live in found]


def _cursor(sort: str, line: Sequence[Any]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([sort, line[-1], line[-2]])).decode().rstrip("=")


def _read_cursor(cursor: str, sort: str) -> tuple[float, int]:
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        of, key, id = msgspec.json.decode(raw, type=tuple[str, int | float, int])
    except (ValueError, msgspec.MsgspecError):
        raise InvalidValue(
            "the cursor is none of this list", mend="take `next` of the answer before, as it is"
        ) from None
    if of != sort:
        raise InvalidValue(f"the cursor is of a list sorted by {of[:20]}", mend="begin without a cursor")
    return key, id


def strip(connection: sqlite3.Connection, wanted: CallFilter, bins: int = 96) -> dict[str, Any]:
    """{"from", "to", "bins": [[from_ms, calls, p50_ms, max_ms, failed], ..]} over time; empty bins are left out."""
    if not 1 <= bins <= 1_000:
        raise InvalidValue(f"bins is {bins}", mend="ask for 1 to 1000")
    chosen = where(connection, wanted)
    first, last = connection.execute(
        f"SELECT min(c.started), max(c.started) {_FROM} {chosen}", chosen.values
    ).fetchone()
    if first is None:
        return {"from": wanted.range.start, "to": wanted.range.end, "bins": []}
    start = first if wanted.range.start is None else wanted.range.start_ns
    end = max(last + 1 if wanted.range.end is None else wanted.range.end_ns, start + bins)
    width = -(-(end - start) // bins)
    found = connection.execute(
        f"SELECT (c.started - ?) / ? AS bin, c.slowest_ms, c.outcome IN ('error', 'lost') OR c.errors > 0 "
        f"{_FROM} {chosen} ORDER BY bin, c.slowest_ms",
        [start, width, *chosen.values],
    )
    grouped: dict[int, list[tuple[float, int]]] = {}
    for bin, slowest, failed in found:
        grouped.setdefault(bin, []).append((slowest, failed))
    rows = [
        [
            (start + bin * width) / 1e6,
            len(of),
            round(of[len(of) // 2][0], 3),
            round(of[-1][0], 3),
            sum(f for _, f in of),
        ]
        for bin, of in grouped.items()
    ]
    return {"from": start / 1e6, "to": end / 1e6, "bins": rows}
