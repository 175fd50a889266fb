"""One try of a hop on one replica, and the streams that go into it.

An input stream is borrowed: the callee reads it, and when the callee ends only the reading stops. What the callee did
not take stays where it is, for whoever reads next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, NamedTuple, Protocol

from chains.call import DEADLINE, Hop, Scope, context_of, current_or_none
from chains.channel import Channel, End, Lease
from chains.dsl.signature import Checker, Method
from chains.errors import Cancelled, InvalidValue
from chains.timing import Timing

Transfer = Callable[[Any, Checker, Timing], Any]
"""How a value passes a hop. None stands for by reference: in one process nothing is copied."""


def through_codec(value: Any, checker: Checker, timing: Timing) -> Any:
    """As on the wire: encoded to bytes and decoded by the receiver's annotation. The cost counts as serialise."""
    from chains.wire.codec import decode, encode

    start = time.monotonic()
    encoded = encode(value, checker)
    result = decode(encoded.header, [memoryview(bytes(b)) for b in encoded.buffers], checker)
    timing.serialise += time.monotonic() - start
    return result


async def within(hop: Hop, first: float | None, idle: float | None, arrival: Awaitable[Any]) -> Any:
    """What `arrival` gives, when `hop` gives an item within `first` seconds of its opening or `idle` of now; else the
    hop is cancelled."""
    clock, begins = hop.clock, not hop.timing.items_out
    seconds = first if begins else idle
    if seconds is None:
        return await arrival
    due = hop.timing.opened + seconds if begins else clock.now() + seconds
    late = f"{DEADLINE}: {hop.timing.label} gave no {'first' if begins else 'further'} item within {seconds:g} s"
    timer = clock.call_at(due, lambda: hop.cancel(late))
    try:
        return await arrival
    finally:
        timer.cancel()


class Elsewhere(NamedTuple):
    """A stream that a call to another process makes: that call's end here, and the stream's timeouts in seconds."""

    carried: Any
    first: float | None
    idle: float | None


class Source(Protocol):
    """A stream that can be lent: it has items, and says which hop (if any) produces them.

    In this process a callee takes its items; for one elsewhere they are read ahead, in a lease of its channel: `begin`
    once, then `ahead` to wait for what comes next.
    """

    producer: Timing | None
    channel: Channel[Any]

    def begin(self) -> None: ...
    async def ahead(self, lease: Lease) -> None: ...
    def elsewhere(self) -> Elsewhere | None:
        """Where it is made, when that is another process which is known already."""
        ...

    def ready(self) -> bool: ...
    def take(self) -> Any: ...
    async def next(self) -> Any: ...


class _Loan(Scope):
    """The scope of a stream that its maker lends: held and cancelled with the maker, not with who reads it."""

    kind = "stream"


class Pump:
    """Makes a stream of the caller's own (a generator, a websocket) lendable: its code runs in the caller's scope.

    It starts at the first read, and stops with the scope that made it. It is known to the lender until its end was
    read: what it has made ahead belongs to whoever is given the stream next.
    """

    def __init__(self, items: AsyncIterator[Any], scope: Scope, window: int, forget: Callable[[], None]) -> None:
        hop = scope.hop
        self.producer = hop.timing if hop else None
        self._items = items
        self._scope = scope
        self.channel: Channel[Any] = Channel(window)
        self._task: asyncio.Task[None] | None = None
        self._forget = forget
        self._loan = _Loan(scope, scope.clock, scope.id)
        self._loan.attach(self.channel)
        self._undo = self._loan.on_cancel(self._stop)

    def ready(self) -> bool:
        return self.channel.ready()

    def take(self) -> Any:
        try:
            return self.channel.take()
        except BaseException:  # the end, whichever it is
            self._undo()
            self._forget()
            self._loan.close()
            raise

    def begin(self) -> None:
        if self._task is None and self.channel.ended is None:
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), context=context_of(self._scope))

    async def ahead(self, lease: Lease) -> None:
        await lease.news()

    def elsewhere(self) -> None:
        return None

    async def next(self) -> Any:
        self.begin()
        await self.channel.arrival()
        return self.take()

    def _stop(self, reason: str) -> None:
        self._forget()
        self.channel.cancel(reason)
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            async for item in self._items:
                await self.channel.send(item)
        except Cancelled as cancelled:
            self.channel.cancel(cancelled.reason)
        except asyncio.CancelledError:
            self.channel.cancel("the stream's maker has ended")
        except Exception as error:
            self.channel.end(End("error", error=error))
        else:
            self.channel.end()
        finally:
            aclose = getattr(self._items, "aclose", None)
            if aclose is not None:
                await aclose()


