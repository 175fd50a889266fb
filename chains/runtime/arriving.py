"""A stream argument that comes over the wire: from the caller, or from where it is made, or first the one and then the
other.
"""

from __future__ import annotations

from typing import Any, Protocol

from chains.call import Hop
from chains.channel import Channel, End, Lease
from chains.dsl.signature import Checker, Method
from chains.errors import ProtocolError, revive
from chains.runtime.attempt import Attempt
from chains.runtime.claims import Claim, Makers
from chains.runtime.crossing import Giving
from chains.timing import Timing
from chains.wire import frames
from chains.wire.carrier import Carrier
from chains.wire.codec import Encoded, decode
from chains.wire.pb import carrier_pb2 as pb


class Call(Protocol):
    """The call that the argument belongs to, at its callee's end."""

    carrier: Carrier
    number: int
    over: bool

    @property
    def attempt(self) -> Attempt: ...
    @property
    def hop(self) -> Hop: ...


class Arriving:
    """Decoded, and credited to whoever sent it, when the user's code takes an item."""

    def __init__(self, served: Call, number: int, checker: Checker, where: str, argument: Any, makers: Makers) -> None:
        timing, window = served.hop.timing, max(1, argument.window)
        self.producer: Timing | None = Timing("", None, timing.call, timing.turn, "", "", timing.opened)
        self.channel: Channel[Any] = Channel(window)
        self.channel.on_taken = self._taken
        self.ready = self.channel.ready
        self._served = served
        self._number = number
        self._makers = makers
        self._checker = checker
        self._where = where
        self._giving = Giving(window)
        self._ended = False
        self._sent = 0  # of what is queued, how many items the caller has sent; the rest came by the claim
        referred = argument.HasField("reference")
        self._claim = Claim(self, makers, argument.reference, window) if referred else None
        self._told = 0

    def arrive(self, value: Encoded, size: int) -> None:
        channel = self.channel
        if channel.queued >= channel.window and not self._claimed():
            raise ProtocolError("the peer sends without credit", mend="wait for Credit frames")
        if channel.ended is None:
            self._sent += 1
            channel.push(value, size)

    def close(self, close: Any) -> None:
        """The stream has ended, as its maker or the caller says; the first to say it is right."""
        method: Method = self._served.attempt.method
        if close.HasField("error"):
            self.channel.end(End("error", error=revive(frames.detail_from(close.error), method.raises)))
        elif close.cancelled:
            self.channel.cancel(close.cancelled)
        else:
            self.channel.end()

    def take(self) -> Any:
        try:
            value = self.channel.take()
        except BaseException:  # the end, whichever it is
            self._met_end()
            raise
        timing, clock = self._served.hop.timing, self._served.hop.clock
        start = clock.now()
        item = decode(value.header, value.buffers, self._checker, self._where)
        timing.serialise += clock.now() - start
        return item

    def begin(self) -> None: ...

    async def ahead(self, lease: Lease) -> None:
        await lease.news()

    def elsewhere(self) -> None:
        return None

    async def next(self) -> Any:
        await self.channel.arrival()
        return self.take()

    def _taken(self, size: int) -> None:
        served, claim = self._served, self._claim
        if self._sent:
            self._sent -= 1
            if not served.over:
                self._giving.give(served.carrier, served.number, self._number, size)
        elif claim is not None and claim.took(size) and not served.over:
            self._tell(pb.Direct.TAKEN)

    def _met_end(self) -> None:
        if self._ended or self._served.over:
            return
        self._ended = True
        claim = self._claim
        if claim is not None and claim.closed and not claim.over:
            claim.met_end()
            self._tell(pb.Direct.TAKEN, ended=True)
        else:
            self._served.carrier.credit(self._served.number, self._number, 0, urgent=True, ended=True)

    # by the claim

    def _claimed(self) -> int:
        """How many of the items that are queued came by the claim."""
        return len(self.channel._items) - self._sent

    def directed(self, sent: Any) -> None:
        """The caller has sent all that it had: the rest is where the stream is made."""
        if self._claim is None and sent.HasField("reference"):
            self._claim = Claim(self, self._makers, sent.reference, self.channel.window)
        if self._claim is None or sent.step != pb.Direct.CLAIM:
            raise ProtocolError("a Direct about a stream without a reference", mend="send CLAIM with one")
        self._claim.start()

    def claimed(self, value: Encoded, size: int) -> None:
        self.channel.push(value, size)

    def lost(self) -> None:
        """The claim is gone: the caller takes over, also the credit for what has come by it."""
        if not self._served.over:
            self._sent += self._claimed()
            self._tell(pb.Direct.LOST)

    def leave(self) -> None:
        """The reading code has ended: say what it took of the claim."""
        claim = self._claim
        if claim is not None:
            if claim.taken > self._told and not claim.over:
                self._tell(pb.Direct.TAKEN)
            claim.leave()

    def _tell(self, step: pb.Direct.Step, *, ended: bool = False) -> None:
        claim, served = self._claim, self._served
        assert claim is not None
        self._told = claim.taken
        direct = pb.Direct(step=step, stream=self._number, taken=claim.taken, received=claim.received, ended=ended)
        served.carrier.send(served.number, pb.Frame(call=served.number, direct=direct))
