"""Questions to the store, away from the event loop: a few connections in threads, each answer in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from chains.errors import DeadlineExceeded, Overloaded, SettingError, Unavailable
from chains.records.store import Store

Connection = sqlite3.Connection

P = ParamSpec("P")
R = TypeVar("R")
THREADS = 3
WAITING = 64
SECONDS = 20.0
STEPS = 50_000  # of SQLite's machine between two looks at the clock


def connect(path: Path) -> Store:
    """The store, only to be read. Raises SettingError when there is none, or none that can be read."""
    store = Store.open(path, readonly=True)
    store.connection.execute("PRAGMA query_only = 1")
    store.connection.execute("PRAGMA mmap_size = 1073741824")
    store.connection.execute("PRAGMA cache_size = -32768")
    return store


class Reader:
    """Runs functions over a connection. At most 3 at a time, 64 in all; one that takes 20 s is ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = ThreadPoolExecutor(THREADS, "chains-viewer-read")
        self._idle: queue.SimpleQueue[Store] = queue.SimpleQueue()
        self._open: list[Store] = []
        self._running = 0
        first = connect(path)  # what is wrong with the store is said at once
        self._open.append(first)
        self._idle.put(first)

    async def ask(self, fn: Callable[Concatenate[sqlite3.Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`fn(connection, ...)` in a thread, all its statements on one state of the store.

        Raises Overloaded, DeadlineExceeded, Unavailable, and what `fn` raises.
        """
        if self._running >= WAITING:
            raise Overloaded(f"{WAITING} questions are waiting already", mend="ask again in a second")
        self._running += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, lambda: self._run(fn, *args, **kwargs))
        finally:
            self._running -= 1

    def _run(self, fn: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        store = self._connected()
        connection = store.connection
        until = time.monotonic() + SECONDS
        connection.set_progress_handler(lambda: int(time.monotonic() > until), STEPS)
        try:
            connection.execute("BEGIN")
            return fn(connection, *args, **kwargs)
        except sqlite3.Error as error:
            if time.monotonic() > until:
                raise DeadlineExceeded("reading took over 20 s", mend="ask for a shorter range of time") from None
            raise Unavailable(f"the store could not be read: {error}", mend="ask again") from None
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._idle.put(store)

    def _connected(self) -> Store:
        """A connection that nobody uses, to the file that lies at the path now."""
        with contextlib.suppress(queue.Empty):
            store = self._idle.get_nowait()
            if not store.replaced():
                return store
            self._open.remove(store)
            store.close()
        try:
            store = connect(self._path)
        except SettingError as error:
            raise Unavailable(error.message, mend="ask again: it is made anew when spans come") from None
        self._open.append(store)
        return store

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        for store in self._open:
            store.close()
