"""Calls as they happen: who listens is told of the rows that changed, by server-sent events.

The store is looked at four times a second while somebody listens, so what other processes write is seen as well.
Nothing queues: a listener has one slot in which later rows of a call replace earlier ones, and one that falls too far
behind gets the newest rows afresh.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec

from chains.errors import ChainsError, Overloaded
from chains.records import calls, overview
from chains.viewer.reading import Reader

log = logging.getLogger("chains.viewer")
LOOK_SECONDS = 0.25
BEAT_SECONDS = 15.0
INFO_SECONDS = 2.0
LISTENERS = 64
SLOT = 500  # rows that a slow listener may owe
FRESH = 200
RECENT_NS = 3_600 * 10**9  # traces of others may go on after they seemed to be over
Row = Sequence[Any]
Untold = Callable[[], Mapping[tuple[str, str], int]]


class Listener:
    """One page that is open: what it has not been told yet."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.info: dict[str, Any] | None = None
        self.reset = True
        self._ready = asyncio.Event()

    def tell(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.rows[row[0]] = row
        if len(self.rows) > SLOT:
            self.rows.clear()
            self.reset = True
        self._ready.set()

    def tell_info(self, info: dict[str, Any]) -> None:
        self.info = info
        self._ready.set()

    async def wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._ready.wait()
        except TimeoutError:
            pass

    def taken(self) -> None:
        """What there is, is on its way; `wait` waits for more."""
        self._ready.clear()


class Feed:
    """Looks for changes while there are listeners, and tells all of them."""

    def __init__(self, reader: Reader, untold: Untold = dict) -> None:
        self._reader = reader
        self._untold = untold
        self._listeners: set[Listener] = set()
        self._looking: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    @property
    def looking(self) -> bool:
        """Whether the store is being looked at."""
        return self._looking is not None

    async def events(self) -> AsyncIterator[bytes]:
        """The stream of one listener, from the newest rows on. Raises Overloaded past 64 listeners."""
        if len(self._listeners) >= LISTENERS:
            raise Overloaded(f"{LISTENERS} pages are listening already", mend="close some of them")
        listener = Listener()
        self._listeners.add(listener)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        return self._stream(listener)

    async def _stream(self, listener: Listener) -> AsyncIterator[bytes]:
        try:
            yield b"retry: 1000\n\n"
            while not self._closing.is_set():
                for event in await self._due(listener):
                    yield event
                await listener.wait(BEAT_SECONDS)
                if not listener.rows and listener.info is None and not listener.reset:
                    yield b": still here\n\n"
        finally:
            self._listeners.discard(listener)
            if not self._listeners and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _due(self, listener: Listener) -> list[bytes]:
        listener.taken()
        out = []
        if listener.reset:
            listener.reset = False
            listener.rows.clear()
            fresh = await self._reader.ask(calls.page, calls.CallFilter(), limit=FRESH)
            out.append(_event("calls", {"columns": calls.COLUMNS, "rows": fresh["rows"], "reset": True}))
        elif listener.rows:
            rows, listener.rows = list(listener.rows.values()), {}
            out.append(_event("calls", {"columns": calls.COLUMNS, "rows": rows, "reset": False}))
        if listener.info is not None:
            out.append(_event("info", listener.info))
            listener.info = None
        return out

    async def _look(self) -> None:
        """Until the last listener left: what changed, and the totals now and then."""
        state = State()
        told, before = 0.0, self._untold()
        while True:
            try:
                rows = await self._reader.ask(state.changes)
                if rows:
                    for listener in self._listeners:
                        listener.tell(rows)
                untold = self._untold()
                if time.monotonic() - told >= INFO_SECONDS and (state.moved or untold != before):
                    told, state.moved, before = time.monotonic(), False, untold
                    info = overview.with_untold(await self._reader.ask(overview.totals), untold)
                    for listener in self._listeners:
                        listener.tell_info(info)
            except ChainsError as error:  # a busy store: the next look may succeed
                log.debug("the store could not be looked at: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def close(self) -> None:
        """Ends every stream."""
        self._closing.set()
        for listener in self._listeners:
            listener.tell(())
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)


class State:
    """Up to where the store was seen."""

    def __init__(self) -> None:
        self.moved = True
        self._seen = -1
        self._newest = 0
        self._told: dict[int, int] = {}
        self._live: set[int] = set()

    def changes(self, connection: sqlite3.Connection) -> list[list[Any]]:
        """The rows that changed since the last look, the newest first; the first look finds none."""
        if self._seen < 0:
            self._begin(connection)
            return []
        # what came in the very moment of the last look may have come after it, so that moment is looked at again
        recent = time.time_ns() - RECENT_NS
        known = calls.changed(connection, self._seen - 1, recent_ns=recent, newer=self._newest, among=self._live)
        fresh = [id for id, seen, _ in known if self._told.get(id) != seen]
        if not fresh:
            return []
        self.moved = True
        self._seen = max(seen for _, seen, _ in known)
        self._newest = max(self._newest, *fresh)
        self._told = {id: seen for id, seen, _ in known if seen >= self._seen}
        self._live = (self._live - set(fresh)) | {id for id, _, live in known if live}
        return calls.rows_by_id(connection, sorted(fresh)[-SLOT:])

    def _begin(self, connection: sqlite3.Connection) -> None:
        self._seen, self._newest = connection.execute(
            "SELECT coalesce(max(seen), 0), coalesce(max(id), 0) FROM calls"
        ).fetchone()
        self._live = {row[0] for row in connection.execute("SELECT id FROM calls WHERE outcome = 'live'")}
        same = connection.execute("SELECT id, seen FROM calls WHERE seen = ?", (self._seen,))
        self._told = dict(same.fetchall())


def _event(kind: str, data: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
