"""A clock that stands until it is told to go on."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable


class FakeTimer:
    """A timer of a FakeClock; `cancel` makes it never fire."""

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[], None] | None) -> None:
        self.fn = fn

    def cancel(self) -> None:
        self.fn = None


class FakeClock:
    """Time for tests: `await clock.advance(seconds)` fires the timers that fall due, in order, and lets tasks run."""

    def __init__(self, now: float = 1_000.0, wall: float = 1_700_000_000.0) -> None:
        self._now = now
        self._wall = wall - now
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall + self._now

    def call_at(self, when: float, fn: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(fn)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    @property
    def pending(self) -> int:
        """Timers that may still fire."""
        return sum(1 for _, _, timer in self._timers if timer.fn is not None)

    async def advance(self, seconds: float) -> None:
        """Move on by `seconds`; what falls due meanwhile happens at its own time."""
        end = self._now + seconds
        await settle()
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            if timer.fn is not None:
                timer.fn()
                await settle()
        self._now = end
        await settle()


async def settle(rounds: int = 50) -> None:
    """Let every task that can run do so, without any time passing."""
    for _ in range(rounds):
        await asyncio.sleep(0)
