"""Time: the clock that is injected everywhere, the account of one hop's wall time, what a client has played."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from chains.errors import InvalidValue
from chains.trace import new_span


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


class _Due:
    """A timer of a LoopClock."""

    __slots__ = ("clock", "fn")

    def __init__(self, clock: LoopClock, fn: Callable[[], None]) -> None:
        self.clock = clock
        self.fn: Callable[[], None] | None = fn

    def cancel(self) -> None:
        if self.fn is not None:
            self.fn = None
            self.clock.dropped()


class LoopClock:
    """The real time, on the running event loop.

    Nearly every timer is cancelled before it fires (each hop has a deadline), so timers lie in a heap of plain tuples
    behind one timer of the loop's: a third of the cost of a loop timer each.
    """

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Due]] = []
        self._order = itertools.count()
        self._dead = 0
        self._armed: asyncio.TimerHandle | None = None
        self._armed_for = math.inf

    def call_at(self, when: float, fn: Callable[[], None]) -> Timer:
        due = _Due(self, fn)
        heapq.heappush(self._heap, (when, next(self._order), due))
        if when < self._armed_for:
            self._arm(when)
        return due

    def dropped(self) -> None:
        """A timer was cancelled; when most are, the heap is made anew without them."""
        self._dead += 1
        if self._dead > 256 and self._dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].fn is not None]
            heapq.heapify(self._heap)
            self._dead = 0

    def _arm(self, when: float) -> None:
        if self._armed is not None:
            self._armed.cancel()
        self._armed_for = when
        # its own context: the one of whoever armed it would keep that hop, and all above it, alive
        delay = max(0.0, when - time.monotonic())
        self._armed = asyncio.get_running_loop().call_later(delay, self._fire, context=Context())

    def _fire(self) -> None:
        self._armed, self._armed_for = None, math.inf
        while self._heap:
            when, _, due = self._heap[0]
            if due.fn is not None and when > time.monotonic():
                self._arm(when)
                return
            heapq.heappop(self._heap)
            if due.fn is None:
                self._dead -= 1
            else:
                fn, due.fn = due.fn, None
                self._call(fn)

    def _call(self, fn: Callable[[], None]) -> None:
        """One timer that fails must not keep the others from firing; the loop tells of it, as of any callback."""
        try:
            fn()
        except Exception as error:
            context = {"message": "a timer failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)


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
NOTES, NAME, TEXT, TEXTS = 64, 128, 1024, 16
"""How many notes a hop has, the characters of a name and of a text, the texts of a list: what is more is left out."""
Note = str | bool | int | float | list[str] | tuple[str, ...]


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
    serialise: float = 0.0
    waited: float = 0.0
    open_works: int = 0
    open_waits: dict[Wait, None] = field(default_factory=dict)
    waits: deque[Wait] | tuple[()] = ()
    works: deque[Work] | tuple[()] = ()
    span: int = field(default_factory=new_span)
    notes: dict[str, Note] = field(default_factory=dict)
    _since: float = 0.0
    _sent: float = 0.0

    @property
    def label(self) -> str:
        return f"{self.node}.{self.method}"

    @property
    def weight(self) -> int:
        """What it counts for among the hops that are kept: 1, and 1 more for each 1,024 characters of its notes."""
        return 1 + (sum(map(_length, list(self.notes.values()))) >> 10 if self.notes else 0)

    def arrive(self, now: float, replica: str) -> None:
        """The replica has it. What was encoded until now was on the way, what comes later is the callee's."""
        self.received, self.replica, self._sent = now, replica, self.serialise

    def again(self) -> None:
        """Another attempt begins; what the one before did counts as time on the way."""
        self.attempts += 1
        self.sent_back()

    def sent_back(self) -> None:
        """The replica took it not, having no free slot: the way there and back counts as time on the way."""
        self.received = self.accepted = self.waited = 0.0

    def note(self, name: Any, value: Any) -> None:
        """Remember something of the hop under a name, which its span bears; the last value of a name stands. Raises
        InvalidValue for a name that is no text of 1 to 128 characters, and for values of other types.
        """
        if not isinstance(name, str) or not 0 < len(name) <= NAME or not name.isascii():
            raise InvalidValue(f"note({name!r:.140}) is no name", mend=f"give ASCII text of 1 to {NAME} characters")
        if isinstance(value, str):
            value = _short(value)
        elif isinstance(value, list | tuple) and all(isinstance(text, str) for text in value):
            value = tuple(_short(text) for text in value[:TEXTS])
        elif not isinstance(value, bool | int | float):
            raise InvalidValue(
                f"note({name!r}) is {type(value).__name__}", mend="give str, int, float, bool or a list of str"
            )
        if name in self.notes or len(self.notes) < NOTES:
            self.notes[name] = value

    def begin_wait(self, now: float, kind: Literal["hop", "input", "credit"], on: Timing | None, turn: int) -> Wait:
        """The hop's code begins to wait; give the Wait to `end_wait`."""
        wait = Wait(now, 0.0, kind, on, turn)
        if not self.open_waits and not self.open_works:
            self._since = now
        self.open_waits[wait] = None
        return wait

    def end_wait(self, wait: Wait, now: float) -> None:
        wait.end = now
        if not self.ended:
            self._keep(wait)  # before it is open no longer: who looks from another thread finds it in one of the two
        self.open_waits.pop(wait, None)
        if not self.ended and not self.open_waits and not self.open_works:
            self.waited += now - self._since

    def begin_work(self, now: float) -> None:
        if self.open_waits and not self.open_works:
            self.waited += now - self._since
        self.open_works += 1

    def end_work(self, work: Work, now: float) -> None:
        work.end = now
        self.open_works -= 1
        if self.open_waits and not self.open_works:
            self._since = now
        self.add_work(work)

    def add_work(self, work: Work) -> None:
        if not isinstance(self.works, deque):
            self.works = deque(maxlen=RECENT)
        self.works.append(work)

    def _keep(self, wait: Wait) -> None:
        if not isinstance(self.waits, deque):
            self.waits = deque(maxlen=RECENT)
        self.waits.append(wait)

    def finish(self, now: float, outcome: str, error: str = "") -> None:
        """The callee's side has ended; what was still waiting stops counting here."""
        if self.ended:
            return
        if self.open_waits and not self.open_works:
            self.waited += now - self._since
        for wait in self.open_waits:
            self._keep(Wait(wait.start, now, wait.kind, wait.on, wait.turn))
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
        before = max(0.0, total - max(0.0, ended - received))
        sent = min(self._sent if self.received else self.serialise, before)
        wire = before - sent
        inside = min(max(0.0, self.serialise - self._sent), max(0.0, total - queue - wait - before))
        serialise = sent + inside
        compute = total - queue - wait - before - inside
        return {"serialise": serialise, "wire": wire, "queue": queue, "compute": compute, "wait": wait}


