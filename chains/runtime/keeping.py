"""The maker's part in a stream that goes past its caller: it keeps the items until whoever has the token has taken
them, or until the caller wants them back.
"""

from __future__ import annotations

import asyncio
from typing import Any

from chains.call import Hop
from chains.channel import Channel, End, Lease
from chains.errors import ChainsError, NotFound, ProtocolError, describe
from chains.runtime.attempt import Source, within
from chains.runtime.crossing import Crossing, Forward, Outgoing
from chains.runtime.loans import TOKEN
from chains.timing import Timing
from chains.wire import frames
from chains.wire.carrier import Carrier
from chains.wire.codec import Encoded
from chains.wire.pb import carrier_pb2 as pb


class Keeps:
    """The lent streams of one replica: by token those that nobody has claimed yet, and those whose code is done."""

    def __init__(self) -> None:
        self.unclaimed: dict[bytes, Keep] = {}
        self.rests: dict[Keep, None] = {}
        self._settled: asyncio.Future[None] | None = None

    def claim(self, carrier: Carrier, number: int, opening: Any) -> Port:
        """Answer a claim: a token can be claimed once."""
        keep = self.unclaimed.pop(opening.claim, None)
        if keep is None:
            error = NotFound("no stream is lent under this token", mend="claim it once, while its call goes on")
            return Refused(carrier, number, error)
        keep.claimed = claimed = Claimed(keep, carrier, number, max(1, opening.window))
        return claimed

    def ended(self, keep: Keep) -> None:
        self.rests.pop(keep, None)
        if self._settled is not None and not self._settled.done() and not self.rests:
            self._settled.set_result(None)

    async def settled(self, grace: float) -> None:
        """Return once what ended code has left was read, at most `grace` seconds from now."""
        if self.rests:
            self._settled = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._settled], timeout=grace)


class Keep:
    """The stream of one call, lent and recalled as its caller says. When the code ends, its End waits for the rest."""

    def __init__(self, call: Crossing, out: Outgoing, keeps: Keeps) -> None:
        self.call = call
        self.out = out
        self.claimed: Claimed | None = None
        self.taken = 0
        self.first: float | None = None
        self.idle: float | None = None
        self._keeps = keeps
        self._token = b""
        self._end: pb.Frame | None = None
        self._since = 0.0

    def told(self, sent: Any) -> None:
        """What the caller says. Raises ProtocolError for what it may not say."""
        if sent.step == pb.Direct.LEND:
            self._lend(sent)
        elif sent.step == pb.Direct.RECALL:
            if sent.token == self._token:
                self._recall(sent.taken)
        else:
            raise ProtocolError("a caller sent a Direct that is not its to send", mend="send LEND, RECALL or CLAIM")

    def _lend(self, sent: Any) -> None:
        if self._token or len(sent.token) != TOKEN or sent.token in self._keeps.unclaimed:
            raise ProtocolError("a stream is lent twice, or under a bad token", mend="recall it; draw 128 random bits")
        self._token, self.taken = sent.token, 0
        self.first = sent.first if sent.HasField("first") else None
        self.idle = sent.idle if sent.HasField("idle") else None
        self._keeps.unclaimed[sent.token] = self
        self.out.kept = True
        direct = pb.Direct(step=pb.Direct.LENT, token=sent.token)
        self.call.carrier.send(self.call.number, pb.Frame(call=self.call.number, direct=direct))

    def _recall(self, taken: int) -> None:
        self._forget("it was recalled")
        self.out.drop(taken - self.taken)
        self.out.release()
        self._finish()

    def _forget(self, why: str) -> None:
        self._keeps.unclaimed.pop(self._token, None)
        self._token = b""
        if self.claimed is not None:
            self.claimed.end(why)

    def read(self) -> None:
        """The reader's code has met the end: nothing is left."""
        self._token = b""
        self._finish()

    def end(self, frame: pb.Frame, end: End) -> None:
        """The code has ended: send its End now, or when nobody can want an item any more."""
        if end.kind != "cancelled" and self._token:
            self._since = self.call.hop.clock.now()
            self._end = frame
            self._keeps.rests[self] = None
            self.out.end(end)
        else:
            self._forget("its maker was cancelled")
            self.call.carrier.end(frame, None)

    def drop(self) -> None:
        """The caller has left: nobody will ask for the rest."""
        self._forget("its caller has left")
        self._finish()

    def _finish(self) -> None:
        frame, self._end = self._end, None
        if frame is not None:
            self._keeps.ended(self)
            frame.end.kept = self.call.hop.clock.now() - self._since
            self.call.carrier.end(frame, None)


