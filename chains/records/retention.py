"""What is done with the file between batches, in slices of a few milliseconds: calls that died are marked, old minutes
merged to hours, old calls deleted, and free pages given back.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

from chains.errors import SettingError
from chains.records import sketches

SILENT_S = 600
EVERY_S = 60
LEAP_S = 3_600
_TRUST = 60  # looks at a clock that leapt ahead, before anything goes for its age: an hour
DAY_S = 86_400
_SPANS, _RECORDED, _PAGES = 1_000, 100, 256
_ENOUGH = 0.95  # of max_bytes: deleting goes on until there is some room


@dataclass(frozen=True, slots=True)
class Retention:
    """How long calls are kept (days since anything of them came), and in how many bytes; the oldest go first.

    Percentiles per hour are small and stay for `statistics_days`.
    """

    max_age_days: float = 7.0
    max_bytes: int = 2 * 2**30
    statistics_days: float = 90.0

    def __post_init__(self) -> None:
        if not self.max_age_days > 0 or not self.statistics_days > 0:
            raise SettingError("calls are kept for no time at all", mend="give a number of days above 0")
        if self.max_bytes < 2**20:
            raise SettingError(f"{self.max_bytes} bytes are too few for a file of calls", mend="give at least 1 MiB")


class Upkeep:
    """Works through what is due, a slice a call; for the thread that writes."""

    def __init__(self, retention: Retention, wall: Callable[[], int] = time.time_ns) -> None:
        self._retention = retention
        self._wall = wall
        self._due = self._seen = self._doubt = 0
        self._emptying = False
        self._victim: int | None = None

    def slice(self, connection: sqlite3.Connection) -> bool:
        """Do a little; True when there is more to do now. Every minute there is something to look after."""
        now = self._wall() // 1_000_000_000
        if self._seen and now > self._seen + LEAP_S:  # a clock that leaps is often put right soon
            self._doubt = _TRUST
        self._seen = now
        if self._due - EVERY_S <= now < self._due:  # before that, the clock was put back
            return False
        connection.execute("BEGIN IMMEDIATE")
        try:
            more = self._step(connection, now)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if not more:
            more = _vacuum(connection)
        if not more:
            self._due = now + EVERY_S
            self._doubt = max(0, self._doubt - 1)
        return more

    def _step(self, connection: sqlite3.Connection, now: int) -> bool:
        mark_lost(connection, now)
        if sketches.compact(connection, now - DAY_S):
            return True
        before = int(now - self._retention.statistics_days * DAY_S)
        for table in ("sketches", "paths"):
            if not self._doubt:
                connection.execute(f"DELETE FROM {table} WHERE bucket < ?", (before,))  # noqa: S608
        if self._victim is None:
            self._victim = self._choose(connection, now)
        if self._victim is None:
            return False
        if delete_some(connection, self._victim):
            self._victim = None
        return True

    def _choose(self, connection: sqlite3.Connection, now: int) -> int | None:
        """The next call to delete. Calls are numbered in the order in which they came."""
        cutoff = int((now - self._retention.max_age_days * DAY_S) * 1e9)
        query = "SELECT id FROM calls WHERE outcome != 'live' AND seen < ? ORDER BY id LIMIT 1"
        row = None if self._doubt else connection.execute(query, (cutoff,)).fetchone()
        if row is None and self._too_large(connection):
            row = connection.execute("SELECT id FROM calls WHERE outcome != 'live' ORDER BY id LIMIT 1").fetchone()
            row = row or connection.execute("SELECT id FROM calls ORDER BY id LIMIT 1").fetchone()
        return int(row[0]) if row else None

    def _too_large(self, connection: sqlite3.Connection) -> bool:
        pages, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        limit = self._retention.max_bytes * (_ENOUGH if self._emptying else 1.0)
        self._emptying = (pages - free) * size > limit
        return self._emptying


def mark_lost(connection: sqlite3.Connection, now: int) -> None:
    """Calls of which nothing came for ten minutes, and no end: their process died. `now` in seconds since 1970.

    Traces of others without a root are done: their root is somebody's who exports elsewhere.
    """
    connection.execute(
        "UPDATE calls SET outcome = CASE WHEN theirs THEN 'done' ELSE 'lost' END, ended = latest, "
        "slowest_ms = CASE WHEN turns THEN slowest_ms ELSE (latest - started) / 1e6 END "
        "WHERE outcome = 'live' AND seen < ?",
        ((now - SILENT_S) * 1_000_000_000,),
    )


def delete_some(connection: sqlite3.Connection, call: int) -> bool:
    """Delete up to 1,000 spans of the call, or 100 pieces of its recording; True when all of it is gone."""
    gone = connection.execute(
        "DELETE FROM spans WHERE id IN (SELECT id FROM spans WHERE call = ? LIMIT ?)", (call, _SPANS)
    ).rowcount
    if gone == _SPANS:
        return False
    gone = connection.execute(
        "DELETE FROM recordings WHERE call = ? AND seq IN (SELECT seq FROM recordings WHERE call = ? LIMIT ?)",
        (call, call, _RECORDED),
    ).rowcount
    if gone == _RECORDED:
        return False
    connection.execute("DELETE FROM turns WHERE call = ?", (call,))
    connection.execute("DELETE FROM calls WHERE id = ?", (call,))
    return True


def _vacuum(connection: sqlite3.Connection) -> bool:
    """Give a megabyte of free pages back to the disk; True when there are more."""
    if connection.execute("PRAGMA freelist_count").fetchone()[0] < _PAGES:
        return False
    connection.execute(f"PRAGMA incremental_vacuum({_PAGES})").fetchall()
    return int(connection.execute("PRAGMA freelist_count").fetchone()[0]) >= _PAGES
