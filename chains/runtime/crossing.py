"""Streams that cross to another process: sent on from where they are lent, arriving where they are read, going out from
the method that makes them. Credit is the bytes of an item, and returns when the user's code at the far end took it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from chains.call import Hop
from chains.channel import Channel, End, Lease
from chains.errors import ChainsError, ProtocolError, describe
from chains.runtime.attempt import Source
from chains.runtime.loans import Loan
from chains.wire import frames
from chains.wire.carrier import Carrier
from chains.wire.codec import Encoded, encode
from chains.wire.pb import carrier_pb2 as pb

log = logging.getLogger("chains")
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


class Borrowed(Protocol):
    """A lent stream, and who hears what its reader took."""

    source: Source

    def consumed(self, items: int = 1) -> None: ...
    def exhausted(self) -> None: ...


Find = Callable[[Source], Loan | None]


class Forward:
    """Sends a lent stream on. Its items stay in their channel until the callee's code has taken them.

    With a loan the callee gets what comes later from where it is made, and this waits until it is needed again. `find`
    gives the loan, once it is known where the stream is made; `reference` is the one that the callee was told of.
    """

    def __init__(self, carried: Crossing, number: int, stream: Borrowed, window: int, find: Find | None = None) -> None:
        self._carried = carried
        self._number = number
        self._stream = stream
        self._window = window
        self._find = find
        self._loan = find(stream.source) if find is not None else None
        self.reference = self._loan.reference if self._loan is not None else None
        self._claims = False
        self._past = 0  # items that the callee took by its claim
        self._has = 0  # of the next items, those that it has already
        self._owed = 0  # and those that it took before they are here
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
        if self._loan is not None:
            self._loan.recall(self._past)
        self._release()

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    async def _run(self) -> None:
        source = self._stream.source
        source.begin()
        lease = self._lease = await source.channel.lease()
        if self._loan is not None:
            self._loan.begin(lease.wake)
        while True:
            while lease.ready() and (self._has or self._under_way < self._window):
                if self._has:
                    self._skip(lease)
                elif not self._send(lease.look()):
                    return
            if lease.ready():
                self._credit = asyncio.get_running_loop().create_future()
                await self._credit
            elif lease.ended is not None:
                self._close(lease.ended)
                return
            elif self._loan is not None and self._loan.lent:
                self._point(self._loan)
                await lease.news()
            else:
                self._lend(lease)
                await source.ahead(lease)

    def _lend(self, lease: Lease) -> None:
        """The call that makes the stream may not have been on its way when this one left."""
        if self._loan is None and self._find is not None:
            self._loan = self._find(self._stream.source)
            if self._loan is not None:
                self._loan.begin(lease.wake)

    def _point(self, loan: Loan) -> None:
        """All that came here was sent on: from here on the callee's items are where the stream is made."""
        if not self._claims:
            self._claims = True
            producer, callee = self._stream.source.producer, self._carried.hop.timing
            log.debug("the stream of %s goes straight to %s", producer.label if producer else "", callee.label)
            reference = None if self.reference else loan.reference
            direct = pb.Direct(step=pb.Direct.CLAIM, stream=self._number, reference=reference)
            self._carried.carrier.send(self._carried.number, pb.Frame(call=self._carried.number, direct=direct))

    def _skip(self, lease: Lease) -> None:
        """The callee has this item from its claim; its credit comes here."""
        self._has -= 1
        self._under_way += lease.size()
        lease.look()
        self._credited(0)

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
        self._under_way -= credit.bytes
        if self._loan is None:  # with one, it may take what it has from a claim before that is here
            self._under_way = max(0, self._under_way)
        if credit.items:
            self._stream.consumed(credit.items)
            self._credited(credit.items)
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

    def _credited(self, items: int) -> None:
        self._owed += items
        if self._lease is not None:
            items = min(self._owed, self._lease.ahead)
            self._owed = self._owed - items if self._loan is not None else 0
            self._lease.taken(items)

    def told(self, sent: Any) -> None:
        """What the callee says of its claim. Raises ProtocolError when it has none."""
        loan = self._loan
        if loan is None or not self._claims or sent.step not in (pb.Direct.TAKEN, pb.Direct.LOST):
            raise ProtocolError("a Direct about a stream that is not claimed", mend="claim it when CLAIM has come")
        items, self._past = sent.taken - self._past, max(self._past, sent.taken)
        if items > 0:
            self._stream.consumed(items)
            loan.counted(items)
        if sent.ended and not self._over:
            self._over = True
            self._stream.exhausted()
        if sent.step == pb.Direct.LOST and loan.lent:
            self._has = max(0, sent.received - self._past)
            loan.recall(self._past)


class Outgoing(Channel[Any]):
    """The method's own stream. What is offered goes out at once, and holds credit until the caller's code took it.

    While it is `kept`, what is offered stays here, for whoever leases it.
    """

    __slots__ = ("_away", "_breath", "_next", "_served", "kept")

    def __init__(self, served: Crossing, window: int) -> None:
        super().__init__(window)
        self.kept = False
        self._served = served
        self._away = 0
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
        self._breath -= 1
        if self.kept:
            self.push(value, size)
            return True
        self.queued += size
        if self.queued > self.peak:
            self.peak = self.queued
        self._away += size
        served.carrier.item(served.number, 0, value)
        return True

    def drop(self, items: int) -> None:
        """The first of the items that are kept were taken, as the caller says."""
        for _ in range(min(items, len(self._items))):
            self.take()

    def release(self) -> None:
        """Keep no longer: what is here goes to the caller, as will what comes."""
        self.kept = False
        while self._items:
            value, size = self._items.popleft()
            self._away += size
            self._served.carrier.item(self._served.number, 0, value)

    def returned(self, size: int) -> None:
        """The caller's code took items of `size` together. Raises ProtocolError for more than was sent."""
        if self._end is not None:
            return
        if size > self._away:
            raise ProtocolError("the peer gives credit for what it was never sent", mend="credit items once")
        self._away -= size
        self.queued -= size
        self.spare()


class Giving:
    """When credit is given: for the first item at once, then by quarters of the window; in between it rides along."""

    __slots__ = ("_first", "_kept", "_window")

    def __init__(self, window: int) -> None:
        self._window = window
        self._kept = 0
        self._first = True

    def give(self, carrier: Carrier, call: int, stream: int, size: int) -> None:
        self._kept += size
        urgent = self._first or self._kept * 4 >= self._window
        if urgent:
            self._kept = 0
            self._first = False
        carrier.credit(call, stream, size, urgent=urgent)