class Port:
    """A call on which nothing is said but credit and the end of it."""

    def on_credit(self, credit: Any) -> None: ...
    def on_cancel(self, reason: str) -> None: ...
    def on_lost(self, why: str) -> None: ...
    def on_hold(self, held: bool) -> None: ...
    def on_played(self, turn: int, ms: float) -> None: ...
    def on_queued(self) -> None:
        self._wrong()

    def on_accepted(self, queued: float) -> None:
        self._wrong()

    def on_item(self, stream: int, value: Encoded, size: int) -> None:
        self._wrong()

    def on_close(self, stream: int, close: Any) -> None:
        self._wrong()

    def on_turn(self, turn: Any) -> None:
        self._wrong()

    def on_account(self, account: Any) -> None:
        self._wrong()

    def on_direct(self, sent: Any) -> None:
        self._wrong()

    def on_end(self, end: Any, value: Encoded | None) -> None:
        self._wrong()

    def _wrong(self) -> None:
        raise ProtocolError("a claim takes credit and a cancel, nothing else", mend="send Credit or Cancel")


class Refused(Port):
    """A claim of nothing."""

    def __init__(self, carrier: Carrier, number: int, error: ChainsError) -> None:
        frame = pb.Frame(call=number)
        frame.end.kind = frames.ERROR
        frame.end.error.CopyFrom(frames.detail_to(describe(error, "")))
        asyncio.get_running_loop().call_soon(carrier.end, frame, None)  # once the carrier knows the call


class Claimed(Port):
    """A claim: sends what is kept to whoever made it. It ends with its reader, its connection or a recall."""

    def __init__(self, keep: Keep, carrier: Carrier, number: int, window: int) -> None:
        self.carrier = carrier
        self.number = number
        self.over = False
        self._keep = keep
        self._forward = Forward(self, 0, _Kept(keep), window)
        self._forward.start()

    @property
    def hop(self) -> Hop:
        return self._keep.call.hop

    def on_credit(self, credit: Any) -> None:
        self._forward.credited(credit)

    def on_cancel(self, reason: str) -> None:
        self.end("")

    def on_lost(self, why: str) -> None:
        self.end(why)

    def end(self, why: str) -> None:
        """Send no more; with `why` the reader is told that it is not to blame."""
        if not self.over:
            self.over = True
            self._keep.claimed = None
            self._forward.stop()
            frame = pb.Frame(call=self.number)
            frame.end.kind = frames.CANCELLED if why else frames.DONE
            frame.end.reason = why
            self.carrier.end(frame, None)


class _Kept:
    """A kept stream as a Forward sees what it sends on."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self.source: Source = self
        self.channel: Channel[Any] = keep.out
        self.producer: Timing | None = keep.call.hop.timing
        self.ready = keep.out.ready
        self.take = keep.out.take

    def begin(self) -> None: ...

    async def ahead(self, lease: Lease) -> None:
        keep = self._keep
        if lease.ahead:
            await lease.news()
        else:
            await within(keep.call.hop, keep.first, keep.idle, lease.news())

    def elsewhere(self) -> None:
        return None

    async def next(self) -> Any:
        return await self.channel.receive()

    def consumed(self, items: int = 1) -> None:
        self._keep.taken += items

    def exhausted(self) -> None:
        self._keep.read()
