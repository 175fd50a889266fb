"""What a call gives its caller: a Result to await, or a Stream to iterate. Leaving either cancels the hop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Generator, Iterator
from typing import Any

from chains.call import Hop, current_or_none
from chains.channel import Channel, Lease
from chains.dsl.specs import CallOptions
from chains.runtime.attempt import Elsewhere, within
from chains.runtime.drive import Drive
from chains.timing import Timing


class Result(Awaitable[Any]):
    """What a unary call will give. Awaiting it waits for the value; dropping it cancels the hop."""

    __slots__ = ("_drive", "_future", "_hop")

    def __init__(self, hop: Hop, drive: Drive) -> None:
        self._hop = hop
        self._drive = drive
        self._future = drive.future = drive.line.loop.create_future()
        if hop.cancelled:
            drive.settle(hop.error())

    @property
    def timing(self) -> Timing:
        return self._hop.timing

    def __await__(self) -> Generator[Any, None, Any]:
        future = self._future
        if future.done():
            return future.result()
        hop, clock = self._hop, self._hop.clock
        waiter = current_or_none()
        turn = waiter.turn if waiter is not None else None
        timing = waiter.hop.timing if waiter is not None and waiter.hop is not None else None
        wait = timing.begin_wait(clock.now(), "hop", hop.timing, turn.number if turn else 0) if timing else None
        try:
            return (yield from future)
        except asyncio.CancelledError:
            hop.cancel("consumer left")
            raise
        finally:
            if timing is not None and wait is not None:
                timing.end_wait(wait, clock.now())

    def __del__(self) -> None:
        if not self._future.done():
            self._drive.line.soon(self._hop.cancel, "the result was dropped")


class Stream(AsyncIterator[Any]):
    """What a streaming call gives, item by item. `break` out of its loop, `aclose()` and dropping it cancel the hop.

    As an argument of another call it is lent: that callee reads it, and it stays in the scope of whoever made it.
    """

    __slots__ = ("__weakref__", "_channel", "_drive", "_hop", "_options")

    def __init__(self, hop: Hop, channel: Channel[Any], options: CallOptions, drive: Drive) -> None:
        self._hop = hop
        self._channel = channel
        self._options = options
        self._drive = drive

    @property
    def timing(self) -> Timing:
        return self._hop.timing

    @property
    def queued_bytes(self) -> int:
        return self._channel.queued

    @property
    def peak_bytes(self) -> int:
        return self._channel.peak

    def __aiter__(self) -> Reader:
        return Reader(self)

    async def __anext__(self) -> Any:
        channel = self._channel
        if channel.ready():
            return channel.take()
        waiter = current_or_none()
        if waiter is None or waiter.hop is None:
            return await self.next()
        timing, clock, turn = waiter.hop.timing, self._hop.clock, waiter.turn
        wait = timing.begin_wait(clock.now(), "hop", self._hop.timing, turn.number if turn else 0)
        try:
            return await self.next()
        finally:
            timing.end_wait(wait, clock.now())

    async def next(self) -> Any:
        """The next item, within the `first` or `idle` timeout."""
        return await self.within(self._channel.receive())

    async def within(self, arrival: Awaitable[Any]) -> Any:
        """What `arrival` gives, within the `first` or `idle` timeout."""
        return await within(self._hop, self._options.first, self._options.idle, arrival)

    async def aclose(self) -> None:
        """Cancel the hop; return when its code has run its `finally`."""
        self._hop.cancel("consumer left")
        await self._drive.ended()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def as_source(self) -> _Lent:
        return _Lent(self)

    def __del__(self) -> None:
        if self._channel.ended is None:
            self._drive.line.soon(self._hop.cancel, "consumer left")


class Reader(AsyncIterator[Any]):
    """One loop over a stream. When the loop is left, so is the stream."""

    __slots__ = ("_stream",)

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __aiter__(self) -> Reader:
        return self

    def __anext__(self) -> Awaitable[Any]:
        return self._stream.__anext__()

    def __del__(self) -> None:
        self._stream.__del__()


class _Lent:
    """A hop's stream on loan to another hop."""

    def __init__(self, stream: Stream, reader: Reader | None = None) -> None:
        self._stream = stream
        self._reader = reader  # kept: a reader that is dropped cancels the stream
        self.producer: Timing | None = stream.timing
        self.ready = stream._channel.ready
        self.take = stream._channel.take
        self.channel = stream._channel

    def begin(self) -> None: ...

    async def ahead(self, lease: Lease) -> None:
        """The stream's timeouts run while its reader has taken all that came: until then nobody waits for it."""
        if lease.ahead:
            await lease.news()
        else:
            await self._stream.within(lease.news())

    def elsewhere(self) -> Elsewhere | None:
        carried, options = self._stream._drive.attempt.carried, self._stream._options
        return None if carried is None else Elsewhere(carried, options.first, options.idle)

    async def next(self) -> Any:
        return await self._stream.next()


class BlockingStream(Iterator[Any]):
    """A stream as a plain `def` method reads it, in its own thread. As an argument it is lent, like any stream."""

    def __init__(self, stream: Stream, loop: asyncio.AbstractEventLoop) -> None:
        self._stream = stream
        self._reader = aiter(stream)
        self._loop = loop

    def __aiter__(self) -> Reader:
        return self._reader

    def as_source(self) -> _Lent:
        return _Lent(self._stream, self._reader)

    def __next__(self) -> Any:
        async def step() -> tuple[bool, Any]:
            try:
                return True, await self._reader.__anext__()
            except StopAsyncIteration:
                return False, None

        more, item = asyncio.run_coroutine_threadsafe(step(), self._loop).result()
        if not more:
            raise StopIteration
        return item
