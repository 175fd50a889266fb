"""Where the events of requests go, from the engine's thread to whoever waits: a thread, or a task of an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import Protocol

from engines.llm.messages import Failure, Probed
from engines.llm.sequence import End, Token

Item = Token | Probed | End | Failure


class Mailbox(Protocol):
    """The events of one caller's requests."""

    def put(self, items: list[Item]) -> None:
        """From the engine's thread."""
        ...


class ThreadMailbox:
    """For a caller that blocks."""

    def __init__(self) -> None:
        self._items: SimpleQueue[list[Item]] = SimpleQueue()

    def put(self, items: list[Item]) -> None:
        self._items.put(items)

    def get(self, timeout: float | None = None) -> list[Item]:
        """What came; waits for something, at most `timeout` seconds ([] then)."""
        try:
            return self._items.get(timeout=timeout)
        except Empty:
            return []


class LoopMailbox:
    """For a task of the event loop that runs now."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._some = asyncio.Event()

    def put(self, items: list[Item]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._take, items)
        except RuntimeError:
            pass  # the loop is closed: nobody waits

    def _take(self, items: list[Item]) -> None:
        self._items.extend(items)
        self._some.set()

    async def get(self) -> list[Item]:
        """What came; waits for something."""
        await self._some.wait()
        self._some.clear()
        items = list(self._items)
        self._items.clear()
        return items


class Mailboxes:
    """The mailbox of each open request. Safe from many threads; each request gets exactly one last item."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, tuple[Mailbox, int]] = {}

    def open(self, id: int, mailbox: Mailbox, prompt: int) -> None:
        with self._lock:
            self._open[id] = (mailbox, prompt)

    def forget(self, id: int) -> bool:
        """Nobody waits for this request any more; False when it has ended."""
        with self._lock:
            return self._open.pop(id, None) is not None

    def __len__(self) -> int:
        return len(self._open)

    def deliver(self, items: list[Item]) -> None:
        """Hand items out, all of one mailbox at once."""
        found: dict[int, tuple[Mailbox, list[Item]]] = {}
        with self._lock:
            for item in items:
                last = isinstance(item, End | Failure)
                opened = self._open.pop(item.id, None) if last else self._open.get(item.id)
                if opened is not None:
                    found.setdefault(id(opened[0]), (opened[0], []))[1].append(item)
        for mailbox, theirs in found.values():
            mailbox.put(theirs)

    def end_all(self, message: str) -> None:
        """The engine is gone: each open request ends with an error."""
        with self._lock:
            opened, self._open = self._open, {}
        for id, (mailbox, prompt) in opened.items():
            mailbox.put([End(id, "error", prompt, 0, 0, message)])
