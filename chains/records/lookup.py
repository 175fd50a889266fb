"""Finding a call and its spans in the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from chains.errors import NotFound
from chains.records.packing import Rest, unpack_parts
from chains.records.waterfall import Hop, Stretch, proportional, segments

_LINES = """SELECT id, span, parent, name, kind, turn, source, replica, start, duration, status, parts, rest
  FROM spans WHERE call = ? AND id > ?"""
_LINES_WITHOUT_REST = _LINES.replace(", rest", ", NULL")


@dataclass(frozen=True, slots=True)
class Found:
    """A call's row and the process that opened it. Times are ns since 1970."""

    row: int
    id: str
    trace: str
    started: int
    ended: int
    live: bool
    fields: Mapping[str, Any]


def find(connection: sqlite3.Connection, id: str) -> Found:
    """The call of this id, or of this trace id, or the only one whose id begins so. Raises NotFound."""
    columns = """c.id, c.call, hex(c.trace), c.started, c.ended, c.latest, c.outcome, c.reason, c.method, c.tenant,
      c.errors, c.recorded, c.spans, coalesce(iif(s.chain = '', s.service, s.chain), ''), coalesce(s.app, ''),
      coalesce(s.version, ''), coalesce(s.instance, '')"""
    select = f"SELECT {columns} FROM calls c LEFT JOIN sources s ON s.id = c.source"  # noqa: S608
    rows = connection.execute(f"{select} WHERE c.call = ?", (id,)).fetchall()
    if not rows and len(id) == 32 and all(letter in "0123456789abcdef" for letter in id):
        rows = connection.execute(f"{select} WHERE c.trace = ? LIMIT 2", (bytes.fromhex(id),)).fetchall()
    if not rows and id:
        rows = connection.execute(
            f"{select} WHERE c.call >= ? AND c.call < ? LIMIT 100", (id, id + "\U0010ffff")
        ).fetchall()
        rows.sort(key=lambda row: len(row[1]))  # "ID-after-HOP" goes with ID
        if any(not row[1].startswith(rows[0][1]) for row in rows):
            raise NotFound(f"several calls begin with {id!r}", mend="give more of the id")
    if not rows:
        raise NotFound(f"there is no call {id[:100]!r} here", mend="look at the list of calls; old ones are removed")
    row, call, trace, started, ended, latest, *told = rows[0]
    outcome, reason, method, tenant, errors, recorded, spans, chain, app, version, instance = told
    live = outcome == "live"
    over = None if live else (ended or latest) / 1e6
    fields = {
        "id": call, "trace_id": trace.lower(), "chain": chain, "app": app, "version": version, "instance": instance,
        "method": method, "tenant": tenant, "started_ms": started / 1e6, "ended_ms": over,
        "live": live, "outcome": outcome, "reason": reason, "errors": errors, "recorded": bool(recorded),
        "spans": spans,
    }  # fmt: skip
    return Found(row, call, trace, started, max(started, ended or latest), live, fields)


class Line(NamedTuple):
    """A span as it lies in the store; `start` is ns since 1970 on its own process's clock."""

    row: int
    span: int
    parent: int
    name: str
    kind: int
    turn: int
    source: int
    replica: str
    start: int
    duration: int
    status: int
    parts: bytes | None
    rest: bytes | None


def lines(connection: sqlite3.Connection, call: int, after: int = 0, rest: bool = True) -> list[Line]:
    """The spans of a call whose rows come after `after`, the earliest first; without `rest` that column is None."""
    found = connection.execute(_LINES if rest else _LINES_WITHOUT_REST, (call, after)).fetchall()
    names = texts(connection, {line[3] for line in found} | {line[7] for line in found})
    out = [
        Line(row, span, parent, names[name], kind, turn, source, names[replica], *others)
        for row, span, parent, name, kind, turn, source, replica, *others in found
    ]
    out.sort(key=lambda line: (line.start, -line.duration))
    return out


def texts(connection: sqlite3.Connection, ids: Iterable[int]) -> dict[int, str]:
    """What the numbers stand for in `names`."""
    wanted = json_list(ids)
    return dict(
        connection.execute("SELECT id, text FROM names WHERE id IN (SELECT value FROM json_each(?))", (wanted,))
    )


def json_list(ids: Iterable[int]) -> str:
    """Numbers as one parameter of a statement, for `IN (SELECT value FROM json_each(?))`."""
    return msgspec.json.encode(list(ids)).decode()


def names_of(connection: sqlite3.Connection, call: int, spans: Iterable[int]) -> dict[int, str]:
    """What spans of a call are called."""
    found: dict[int, str] = {}
    for span in spans:
        row = connection.execute(
            "SELECT n.text FROM spans s JOIN names n ON n.id = s.name WHERE s.call = ? AND s.span = ?", (call, span)
        ).fetchone()
        if row is not None:
            found[span] = row[0]
    return found


def inside(line: Line, rest: Rest | None, names: Mapping[int, str]) -> list[Stretch]:
    """The stretches of a hop's bar."""
    parts = unpack_parts(line.parts)
    if rest is None or not (rest.waits or rest.works or "chains.accepted_ms" in rest.attributes):
        return proportional(parts)
    told = rest.attributes
    hop = Hop(
        line.duration / 1e6,
        serialise=parts[0],
        received=told.get("chains.received_ms"),
        accepted=told.get("chains.accepted_ms"),
        ended=told.get("chains.ended_ms"),
        waits=rest.waits,
        works=rest.works,
    )
    return segments(hop, lambda span: names.get(span, ""))
