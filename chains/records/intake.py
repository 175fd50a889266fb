"""Where spans wait to be written: a bounded queue, and the one thread that writes. Whoever sends never waits."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from chains.records.arrived import Arrived
from chains.records.retention import Retention, Upkeep
from chains.records.store import Store, broken, set_aside
from chains.records.writer import Writer

logger = logging.getLogger(__name__)

FULL = "queue full"
LOCKED = "file locked by another process"
UNWRITABLE = "could not be written"
_TRIES = 3
_GATHER_S = 0.1
_BATCH = 8_000
_QUIET_S = 60.0
Refusals = Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait to be written."""

    spans: int = 200_000
    bytes: int = 128 * 2**20


class Intake:
    """Takes spans in for the store at `path`, which its own thread opens, writes and looks after.

    `changed` is told, in that thread, the row ids of the calls that a batch changed. SettingError when the file
    cannot be opened. Thread-safe.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        limits: Limits | None = None,
        retention: Retention | None = None,
        changed: Callable[[set[int]], None] | None = None,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._limits = limits or Limits()
        self._changed = changed
        self._wall = wall
        self._upkeep = Upkeep(retention or Retention(), wall)
        self._room = threading.Condition()
        self._queue: deque[Sequence[Arrived]] = deque()
        self._spans = self._bytes = 0
        self._dropped: Counter[tuple[str, str]] = Counter()
        self._uncounted: Counter[tuple[str, str]] = Counter()
        self._owed: Counter[tuple[str, str]] = Counter()  # could not be written with its batch: goes with the next
        self._busy = self._closing = False
        self._told = 0.0
        self._store = Store.open(path)
        self._writer = Writer(self._store, wall)
        self._thread = threading.Thread(target=self._run, name="chains-records", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether the next batch would be dropped: it need not even be decoded."""
        return self._spans >= self._limits.spans or self._bytes >= self._limits.bytes

    @property
    def waiting(self) -> int:
        """Spans that are not written yet."""
        return self._spans

    @property
    def drops(self) -> dict[tuple[str, str], int]:
        """Spans not kept since this process began, by (source, reason)."""
        with self._room:
            return dict(self._dropped)

    @property
    def untold(self) -> dict[tuple[str, str], int]:
        """Of `drops`, what does not stand in the file yet: a full disk takes no counts either."""
        with self._room:
            return dict(self._uncounted + self._owed)

    def offer(self, spans: Sequence[Arrived]) -> bool:
        """Queue a batch, whole or not at all; False when it was dropped, and counted, since the queue is full."""
        size = sum(span.size for span in spans)
        with self._room:
            if self.full or self._closing:
                self._count(Counter((span.source.label, FULL) for span in spans))
                return False
            if spans:
                self._queue.append(spans)
                self._spans += len(spans)
                self._bytes += size
                self._room.notify_all()
            return True

    def drop(self, refused: Refusals) -> None:
        """Count spans that were not kept, by (source, reason)."""
        if refused:
            with self._room:
                self._count(refused)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all that was offered is written; False when that took longer than `timeout` seconds."""
        with self._room:
            return self._room.wait_for(lambda: not (self._queue or self._busy or self._uncounted), timeout)

    def close(self) -> None:
        """Write what waits, then end the thread and close the file."""
        with self._room:
            self._closing = True
            self._room.notify_all()
        self._thread.join()

    def __enter__(self) -> Intake:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _count(self, refused: Refusals) -> None:
        self._dropped.update(refused)
        self._uncounted.update(refused)
        self._room.notify_all()

    def _run(self) -> None:
        more = True
        while self._wait(0.0 if more else 1.0):
            batch, drops = self._take()
            if batch or drops:
                self._write(batch, drops)
            with self._room:
                self._busy = False
                self._room.notify_all()
            more = self._look_after()
        if self._owed:
            self._write([], Counter())
        self._store.close()

    def _wait(self, seconds: float) -> bool:
        """Until there is something to write, or for `seconds`; False when all is done and the thread may end."""
        with self._room:
            self._room.wait_for(lambda: self._queue or self._uncounted or self._closing, seconds)
            if self._queue:  # what comes within a moment goes into the same transaction
                self._room.wait_for(lambda: self._spans >= _BATCH or self._closing, _GATHER_S)
            return bool(self._queue or self._uncounted or not self._closing)

    def _take(self) -> tuple[list[Arrived], Counter[tuple[str, str]]]:
        batch: list[Arrived] = []
        with self._room:
            while self._queue and len(batch) < _BATCH:
                batch += self._queue.popleft()
            self._spans -= len(batch)
            self._bytes -= sum(span.size for span in batch)
            drops, self._uncounted = self._uncounted, Counter()
            self._busy = True
        return batch, drops

    def _write(self, batch: Sequence[Arrived], drops: Counter[tuple[str, str]]) -> None:
        """Write, whatever it takes; what cannot be written is dropped and counted, and the thread goes on."""
        reason = UNWRITABLE
        drops += self._owed
        for _ in range(_TRIES):
            try:
                changed = self._writer.write(batch, drops)
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    reason = LOCKED
                    continue
                self._tell("spans are dropped: %s cannot be written: %s", self._store.path, error)
                if not (broken(error) and self._reopen(error)):
                    break
            except Exception:
                logger.exception("a batch of %d spans is dropped", len(batch))
                break
            else:
                with self._room:
                    self._owed.clear()
                if changed and self._changed is not None:
                    self._changed(changed)
                return
        lost = Counter((span.source.label, reason) for span in batch)
        with self._room:
            self._owed = drops + lost
            self._dropped.update(lost)

    def _look_after(self) -> bool:
        """A slice of upkeep, unless much waits to be written."""
        if self._spans > _BATCH or self._closing:
            return True
        try:
            if self._store.replaced():
                self._reopen(None)
            return self._upkeep.slice(self._store.connection)
        except sqlite3.Error as error:
            self._tell("%s cannot be looked after: %s", self._store.path, error)
            if broken(error):
                self._reopen(error)
            return False

    def _reopen(self, damage: sqlite3.Error | None) -> bool:
        """Begin again with a new file; False when there can be none."""
        path = self._store.path
        try:
            if damage is not None and not self._store.replaced():  # another process may have set it aside
                set_aside(path, str(damage))
            fresh = Store.open(path)
        except Exception as error:
            self._tell("spans are dropped: %s", error)
            return False
        self._store.close()
        self._store, self._writer = fresh, Writer(fresh, self._wall)
        return True

    def _tell(self, message: str, *values: object) -> None:
        """Log, but not the same again and again."""
        now = time.monotonic()
        if now - self._told > _QUIET_S or not self._told:
            self._told = now
            logger.warning(message, *values)