def _length(note: Note) -> int:
    if isinstance(note, bool | int | float):
        return 0
    return len(note) if isinstance(note, str) else sum(map(len, note))


def _short(text: str) -> str:
    """Without the surrogates that UTF-8 has no place for."""
    return text[:TEXT] if text.isascii() else text[:TEXT].encode("utf-8", "replace").decode()


class Played:
    """How many milliseconds of each turn's reply the client says it has played."""

    def __init__(self) -> None:
        self._ms: dict[int, float] = {}
        self._watchers: list[Callable[[int, float], None]] = []
        self._changed = asyncio.Event()

    def report(self, turn: int, ms: float) -> None:
        """The client has played `ms` of turn `turn`; a smaller figure than before, or a 10,001st turn, is ignored."""
        if ms > self._ms.get(turn, -1.0) and (turn in self._ms or len(self._ms) < 10_000):
            self._ms[turn] = ms
            self._changed.set()
            self._changed = asyncio.Event()
            for fn in list(self._watchers):
                fn(turn, ms)

    def watch(self, fn: Callable[[int, float], None]) -> Callable[[], None]:
        """Call `fn(turn, ms)` for what is known, and on each change."""
        for turn, ms in self._ms.items():
            fn(turn, ms)
        self._watchers.append(fn)
        return lambda: self._watchers.remove(fn)

    def of(self, turn: int) -> float:
        return self._ms.get(turn, 0.0)

    async def reached(self, turn: int, ms: float) -> None:
        """Return once the client has played `ms` of turn `turn`."""
        while self.of(turn) < ms:
            await self._changed.wait()