class ChannelSource:
    """A Channel that user code made, lent as it is."""

    def __init__(self, channel: Channel[Any]) -> None:
        self.producer: Timing | None = None
        self.channel = channel
        self.ready = channel.ready
        self.take = channel.take

    def begin(self) -> None: ...

    async def ahead(self, lease: Lease) -> None:
        await lease.news()

    def elsewhere(self) -> None:
        return None

    async def next(self) -> Any:
        return await self.channel.receive()


class Attempt:
    """A hop on its way into a replica. `gone` means that the replica went away under it, `carried` is its way to one
    in another process while it is there. Unless it `may_queue`, a replica without a free slot refuses it. `prefix` is a
    digest of how its prompt begins, "" where it has none.
    """

    __slots__ = ("_open_inputs", "accepted", "carried", "consumed", "delivered", "gone", "hop", "inputs", "may_queue",
                 "method", "out", "prefix", "task", "transfer", "values")  # fmt: skip

    def __init__(
        self, hop: Hop, method: Method, values: dict[str, Any], out: Channel[Any] | None, transfer: Transfer | None
    ) -> None:
        self.hop = hop
        self.method = method
        self.values = values
        self.out = out
        self.transfer = transfer
        self.inputs: list[Input] = []
        self.accepted = self.consumed = self.delivered = self.gone = False
        self.may_queue = True
        self.prefix = ""
        self.task: asyncio.Task[Any] | None = None
        self.carried: Any = None
        self._open_inputs = 0

    def lend(self, name: str, source: Source, checker: Checker, via: Attempt | None) -> Input:
        """The stream argument `name` as the callee will see it."""
        stream = Input(self, source, checker, name, via)
        self.inputs.append(stream)
        self._open_inputs += 1
        self.values[name] = stream
        return stream

    def input_ended(self) -> bool:
        """One input is exhausted; True when it was the last."""
        self._open_inputs -= 1
        return self._open_inputs == 0

    @property
    def at_work(self) -> bool:
        """Whether the method does something now. A stream that waits outside of any turn is silent."""
        timing = self.hop.timing
        waits = timing.open_waits
        streams = bool(self.inputs) or self.out is not None
        works = not streams or timing.turn or timing.open_works or not waits or any(wait.turn for wait in waits)
        return self.accepted and bool(works)

    def waits(self) -> None:
        """It waits for a slot."""

    async def announced(self) -> None:
        """Return once the caller can know that the code of one that has waited begins. Raises Unavailable when it never
        will: it may have asked another replica.
        """

    def may_retry(self) -> bool:
        """The contract's rule: not accepted, or idempotent with nothing consumed and nothing delivered."""
        return not self.accepted or (self.method.idempotent and not self.consumed and not self.delivered)


