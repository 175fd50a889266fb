"""Time: the clock that is injected everywhere, and the account of one hop's wall time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """Where time comes from: injected, so that tests need not wait."""

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def wall(self) -> float:
        """Seconds since 1970."""
        ...

    def call_at(self, when: float, fn: Callable[[], None]) -> Timer:
        """Run `fn` on the loop when `now()` reaches `when`."""
        ...


class LoopClock:
    """The real time, with the running event loop's timers."""

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def call_at(self, when: float, fn: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, when - time.monotonic()), fn)


@dataclass(slots=True, eq=False)
class Wait:
    """A stretch of time (monotonic seconds) in which a hop waited: on another hop, for its input, or for credit."""

    start: float
    end: float
    kind: Literal["hop", "input", "credit"]
    on: Timing | None
    turn: int


@dataclass(slots=True, eq=False)
class Work:
    """A named stretch of a hop's own work: a decode, a search. Monotonic seconds."""

    name: str
    start: float
    end: float
    turn: int


RECENT = 4096


@dataclass(slots=True, eq=False)
class Timing:
    """When things happened on one hop (monotonic seconds), and how its wall time divides.

    The parts (serialise, wire, queue, compute, wait) add up to the caller's elapsed time: see `parts`.
    """

    id: str
    parent: Timing | None
    call: str
    turn: int
    node: str
    method: str
    opened: float
    replica: str = ""
    received: float = 0.0
    accepted: float = 0.0
    first_item: float = 0.0
    ended: float = 0.0
    closed: float = 0.0
    outcome: str = ""
    error: str = ""
    attempts: int = 1
    items_in: int = 0
    items_out: int = 0
    bytes_out: int = 0
    serialise: float = 0.0
    waited: float = 0.0
    waits: deque[Wait] = field(default_factory=lambda: deque(maxlen=RECENT))
    works: deque[Work] = field(default_factory=lambda: deque(maxlen=RECENT))
    open_waits: list[Wait] = field(default_factory=list)
    open_works: int = 0
    _since: float = 0.0

    @property
    def label(self) -> str:
        return f"{self.node}.{self.method}"

    def begin_wait(self, now: float, kind: Literal["hop", "input", "credit"], on: Timing | None, turn: int) -> Wait:
        """The hop's code begins to wait; give the Wait to `end_wait`."""
        wait = Wait(now, 0.0, kind, on, turn)
        if not self.open_waits and not self.open_works:
            self._since = now
        self.open_waits.append(wait)
        return wait

    def end_wait(self, wait: Wait, now: float) -> None:
        wait.end = now
        self.open_waits.remove(wait)
        if not self.ended:
            if not self.open_waits and not self.open_works:
                self.waited += now - self._since
            self.waits.append(wait)

    def begin_work(self, now: float) -> None:
        if self.open_waits and not self.open_works:
            self.waited += now - self._since
        self.open_works += 1

    def end_work(self, work: Work, now: float) -> None:
        work.end = now
        self.open_works -= 1
        if self.open_waits and not self.open_works:
            self._since = now
        self.works.append(work)

    def finish(self, now: float, outcome: str, error: str = "") -> None:
        """The callee's side has ended; what was still waiting stops counting here."""
        if self.ended:
            return
        if self.open_waits and not self.open_works:
            self.waited += now - self._since
        for wait in self.open_waits:
            self.waits.append(Wait(wait.start, now, wait.kind, wait.on, wait.turn))
        self.ended, self.closed, self.outcome, self.error = now, now, outcome, error
        self.received = self.received or now
        self.accepted = self.accepted or now

    def parts(self, now: float | None = None) -> dict[str, float]:
        """Seconds by part; their sum is exactly `closed - opened` (of a hop that goes on: until `now`)."""
        ended = self.ended or (now if now is not None else self.opened)
        closed = self.closed or ended
        received = self.received or closed
        accepted = self.accepted or ended
        total = closed - self.opened
        queue = max(0.0, accepted - received)
        wait = self.waited
        if not self.ended and self.open_waits and not self.open_works:
            wait += ended - self._since
        wire = max(0.0, total - max(0.0, ended - received))
        serialise = min(self.serialise, max(0.0, total - queue - wait - wire))
        compute = total - queue - wait - wire - serialise
        return {"serialise": serialise, "wire": wire, "queue": queue, "compute": compute, "wait": wait}
