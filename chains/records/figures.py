"""The figures of a chain over a stretch of time, or of a few calls: percentiles by hop and replica, critical paths.

Few spans are counted one by one; many come from the sketches that were kept by the minute.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from chains.records.calls import CallFilter, where
from chains.records.lookup import json_list, texts
from chains.records.packing import unpack, unpack_parts, unpack_path
from chains.records.ranges import Range
from chains.records.schema import CALL, FOREIGN, HOP
from chains.records.sketches import Tally

EXACT = 30_000  # spans up to which they are counted one by one
SAMPLE = 200  # calls that are looked into for what no sketch tells
_NO_PARTS = bytes(20)


@dataclass(slots=True)
class Figures:
    """`hops` by (hop, replica); `on_path`: hop -> (turns, ms); `path_parts`: (hop, replica, part) -> ms on paths.

    `entries`: of the sampled calls' outermost hops, (hop, ms it took, ms it waited for its reader) each.
    """

    calls: int = 0
    spans: int = 0
    hops: dict[tuple[str, str], Tally] = field(default_factory=dict)
    turns: Tally = field(default_factory=Tally)
    on_path: dict[str, tuple[int, float]] = field(default_factory=dict)
    path_parts: dict[tuple[str, str, str], float] = field(default_factory=dict)
    entries: list[tuple[str, float, float]] = field(default_factory=list)
    edges: set[tuple[str, str]] = field(default_factory=set)

    def hop(self, name: str) -> Tally:
        """The hop as a whole."""
        whole = Tally()
        for (hop, _), tally in self.hops.items():
            if hop == name:
                whole.merge(tally)
        return whole


@dataclass(frozen=True, slots=True)
class Wanted:
    """A chain (or service of others), and what of it. Empty: any."""

    chain: str
    app: str = ""
    version: str = ""
    range: Range = field(default_factory=Range)


def of_chain(connection: sqlite3.Connection, wanted: Wanted) -> Figures:
    """From single spans where they are few, or for an app (of its newest calls then); else from sketches."""
    chosen = where(
        connection, CallFilter(chain=wanted.chain, app=wanted.app, version=wanted.version, range=wanted.range)
    )
    found = connection.execute(
        f"SELECT c.id, c.spans FROM calls c LEFT JOIN sources s ON s.id = c.source {chosen} ORDER BY c.started DESC",  # noqa: S608
        chosen.values,
    ).fetchall()
    spans = sum(row[1] for row in found)
    if spans <= EXACT or wanted.app:
        figures = of_calls(connection, _some(connection, [row[0] for row in found]))
    else:
        figures = _from_sketches(connection, wanted)
        _look_into(connection, figures, [row[0] for row in found[:SAMPLE]])
    figures.calls, figures.spans = len(found), spans
    return figures


def of_calls(connection: sqlite3.Connection, calls: Sequence[int]) -> Figures:
    """From the spans of these calls, one by one."""
    figures = Figures(calls=len(calls))
    listed = json_list(calls)
    groups: dict[tuple[int, int], list[tuple[float, int, bytes]]] = defaultdict(list)
    found = connection.execute(
        """SELECT name, replica, duration / 1e6, status = 2, parts FROM spans
        WHERE call IN (SELECT value FROM json_each(?)) AND kind IN (?, ?)""",
        (listed, HOP, FOREIGN),
    )
    for name, replica, ms, failed, parts in found:
        groups[name, replica].append((ms, failed, parts or _NO_PARTS))
    names = texts(connection, {id for key in groups for id in key})
    for (name, replica), members in groups.items():
        tally = figures.hops[names[name], names[replica]] = Tally()
        values = np.empty((len(members), 6), dtype=np.float32)
        values[:, 0] = [ms for ms, _, _ in members]
        values[:, 1:] = np.frombuffer(b"".join(parts for _, _, parts in members), dtype="<f4").reshape(-1, 5)
        tally.add(values, sum(failed for _, failed, _ in members))
    _count_turns(connection, figures, listed)
    _look_into(connection, figures, calls[:SAMPLE])
    return figures


def _count_turns(connection: sqlite3.Connection, figures: Figures, listed: str) -> None:
    found = connection.execute(
        """SELECT latency_ms, state = 'failed', path FROM turns
        WHERE call IN (SELECT value FROM json_each(?)) AND state != 'dropped'""",
        (listed,),
    ).fetchall()
    values = np.zeros((len(found), 6), dtype=np.float32)
    values[:, 0] = [row[0] for row in found]
    if len(found):
        figures.turns.add(values, sum(row[1] for row in found))
    for _, _, path in found:
        own: dict[str, float] = defaultdict(float)
        for step in unpack_path(path):
            own[step.hop] += step.ms
            key = (step.hop, step.replica, part_of(step.part, step.name))
            figures.path_parts[key] = figures.path_parts.get(key, 0.0) + step.ms
        for hop, ms in own.items():
            turns, sum_ = figures.on_path.get(hop, (0, 0.0))
            figures.on_path[hop] = (turns + 1, sum_ + ms)


# Buckets count where their middle lies in the range, so that two ranges beside one another share none.
_WITHIN = """WHERE bucket >= :first - 3600 AND bucket < :last AND bucket + width / 2 >= :first
  AND bucket + width / 2 < :last AND chain = (SELECT id FROM names WHERE text = :chain)
  AND (:version = '' OR version = (SELECT id FROM names WHERE text = :version))"""
_SKETCHES = f"SELECT hop, replica, count, errors, sums, sketch FROM sketches {_WITHIN}"  # noqa: S608
_PATHS = f"SELECT hop, replica, part, sum(turns), sum(ms) FROM paths {_WITHIN} GROUP BY hop, replica, part"  # noqa: S608


def part_of(part: str, name: str) -> str:
    """The part of a path's step as it is counted: a wait for input or for a reader by what it waited for."""
    return name if part == "wait" and name in ("input", "credit") else part