class Input(AsyncIterator[Any]):
    """A borrowed stream, as the callee's code sees it. Each item is checked against the parameter's annotation."""

    __slots__ = ("_attempt", "_checker", "_ended", "_via", "_where", "name", "on_ended", "source")

    def __init__(self, attempt: Attempt, source: Source, checker: Checker, name: str, via: Attempt | None) -> None:
        self.name = name
        self._attempt = attempt
        self._checker = checker
        self._where = f"{attempt.method.label}({name})"
        self._via = via
        self._ended = False
        self.source = source
        self.on_ended: Callable[[], None] | None = None

    @property
    def attempt(self) -> Attempt:
        return self._attempt

    def __aiter__(self) -> Input:
        return self

    async def __anext__(self) -> Any:
        source, hop = self.source, self._attempt.hop
        if hop.reason:
            raise hop.error()
        try:
            if source.ready():
                item = source.take()
            else:
                item = await self._wait(source, hop)
        except StopAsyncIteration:
            self.exhausted()
            raise
        self.consumed()
        item, transfer = self._checker.check(item, self._where), self._attempt.transfer
        return item if transfer is None else transfer(item, self._checker, hop.timing)

    def consumed(self, items: int = 1) -> None:
        """The callee's code has taken items."""
        self._attempt.consumed = True
        if self._via is not None:
            self._via.consumed = True
        self._attempt.hop.timing.items_in += items

    def exhausted(self) -> None:
        """The callee's code has met the stream's end."""
        if not self._ended:
            self._ended = True
            if self._attempt.input_ended() and self.on_ended is not None:
                self.on_ended()

    async def _wait(self, source: Source, hop: Hop) -> Any:
        scope = current_or_none()
        turn = scope.turn if scope is not None else None
        timing, clock = hop.timing, hop.clock
        wait = timing.begin_wait(clock.now(), "input", source.producer, turn.number if turn else 0)
        try:
            return await source.next()
        finally:
            timing.end_wait(wait, clock.now())


class BlockingInput(Iterator[Any]):
    """A borrowed stream for a plain `def` method, which reads it in its own thread. It can be lent on."""

    def __init__(self, stream: Input, loop: asyncio.AbstractEventLoop) -> None:
        self._stream = stream
        self._loop = loop

    def __aiter__(self) -> Input:
        return self._stream

    def __next__(self) -> Any:
        more, item = asyncio.run_coroutine_threadsafe(self._step(), self._loop).result()
        if not more:
            raise StopIteration
        return item

    async def _step(self) -> tuple[bool, Any]:
        """The next item; a cancel of the hop ends the wait for it, so that the thread goes on to its end."""
        hop, task = self._stream.attempt.hop, asyncio.current_task()

        def leave(reason: str) -> None:
            if task is not None:
                task.cancel()

        undo = hop.on_cancel(leave)
        try:
            return True, await self._stream.__anext__()
        except StopAsyncIteration:
            return False, None
        except asyncio.CancelledError:
            raise hop.error() from None
        finally:
            undo()


async def _from_iterable(items: Any) -> AsyncIterator[Any]:
    if isinstance(items, list | tuple):
        for item in items:
            yield item
        return
    done = object()
    iterator = iter(items)
    while (item := await asyncio.to_thread(next, iterator, done)) is not done:
        yield item


class Lender:
    """Turns what a caller passes as a stream into a Source. A generator that is passed twice is one stream, read on."""

    def __init__(self) -> None:
        self._pumps: dict[int, tuple[Pump, Any]] = {}  # with what is lent, so that no other takes its id meanwhile

    def __len__(self) -> int:
        return len(self._pumps)

    def source(self, value: Any, where: str, scope: Scope, window: int) -> tuple[Source, Attempt | None]:
        """How `value` is lent, and through which attempt it came. Raises InvalidValue for what is no stream."""
        if isinstance(value, BlockingInput):
            value = aiter(value)
        if isinstance(value, Input):
            return value.source, value.attempt
        if isinstance(value, Channel):
            return ChannelSource(value), None
        lent = getattr(value, "as_source", None)
        if lent is not None:
            source: Source = lent()
            return source, None
        if hasattr(value, "__aiter__"):
            return self._pump(value, aiter(value), scope, window), None
        if hasattr(value, "__iter__") and not isinstance(value, str | bytes | dict):
            return self._pump(value, _from_iterable(value), scope, window), None
        raise InvalidValue(
            f"{where} is {type(value).__name__}, not a stream",
            mend="pass an async iterator, e.g. an async generator",
        )

    def _pump(self, value: Any, items: AsyncIterator[Any], scope: Scope, window: int) -> Pump:
        key = id(value)
        if key not in self._pumps:
            self._pumps[key] = Pump(items, scope, window, lambda: self._forget(key)), value
        return self._pumps[key][0]

    def _forget(self, key: int) -> None:
        self._pumps.pop(key, None)
