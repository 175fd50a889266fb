"""Percentiles that can be merged: sketches of each hop's time and its five parts, per minute, later per hour.

REQ sketches (k 12, high ranks exact): of the kinds that `datasketches` has, the ones whose p95 and p99 stay within 2 %
of the true value after sixty merges of a million values, at 1 to 1.7 % for p50 and 40 ns a value.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

import datasketches
import msgspec
import numpy as np
import numpy.typing as npt

from chains.records.packing import PARTS
from chains.records.schema import HOUR, MINUTE

K = 12
FEW = 16
_FEW_MARK = 0  # the first byte of a row of few spans; msgpack's array begins otherwise
COLUMNS = ("total", *PARTS)
Values = npt.NDArray[np.float32]
Key = tuple[int, int, int, int, int, int]

_KEY = "bucket = ? AND width = ? AND chain = ? AND version = ? AND hop = ? AND replica = ?"
_READ = f"SELECT count, errors, sums, sketch FROM sketches WHERE {_KEY}"  # noqa: S608
_WRITE = "INSERT OR REPLACE INTO sketches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PATH = (
    "INSERT INTO paths VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET turns = turns + excluded.turns, ms = ms + excluded.ms"
)


class Tally:
    """Count, errors, sums and percentiles of a set of spans; times in ms, by the names of COLUMNS.

    Up to 16 spans are kept as they are: where little happens that takes a tenth of the room.
    """

    def __init__(self) -> None:
        self.count = 0
        self.errors = 0
        self.sums = np.zeros(len(COLUMNS))
        self._few: Values | None = np.empty((0, len(COLUMNS)), dtype=np.float32)
        # None: every value so far was 0, as most parts of most hops are
        self._sketches: list[datasketches.req_floats_sketch | None] = [None] * len(COLUMNS)

    @classmethod
    def load(cls, count: int, errors: int, sums: bytes, sketch: bytes) -> Tally:
        """From a row of the table."""
        tally = cls()
        if sketch[0] == _FEW_MARK:
            few = np.zeros((count, len(COLUMNS)), dtype=np.float32)
            columns = [column for column in range(len(COLUMNS)) if sketch[1] >> column & 1]
            few[:, columns] = np.frombuffer(sketch, dtype="<f4", offset=2).reshape(count, len(columns))
            tally.add(few, errors)
            return tally
        tally.count, tally.errors, tally._few = count, errors, None
        tally.sums = np.frombuffer(sums, dtype=np.float64).copy()
        read = datasketches.req_floats_sketch.deserialize
        tally._sketches = [read(blob) if blob else None for blob in msgspec.msgpack.decode(sketch)]
        return tally

    def dump(self) -> tuple[int, int, bytes, bytes]:
        """What `load` takes."""
        if self._few is not None:
            columns = [column for column in range(len(COLUMNS)) if self._few[:, column].any()]
            head = bytes((_FEW_MARK, sum(1 << column for column in columns)))
            return self.count, self.errors, b"", head + self._few[:, columns].astype("<f4").tobytes()
        blobs = [b"" if sketch is None else sketch.serialize() for sketch in self._sketches]
        return self.count, self.errors, self.sums.tobytes(), msgspec.msgpack.encode(blobs)

    def add(self, values: Values, errors: int = 0) -> None:
        """Take in spans: one a row, a column for each of COLUMNS."""
        self.sums += values.sum(axis=0, dtype=np.float64)
        self.errors += errors
        if self._few is not None and self.count + len(values) <= FEW:
            self._few = np.concatenate((self._few, values))
            self.count += len(values)
            return
        self._spill()
        self._update(values)

    def merge(self, other: Tally) -> None:
        """Take in what another one counted."""
        if other._few is not None:
            self.add(other._few, other.errors)
            return
        self._spill()
        for column, theirs in enumerate(other._sketches):
            if theirs is not None:
                self._sketch(column).merge(theirs)
            elif self._sketches[column] is not None:
                self._sketch(column).update(np.zeros(other.count, dtype=np.float32))
        self.sums += other.sums
        self.count += other.count
        self.errors += other.errors

    def quantiles(self, ranks: Sequence[float], column: str = "total") -> list[float]:
        """In ms; zeros where nothing was counted."""
        self._spill()
        sketch = self._sketches[COLUMNS.index(column)]
        return list(sketch.get_quantiles(ranks)) if sketch is not None and self.count else [0.0] * len(ranks)

    def mean(self, column: str = "total") -> float:
        """In ms; 0 where nothing was counted."""
        return float(self.sums[COLUMNS.index(column)]) / self.count if self.count else 0.0

    def shares(self, edges: Sequence[float], column: str = "total") -> list[float]:
        """Which share of the values lies below the first edge (ms), between each two, and above the last."""
        self._spill()
        sketch = self._sketches[COLUMNS.index(column)]
        if sketch is None or not self.count:
            return [1.0 if self.count else 0.0, *([0.0] * len(edges))]
        return list(sketch.get_pmf(edges))

    def _spill(self) -> None:
        """From the values themselves to sketches."""
        few, self._few = self._few, None
        if few is not None and len(few):
            self.count = 0
            self._update(few)

    def _update(self, values: Values) -> None:
        for column in range(len(COLUMNS)):
            if self._sketches[column] is not None or values[:, column].any():
                self._sketch(column).update(np.ascontiguousarray(values[:, column]))
        self.count += len(values)

    def _sketch(self, column: int) -> datasketches.req_floats_sketch:
        found = self._sketches[column]
        if found is None:
            found = self._sketches[column] = datasketches.req_floats_sketch(K)
            if self.count:
                found.update(np.zeros(self.count, dtype=np.float32))
        return found


def merged(rows: Iterable[tuple[int, int, bytes, bytes]]) -> Tally:
    """One of rows (count, errors, sums, sketch) of the table."""
    whole = Tally()
    for row in rows:
        whole.merge(Tally.load(*row))
    return whole


def add(connection: sqlite3.Connection, key: Key, values: Values, errors: int) -> None:
    """Take spans into the row (bucket, width, chain, version, hop, replica); inside the caller's transaction."""
    row = connection.execute(_READ, key).fetchone()
    tally = Tally.load(*row) if row else Tally()
    tally.add(values, errors)
    connection.execute(_WRITE, (*key, *tally.dump()))