def _from_sketches(connection: sqlite3.Connection, wanted: Wanted) -> Figures:
    figures = Figures()
    first, last = wanted.range.buckets()
    given = {"chain": wanted.chain, "version": wanted.version, "first": first, "last": last}
    rows = connection.execute(_SKETCHES, given).fetchall()
    paths = connection.execute(_PATHS, given).fetchall()
    names = texts(connection, {id for row in (*rows, *paths) for id in row[:2]} | {row[2] for row in paths})
    for hop, replica, *row in rows:
        tally = figures.hops.setdefault((names[hop], names[replica]), Tally()) if hop else figures.turns
        tally.merge(Tally.load(*row))
    for hop, replica, part, turns, ms in paths:
        if replica < 0:
            figures.on_path[names[hop]] = (turns, ms)
        else:
            figures.path_parts[names[hop], names[replica], names[part]] = ms
    return figures


def _look_into(connection: sqlite3.Connection, figures: Figures, calls: Sequence[int]) -> None:
    """Who calls whom, and how long the outermost hops waited for their reader: the client."""
    found = connection.execute(
        """SELECT call, span, parent, name, kind, duration / 1e6, parts FROM spans
        WHERE call IN (SELECT value FROM json_each(?)) AND kind IN (?, ?, ?)""",
        (json_list(_some(connection, calls)), HOP, FOREIGN, CALL),
    ).fetchall()
    names = texts(connection, {row[3] for row in found})
    known = {(call, span): (name, kind) for call, span, _, name, kind, _, _ in found}
    for call, span, parent, name, kind, ms, parts in found:
        above, above_kind = known.get((call, parent), (name, None))
        if above_kind == CALL and kind == HOP and parts:
            waited = _credit(connection, call, span, unpack_parts(parts)[4])
            figures.entries.append((names[name], ms, waited))
        elif above_kind != CALL and above != name and kind != CALL:
            figures.edges.add((names[above], names[name]))


def _some(connection: sqlite3.Connection, calls: Sequence[int]) -> list[int]:
    """As many of the calls, the newest first, as have EXACT spans together; at least one."""
    found = connection.execute(
        "SELECT id, spans FROM calls WHERE id IN (SELECT value FROM json_each(?)) ORDER BY started DESC",
        (json_list(calls),),
    ).fetchall()
    fitting = [
        id for (id, _), sum_ in zip(found, itertools.accumulate(row[1] for row in found), strict=True) if sum_ <= EXACT
    ]
    return fitting or [id for id, _ in found[:1]]


def _credit(connection: sqlite3.Connection, call: int, span: int, waited: float) -> float:
    """Ms that a hop waited for its reader. Its span carries the last waits alone: their share counts for all."""
    if waited < 1.0:
        return 0.0
    row = connection.execute("SELECT rest FROM spans WHERE call = ? AND span = ?", (call, span)).fetchone()
    waits = unpack(row[0]).waits
    told = sum(wait.ms for wait in waits)
    credit = sum(wait.ms for wait in waits if wait.kind == "credit")
    return waited * credit / told if told else 0.0
