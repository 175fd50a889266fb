"""Tells who holds the event loop: an `async` method that blocks keeps every other call waiting."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextvars import Context

log = logging.getLogger("chains")
Tell = Callable[[str, float], None]


def warn(who: str, seconds: float) -> None:
    log.warning(
        "%s has held the event loop for %.1f s: write it as a plain `def`, which runs in a thread", who, seconds
    )


class LoopWatch:
    """A thread that looks at the loop's heart beat. `who` names a task; `tell` hears of each stand-still once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        who: Callable[[asyncio.Task[object]], str],
        *,
        limit: float = 1.0,
        tell: Tell = warn,
    ) -> None:
        self._loop = loop
        self._who = who
        self._limit = limit
        self._tell = tell
        self._beat = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="chains-loop-watch", daemon=True)

    def start(self) -> None:
        self._pulse()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.join()

    def _pulse(self) -> None:
        self._beat = time.monotonic()
        self._timer = self._loop.call_later(self._limit / 2, self._pulse, context=Context())

    def _watch(self) -> None:
        told = 0.0
        while not self._stopped.wait(self._limit / 2):
            beat, seconds = self._beat, time.monotonic() - self._beat
            if seconds > self._limit and beat != told:
                task = asyncio.current_task(self._loop)
                if task is not None:  # without one it is not code of the loop's, but the whole process that stands
                    told = beat
                    self._tell(self._who(task), seconds)
