"""Streams that cross to another process: sent on from where they are lent, arriving where they are read, going out from
the method that makes them. Credit is the bytes of an item, and returns when the user's code at the far end took it.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from chains.call import Hop
from chains.channel import Channel, End, Lease
from chains.dsl.signature import Checker
from chains.errors import ChainsError, ProtocolError, describe
from chains.runtime.attempt import Input
from chains.timing import Timing
from chains.wire import frames
from chains.wire.carrier import Carrier
from chains.wire.codec import Encoded, decode, encode
from chains.wire.pb import carrier_pb2 as pb

BREATH = 64
"""After how many items without a pause a producer lets the others work, at most; after fewer when it begins."""


class Crossing(Protocol):
    """The call that a stream belongs to, at either end. Once it is `over` nothing of it is sent any more."""

    carrier: Carrier
    number: int

    @property
    def hop(self) -> Hop: ...
    @property
    def over(self) -> bool: ...


class Forward:
    """Sends a lent stream on. Its items stay in their channel until the callee's code has taken them."""

    def __init__(self, carried: Crossing, number: int, stream: Input, window: int) -> None:
        self._carried = carried
        self._number = number
        self._stream = stream
        self._window = window
        self._under_way = 0
        self._lease: Lease | None = None
        self._credit: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = False

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """The callee has ended: what it did not take is the next reader's."""
        if self._task is not None:
            self._task.cancel()
        self._release()

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    async def _run(self) -> None:
        source = self._stream.source
        source.begin()
        lease = self._lease = await source.channel.lease()
        while True:
            while lease.ready() and self._under_way < self._window:
                if not self._send(lease.look()):
                    return
            if lease.ready():
                self._credit = asyncio.get_running_loop().create_future()
                await self._credit
            elif lease.ended is not None:
                self._close(lease.ended)
                return
            else:
                await source.ahead(lease)

    def _send(self, item: Any) -> bool:
        carried = self._carried
        hop = carried.hop
        if type(item) is Encoded:  # on its way through: it was encoded where it came from
            value = item
        else:
            start = hop.clock.now()
            try:
                value = encode(item)
            except ChainsError as error:
                self._close(End("error", error))
                return False
            hop.timing.serialise += hop.clock.now() - start
        self._under_way += frames.cost(value)
        carried.carrier.item(carried.number, self._number, value)
        return True

    def _close(self, end: End) -> None:
        close = pb.Close(stream=self._number)
        if end.kind == "error" and end.error is not None:
            producer = self._stream.source.producer
            close.error.CopyFrom(frames.detail_to(describe(end.error, producer.node if producer else "caller")))
        elif end.kind == "cancelled":
            close.cancelled = (end.reason or "cancelled")[:1024]
        self._carried.carrier.send(self._carried.number, pb.Frame(call=self._carried.number, close=close))

    def credited(self, credit: Any) -> None:
        """The callee's code took items, or has met the end."""
        self._under_way = max(0, self._under_way - credit.bytes)
        if credit.items:
            self._stream.consumed(credit.items)
            if self._lease is not None:
                self._lease.taken(credit.items)
        if self._credit is not None and not self._credit.done():
            self._credit.set_result(None)
        if credit.ended and not self._over:
            self._over = True
            self._release()
            source = self._stream.source
            if source.ready():
                try:
                    source.take()
                except BaseException:  # the end, whichever it is: it was read
                    pass
            self._stream.exhausted()


class Outgoing(Channel[Any]):
    """The method's own stream. What is offered goes out at once, and holds credit until the caller's code took it."""

    __slots__ = ("_breath", "_next", "_served")

    def __init__(self, served: Crossing, window: int) -> None:
        super().__init__(window)
        self._served = served
        self._breath = 1
        self._next = 2

    def admits(self) -> bool:
        return not self._held and self.queued < self.window and self._end is None and self._breath > 0

    async def send(self, item: Any) -> None:
        """As of every channel. A producer that never waits for anything lets the loop write now and then: after its
        first item, and after every few.
        """
        if self._breath <= 0:
            self._breath = self._next
            self._next = min(BREATH, 4 * self._next)
            await asyncio.sleep(0)  # the writer wakes
            await asyncio.sleep(0)  # and writes
        await super().send(item)

    def offer(self, item: Any) -> bool:
        if self._end is not None:
            raise self._gone()
        if not self.admits():
            return False
        served = self._served
        timing, clock = served.hop.timing, served.hop.clock
        start = clock.now()
        value = encode(item)
        timing.serialise += clock.now() - start
        size = frames.cost(value)
        self.queued += size
        if self.queued > self.peak:
            self.peak = self.queued
        self._breath -= 1
        served.carrier.item(served.number, 0, value)
        return True

    def returned(self, size: int) -> None:
        """The caller's code took items of `size` together. Raises ProtocolError for more than was sent."""
        if self._end is not None:
            return
        if size > self.queued:
            raise ProtocolError("the peer gives credit for what it was never sent", mend="credit items once")
        self.queued -= size
        self.spare()


class Arriving:
    """A stream argument that comes over the wire: decoded, and credited, when the user's code takes an item."""

    def __init__(self, served: Crossing, number: int, checker: Checker, where: str, window: int) -> None:
        timing = served.hop.timing
        self.producer: Timing | None = Timing("", None, timing.call, timing.turn, "", "", timing.opened)
        self.channel: Channel[Any] = Channel(window)
        self.channel.on_taken = self._taken
        self.ready = self.channel.ready
        self._served = served
        self._number = number
        self._checker = checker
        self._where = where
        self._kept = 0
        self._first = True
        self._ended = False

    def arrive(self, value: Encoded, size: int) -> None:
        channel = self.channel
        if channel.queued >= channel.window:
            raise ProtocolError("the peer sends without credit", mend="wait for Credit frames")
        channel.push(value, size)

    def take(self) -> Any:
        try:
            value = self.channel.take()
        except BaseException:  # the end, whichever it is
            if not self._ended:
                self._ended = True
                served = self._served
                if not served.over:
                    served.carrier.credit(served.number, self._number, 0, urgent=True, ended=True)
            raise
        timing, clock = self._served.hop.timing, self._served.hop.clock
        start = clock.now()
        item = decode(value.header, value.buffers, self._checker, self._where)
        timing.serialise += clock.now() - start
        return item

    def begin(self) -> None: ...

    async def ahead(self, lease: Lease) -> None:
        await lease.news()

    async def next(self) -> Any:
        await self.channel.arrival()
        return self.take()

    def _taken(self, size: int) -> None:
        served = self._served
        if served.over:
            return
        self._kept += size
        urgent = self._first or self._kept * 4 >= self.channel.window
        if urgent:
            self._kept = 0
            self._first = False
        served.carrier.credit(served.number, self._number, size, urgent=urgent)