def add_paths(connection: sqlite3.Connection, rows: Iterable[tuple[float, ...]]) -> None:
    """Count rows of the table paths in; inside the caller's transaction."""
    connection.executemany(_PATH, rows)


def compact(connection: sqlite3.Connection, before: int) -> bool:
    """Merge the minutes of one hour of one chain that ended `before` (seconds since 1970) into one.

    False when there is nothing left to merge. Inside the caller's transaction.
    """
    return _compact_sketches(connection, before) or _compact_paths(connection, before)


def _compact_sketches(connection: sqlite3.Connection, before: int) -> bool:
    hour = _oldest_hour(connection, "sketches", before)
    if hour is None:
        return False
    start, chain, version = hour
    rows = connection.execute(
        "SELECT hop, replica, count, errors, sums, sketch FROM sketches "
        "WHERE bucket >= ? AND bucket < ? AND width IN (?, ?) AND chain = ? AND version = ?",
        (start, start + HOUR, MINUTE, HOUR, chain, version),
    ).fetchall()
    whole: dict[tuple[int, int], Tally] = {}
    for hop, replica, *row in rows:
        whole.setdefault((hop, replica), Tally()).merge(Tally.load(*row))
    _forget(connection, "sketches", hour)
    connection.executemany(_WRITE, [(start, HOUR, chain, version, *key, *tally.dump()) for key, tally in whole.items()])
    return True


def _compact_paths(connection: sqlite3.Connection, before: int) -> bool:
    hour = _oldest_hour(connection, "paths", before)
    if hour is None:
        return False
    start, chain, version = hour
    rows = connection.execute(
        "SELECT hop, replica, part, sum(turns), sum(ms) FROM paths "
        "WHERE bucket >= ? AND bucket < ? AND chain = ? AND version = ? GROUP BY hop, replica, part",
        (start, start + HOUR, chain, version),
    ).fetchall()
    _forget(connection, "paths", hour)
    connection.executemany(_PATH, [(start, HOUR, chain, version, *row) for row in rows])
    return True


def _oldest_hour(connection: sqlite3.Connection, table: str, before: int) -> tuple[int, int, int] | None:
    """Start, chain and version of an hour that has minutes and ended in time."""
    last = before // HOUR * HOUR
    row = connection.execute(
        f"SELECT bucket, chain, version FROM {table} WHERE bucket < ? AND width = ? LIMIT 1",  # noqa: S608
        (last, MINUTE),
    ).fetchone()
    return (row[0] // HOUR * HOUR, row[1], row[2]) if row else None


def _forget(connection: sqlite3.Connection, table: str, hour: tuple[int, int, int]) -> None:
    start, chain, version = hour
    connection.execute(
        f"DELETE FROM {table} WHERE bucket >= ? AND bucket < ? AND chain = ? AND version = ?",  # noqa: S608
        (start, start + HOUR, chain, version),
    )
