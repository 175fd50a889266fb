"""Writes batches of spans: each in one transaction, so that a call's row, its spans and the percentiles agree.

Spans may come in any order, twice, or late: the rows are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from chains.records.arrived import Arrived, CallEnd
from chains.records.callrows import CallRow, CallRows
from chains.records.counting import Counting
from chains.records.names import Names
from chains.records.schema import FOREIGN
from chains.records.store import Store

_SPAN = "INSERT OR IGNORE INTO spans VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_DROP = "INSERT INTO drops VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count"
SENDER = "dropped by its sender"


class Writer:
    """Writes to one store; not thread-safe. Several writers, in several processes, may have the file open."""

    def __init__(self, store: Store, wall: Callable[[], int] = time.time_ns) -> None:
        self._connection = store.connection
        self._wall = wall
        self._names = Names(store.connection)
        self._counting = Counting(store.connection, self._names)

    def write(self, spans: Sequence[Arrived], drops: Mapping[tuple[str, str], int] | None = None) -> set[int]:
        """Keep these spans, and count `drops` by (source, reason). Gives the ids of the calls that changed.

        All or nothing: a sqlite3.Error leaves the file as it was.
        """
        self._names.trim()
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            changed = self._write(spans)
            if drops:
                self._count_drops(drops)
            connection.execute("COMMIT")
        except BaseException:
            self._names.forget()
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return changed

    def _write(self, spans: Sequence[Arrived]) -> set[int]:
        if not spans:
            return set()
        rows = CallRows(self._connection, self._names.sources)
        homes = rows.of(spans)
        placed = self._insert(spans, homes)
        fresh: dict[int, list[Arrived]] = {}
        for call, span in placed:
            fresh.setdefault(call, []).append(span)
        now = self._wall()
        for row in {home.id: home for home in homes.values()}.values():
            if row.id in fresh:
                row.take(self._connection, fresh[row.id], now)
        new = [span for _, span in placed]
        self._counting.count(new)
        self._count_drops(
            {(s.source.label, SENDER): s.detail.lost for s in new if isinstance(s.detail, CallEnd) and s.detail.lost}
        )
        return set(fresh)

    def _count_drops(self, drops: Mapping[tuple[str, str], int]) -> None:
        self._connection.executemany(_DROP, [(*key, number) for key, number in drops.items()])

    def _insert(
        self, spans: Iterable[Arrived], homes: Mapping[tuple[str, bytes], CallRow]
    ) -> list[tuple[int, Arrived]]:
        """Insert those that are not there yet; gives (call's id, span) of each that is new."""
        texts, sources, foreign = self._names.texts, self._names.sources, self._names.foreign
        placed = [(homes[span.call, span.trace].id, span) for span in spans]
        placed.sort(key=lambda entry: entry[0])  # a call's entries lie together in the index
        last = self._connection.execute("SELECT max(id) FROM spans").fetchone()[0] or 0
        inserted = self._connection.executemany(
            _SPAN,
            [
                (
                    id, s.span, s.parent, texts[s.name] if s.kind != FOREIGN else foreign(s.name), s.kind, s.turn,
                    sources[s.source], texts[s.replica], s.start, s.duration, s.status, s.parts, s.rest,
                )
                for id, s in placed
            ],
        ).rowcount  # fmt: skip
        if inserted == len(placed):
            return placed
        new = set(self._connection.execute("SELECT call, span FROM spans WHERE id > ?", (last,)))
        kept: list[tuple[int, Arrived]] = []
        for id, span in placed:
            if (id, span.span) in new:
                new.remove((id, span.span))
                kept.append((id, span))
        return kept
