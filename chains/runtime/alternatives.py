"""A use of a chainlet with more than one way to its answer: another replica when the first is slow (hedging), another
chainlet when nobody answers (fall-back). Each way is a hop of its own below the caller's, so accounts show them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

from chains.call import Hop
from chains.errors import Cancelled, DeadlineExceeded
from chains.runtime.attempt import Attempt
from chains.runtime.drive import Server, Target
from chains.runtime.results import Result, Stream

_END = object()


class Callee(Protocol):
    """A method that can be called: a handle's."""

    target: Target

    def open(self, values: dict[str, Any], avoid: frozenset[str] = frozenset()) -> Result | Stream: ...


class Alternatives:
    """Stands where the replicas of a chainlet do: the hop that it is given is answered by the first of its ways.

    After `hedge` seconds without a first result a second replica is asked too. When all that were asked leave the hop
    unanswered, and the rule of what may be tried again allows it, `fallback` answers instead.
    """

    def __init__(self, first: Callee, hedge: float | None, fallback: Callee | None) -> None:
        self.node = first.target.node
        self.name = ""
        self._first = first
        self._hedge = hedge
        self._fallback = fallback

    # as the replicas

    @property
    def count(self) -> int:
        return 1

    def pick(self, attempt: Attempt, avoid: Collection[str]) -> Server | None:
        return self

    def done(self, server: Server, fault: bool) -> None: ...

    def send(self, attempt: Attempt, over: Callable[[], None]) -> None:
        return None

    async def ready(self) -> None: ...

    # as one of them

    async def serve(self, attempt: Attempt) -> Any:
        hop = attempt.hop
        attempt.accepted = True
        hop.timing.arrive(hop.clock.now(), self.name)
        hop.timing.accepted = hop.timing.received
        race = _Race(hop, lambda callee, avoid: callee.open(dict(attempt.values), avoid))
        try:
            winner = await self._winner(race)
            race.stop(winner)
            hop.timing.replica = winner.drive.place
            return await _given(attempt, winner)
        finally:
            race.stop()

    async def _winner(self, race: _Race) -> _Way:
        """The way that answers first. Raises what the first one's code raised, or the first one's fault."""
        fallback = self._fallback
        first = race.begin(self._first)
        if self._hedge is not None and self._first.target.count > 1:
            race.later(self._hedge, lambda: race.begin(self._first, frozenset((first.drive.place,))))
        while True:
            for way in race.ways:
                if way.failed is None and way.answer.done():
                    error = way.answer.exception()
                    if error is None:
                        return way
                    if not await way.unserved(error):
                        raise error
                    way.failed = error
            if all(way.failed is not None for way in race.ways):
                if fallback is None:
                    assert first.failed is not None
                    raise first.failed
                race.begin(fallback)
                fallback = None
            await race.news()


class _Race:
    """The ways that are tried for one hop."""

    def __init__(self, hop: Hop, opened: Callable[[Callee, frozenset[str]], Result | Stream]) -> None:
        self.ways: list[_Way] = []
        self._hop = hop
        self._opened = opened
        self._news = asyncio.Event()
        self._timer: Any = None

    def begin(self, callee: Callee, avoid: frozenset[str] = frozenset()) -> _Way:
        with self._hop.activate():  # also when a timer begins it
            way = _Way(self._opened(callee, avoid))
        way.answer.add_done_callback(lambda _: self._news.set())
        self.ways.append(way)
        return way

    def later(self, seconds: float, begin: Callable[[], Any]) -> None:
        def due() -> None:
            if len(self.ways) == 1 and not self.ways[0].answer.done() and self.ways[0].drive.place:
                begin()

        clock = self._hop.clock
        self._timer = clock.call_at(clock.now() + seconds, due)

    async def news(self) -> None:
        """Return once a way has come to its answer, or to its end without one."""
        while not any(way.failed is None and way.answer.done() for way in self.ways):
            self._news.clear()
            await self._news.wait()

    def stop(self, winner: _Way | None = None) -> None:
        """Leave all ways but the winner's."""
        if self._timer is not None:
            self._timer.cancel()
        for way in self.ways:
            if way is not winner:
                way.leave()


class _Way:
    """One hop of the race. `answer` is its value or first item."""

    def __init__(self, call: Result | Stream) -> None:
        self.call = call
        self.drive = call._drive
        self.failed: BaseException | None = None
        self.answer: asyncio.Future[Any] = asyncio.ensure_future(_first(call))

    async def unserved(self, error: BaseException) -> bool:
        drive = self.drive
        begun = drive.attempt.accepted or drive.attempt.method.idempotent
        if isinstance(error, DeadlineExceeded) and not begun:
            await drive.ended()  # whether the code had begun over there meanwhile is known at its end
        return drive.unserved(error)

    def leave(self) -> None:
        """It has ended, or another one has answered."""
        self.call._hop.cancel("another attempt answered first")
        self.answer.cancel()
        self.answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody else will ask


async def _first(call: Awaitable[Any] | Stream) -> Any:
    if not isinstance(call, Stream):
        return await call
    try:
        return await call.__anext__()
    except StopAsyncIteration:
        return _END


async def _given(attempt: Attempt, way: _Way) -> Any:
    """The answer; of a stream the rest as well, as fast as its reader gives credit."""
    item, out, timing, clock = way.answer.result(), attempt.out, attempt.hop.timing, attempt.hop.clock
    if out is None:
        return item
    try:
        while item is not _END:
            if not out.offer(item):
                await out.send(item)
            attempt.delivered = True
            timing.items_out += 1
            timing.first_item = timing.first_item or clock.now()
            item = await _first(way.call)
    except Cancelled:
        if out.ended is None:
            raise
    return None
