"""One span with all that it carries; the insides of a few bars."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from chains.errors import InvalidValue, NotFound
from chains.records.lookup import Found, Line, find, inside, json_list, names_of
from chains.records.packing import PARTS, attributes_of, hex_id, signed, unpack, unpack_parts
from chains.records.schema import HOP, KINDS
from chains.records.waterfall import Stretch

ASKED = 500  # rows whose inside can be asked for at once


def span(connection: sqlite3.Connection, id: str, hex_span: str) -> dict[str, Any]:
    """One span with all that it carries. Raises NotFound."""
    call = find(connection, id)
    try:
        number = signed(bytes.fromhex(hex_span)) if len(hex_span) == 16 else None
    except ValueError:
        number = None
    row = connection.execute(f"{_SPAN} AND s.span = ?", (call.row, number)).fetchone()
    if row is None:
        raise NotFound(f"call {call.id} has no span {hex_span[:40]!r}", mend="ids of spans are 16 hex digits")
    return _span(call, row)


def details(connection: sqlite3.Connection, id: str) -> dict[str, dict[str, Any]]:
    """What `span` tells, of every span of the call by its id. Raises NotFound."""
    call = find(connection, id)
    return {hex_id(row[0]): _span(call, row) for row in connection.execute(_SPAN, (call.row,))}


_SPAN = """SELECT s.span, n.text, s.kind, s.turn, r.text, s.start, s.duration, s.status, s.parts, s.rest
  FROM spans s JOIN names n ON n.id = s.name JOIN names r ON r.id = s.replica WHERE s.call = ?"""


def _span(call: Found, row: Sequence[Any]) -> dict[str, Any]:
    _, name, kind, turn, replica, start, duration, status, parts, packed = row
    rest = unpack(packed, name)
    told = unpack_parts(parts) if parts else ()
    origin = (start - call.started) / 1e6
    return {
        "name": name, "kind": KINDS[kind], "start": round(origin, 3), "ms": duration / 1e6, "status": status,
        "attributes": attributes_of(rest, kind=kind, call=call.id, turn=turn, replica=replica, parts=parts),
        "events": [{"name": e.name, "at": round(origin + e.at, 3), "attributes": e.attributes} for e in rest.events],
        "parts": {part: round(ms, 3) for part, ms in zip(PARTS, told, strict=False)} or None,
        "sum_ms": round(sum(told), 3) if told else None,
        "waits": [(w.start, w.ms, w.kind, hex_id(w.on), w.turn) for w in rest.waits],
        "works": rest.works,
    }  # fmt: skip


def segments_of(connection: sqlite3.Connection, id: str, rows: Sequence[int]) -> dict[str, list[Stretch]]:
    """The stretches of a few hops of a large call, by row. Raises InvalidValue for more than 500 rows."""
    if len(rows) > ASKED:
        raise InvalidValue(f"{len(rows)} rows were asked for", mend=f"ask for {ASKED} at most")
    call = find(connection, id)
    found = connection.execute(
        """SELECT s.id, s.span, s.parent, n.text, s.kind, s.turn, s.source, '', s.start, s.duration, s.status, s.parts,
        s.rest FROM spans s JOIN names n ON n.id = s.name
        WHERE s.call = ? AND s.kind = ? AND s.id IN (SELECT value FROM json_each(?))""",
        (call.row, HOP, json_list(rows)),
    )
    hops = [Line(*line) for line in found]
    rests = {line.row: unpack(line.rest, line.name) for line in hops}
    names = names_of(connection, call.row, {wait.on for rest in rests.values() for wait in rest.waits} - {0})
    return {str(line.row): inside(line, rests[line.row], names) for line in hops}
