"""The callee's side of a hop from another process: an Open becomes an attempt on the replica of this process."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterator
from contextvars import Context
from typing import Any

from chains.call import DEADLINE, Hop, Scope, Turn, context_of
from chains.channel import DONE, Channel, End
from chains.dsl.signature import Checker, Method
from chains.errors import Cancelled, ChainsError, InvalidValue, NotFound, ProtocolError, Unavailable, describe
from chains.runtime.arriving import Arriving
from chains.runtime.attempt import Attempt
from chains.runtime.claims import Makers
from chains.runtime.crossing import Outgoing
from chains.runtime.keeping import Keep, Keeps
from chains.runtime.mirror import root_of, told
from chains.runtime.replica import Replica
from chains.runtime.scopes import CALLS, Scopes
from chains.timing import Timing
from chains.wire import frames
from chains.wire.accounts import HOPS, shorten, write_account, write_progress
from chains.wire.carrier import Carrier, Port
from chains.wire.codec import Encoded, decode, encode
from chains.wire.pb import carrier_pb2 as pb
from chains.wire.settings import FRAME

NEWS = 0.5
"""Seconds after which the caller of what goes on here hears of the hops that have ended in it."""
OTHERS = 0.02
"""Seconds after which peers hear of load that others have made, and between looks at deadlines."""


class Host:
    """Answers calls of other processes with one replica. Hops that its code makes are told to `record`."""

    def __init__(self, replica: Replica, after: Callable[[Hop], None], makers: Makers) -> None:
        self.replica = replica
        self.after = after
        self.makers = makers
        self.keeps = Keeps()
        self.open: dict[Timing, list[Timing]] = {}
        self.scopes = Scopes(replica.clock, self._turned)
        self.checkers = {
            name: {param.name: param.checker for param in method.params if not param.stream}
            for name, method in replica.node.methods.items()
        }
        self._peers: dict[Carrier, tuple[int, tuple[Any, ...]]] = {}
        self._changes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._news: asyncio.TimerHandle | None = None
        self.served: dict[Served, None] = {}

    # peers

    def joined(self, carrier: Carrier) -> None:
        self._peers[carrier] = (-1, ())
        carrier.report = lambda: self._report(carrier)

    def left(self, carrier: Carrier) -> None:
        self._peers.pop(carrier, None)

    def changed(self) -> None:
        """The load has changed: whoever is written to anyway hears it with that, the others a little later."""
        self._changes += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(OTHERS, self._tell)

    def _tell(self) -> None:
        self._timer = None
        self._changes += 1  # what nobody tells of: how long a call has stood still, whether it waits
        for carrier in list(self._peers):
            report = self._report(carrier)
            if report:
                carrier.urge_bytes(report)
        if self.replica.running:
            self.changed()

    def _report(self, carrier: Carrier) -> bytes:
        """The load as a frame, when it is another than this peer knows."""
        replica = self.replica
        looked, known = self._peers.get(carrier, (self._changes, ()))
        if looked == self._changes:
            return b""
        self._peers[carrier] = (self._changes, known)
        if known == _IDLE and not replica.running and not replica.waiting and replica.state == "ready":
            return b""
        load = replica.load()
        mine = min(len(carrier.calls), load.running + load.queued)
        now = (load.state, load.running, load.queued, load.batch, load.active, load.streams, load.turns, load.draining,
               int(load.idle_s), mine)  # fmt: skip
        if now == known:
            return b""
        self._peers[carrier] = (self._changes, now)
        sent = pb.Load(
            state=load.state,
            running=load.running,
            queued=load.queued,
            batch=load.batch,
            mine=mine,
            active=load.active,
            streams=load.streams,
            turns=load.turns,
            draining=load.draining,
            queue_wait=load.queue_wait_ms / 1e3,
            idle=load.idle_s,
        )
        return frames.framed(pb.Frame(load=sent))

    def watch(self) -> None:
        """Look after the deadlines of what runs here. Its callers do too, and tell; so now and then is enough."""
        if self._watch is None:
            self._watch = asyncio.get_running_loop().call_later(OTHERS, self._late)

    def _late(self) -> None:
        self._watch, now = None, self.replica.clock.now()
        limited = [served for served in self.served if served.hop.deadline is not None]
        for served in limited:
            if served.hop.deadline is not None and served.hop.deadline <= now:
                served.hop.cancel(f"{DEADLINE}: {served.hop.timing.label} gave no result in time")
        if limited:
            self.watch()

    # calls

    def answer(self, carrier: Carrier, number: int, opening: Any, arguments: dict[str, Encoded]) -> Port:
        """Begin the call that a peer opens."""
        if opening.claim:
            return self.keeps.claim(carrier, number, opening)
        self.changed()
        return Served(self, carrier, number, opening, arguments)

    def record(self, timing: Timing) -> None:
        """A hop that code of this process made has ended: it travels back with the hop that it belongs to."""
        root = timing
        while root.parent is not None:
            root = root.parent
        hops = self.open.get(root)
        if hops is not None:
            hops.append(timing)
            if len(hops) > 4 * CALLS:
                del hops[:CALLS]
            if self._news is None:
                self._news = asyncio.get_running_loop().call_later(NEWS, self._tell_hops, context=Context())

    def _tell_hops(self) -> None:
        self._news = None
        for served in self.served:
            served.tell_hops(self.open[served.hop.timing])

    def _turned(self, event: str, turn: Turn) -> None:
        """Something has become of a turn that the code here made: its caller hears of it."""
        root = root_of(turn)
        served = next((one for one in self.served if one.hop is root), None)
        if served is not None and not served.over:
            if event in ("turn_cancelled", "turn_ended"):
                served.tell_hops(self.open[served.hop.timing])
            sent = told(turn, event.removeprefix("turn_"), served.hop.timing)
            served.carrier.send(served.number, pb.Frame(call=served.number, turn=sent))


class _Attempt(Attempt):
    """Tells its caller when the user's code begins."""

    __slots__ = ("_accepted", "_served")

    def __init__(self, served: Served, hop: Hop, method: Method, out: Channel[Any] | None) -> None:
        self._served = weakref.ref(served)  # it holds this one, and its host holds it while the call goes on
        super().__init__(hop, method, {}, out, None)

    @property
    def accepted(self) -> bool:
        return self._accepted

    @accepted.setter
    def accepted(self, value: bool) -> None:
        self._accepted = value
        served = self._served()
        if value and served is not None:
            served.accepted()

    def waits(self) -> None:
        served = self._served()
        if served is not None:
            served.carrier.queued(served.number)

    async def announced(self) -> None:
        served = self._served()
        if served is None:
            return
        written = asyncio.get_running_loop().create_future()
        served.carrier.once_written(lambda: None if written.done() else written.set_result(None))
        await written
        if served.carrier.lost:
            raise Unavailable(f"the caller went away: {served.carrier.lost}")


class Served:
    """One call from elsewhere. The callee's end of a call on a carrier."""

    __slots__ = ("__weakref__", "_arguments", "_begun", "_keep", "_task", "_tells", "_turn", "arriving", "attempt",
                 "carrier", "fault", "hop", "host", "number", "over")  # fmt: skip

    def __init__(self, host: Host, carrier: Carrier, number: int, opening: Any, arguments: dict[str, Encoded]) -> None:
        self.host = host
        self.carrier, self.number = carrier, number
        self.fault: ChainsError | None = None
        self._arguments = arguments
        self.over = self._begun = False
        replica = host.replica
        method = replica.node.methods.get(opening.method)
        if method is None:
            known = ", ".join(replica.node.methods) or "none"
            self.fault = NotFound(f"{replica.node.name} has no method {opening.method:.100}", mend=f"it has {known}")
            method = _NOTHING
        scope = host.scopes.of(opening)
        timed = opening.HasField("time_left")
        deadline = replica.clock.now() + max(0.0, opening.time_left) if timed else None
        self.hop = hop = Hop(scope, replica.node.name, method.name, deadline)
        hop.timing.span = opening.span or hop.timing.span
        self._turn = scope if isinstance(scope, Turn) else None
        out = Outgoing(self, max(1, opening.window)) if method.streams_out else None
        self.attempt = _Attempt(self, hop, method, out)
        self.attempt.may_queue = not opening.send_back
        self._keep: Keep | None = None
        self._tells = opening.accounts
        self.arriving = [self._lend(one, number) for number, one in enumerate(opening.streams, 1)]
        host.open[hop.timing] = []
        host.served[self] = None
        if out is not None:
            hop.attach(out)
        loop = asyncio.get_running_loop()
        self.attempt.task = self._task = asyncio.Task(self._run(), loop=loop, context=context_of(hop))
        hop.on_cancel(self._cancelled)
        if deadline is not None:
            host.watch()
        if opening.held:
            hop.hold()

    def _lend(self, argument: Any, number: int) -> Arriving:
        method = self.attempt.method
        param = next((one for one in method.params if one.name == argument.name and one.stream), None)
        if param is None and self.fault is None:
            self.fault = InvalidValue(
                f"{method.label} takes no stream {argument.name:.100}", mend=f"its signature is {method.shape}"
            )
        checker = param.checker if param is not None else _ANYTHING
        arriving = Arriving(self, number, checker, f"{method.label}({argument.name})", argument, self.host.makers)
        self.attempt.lend(argument.name, arriving, checker, None)
        return arriving

    async def _run(self) -> None:
        self._begun = True
        try:
            value = await self._result()
        except asyncio.CancelledError:
            self._finish(Cancelled("the code was cancelled from within"), None)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a method that calls sys.exit ends its hop, not the process
            self._finish(error, None)
        else:
            self._finish(None, value)

    async def _result(self) -> Encoded | None:
        attempt, method, timing, clock = self.attempt, self.attempt.method, self.hop.timing, self.hop.clock
        if self.fault is not None:
            raise self.fault
        start = clock.now()
        checkers = self.host.checkers[method.name]
        given = {
            name: decode(value.header, value.buffers, checkers[name], f"{method.label}({name}=)")
            if name in checkers
            else value
            for name, value in self._arguments.items()
        }
        attempt.values = method.bind((), {**given, **attempt.values})
        timing.serialise += clock.now() - start
        self._arguments.clear()
        result = await self.host.replica.serve(attempt)
        if method.streams_out:
            return None
        start = clock.now()
        value = encode(result)
        timing.serialise += clock.now() - start
        return value

    def _failed(self, end: Any, error: BaseException) -> None:
        if self.hop.reason:
            error = self.hop.error()
        if isinstance(error, Cancelled):
            end.kind = frames.CANCELLED
            end.reason = error.reason[:1024]
        else:
            end.kind = frames.ERROR
            end.error.CopyFrom(frames.detail_to(describe(error, self.host.replica.node.name)))

    def _finish(self, error: BaseException | None, value: Encoded | None) -> None:
        if self.over:
            return
        self.over = True
        hop, host = self.hop, self.host
        timing, now = hop.timing, hop.clock.now()
        hops = host.open.pop(timing)
        if hop._children:
            hops += _open_hops(hop)
        del host.served[self]
        host.changed()
        if not self.carrier.lost:
            if len(hops) > HOPS:
                self.tell_hops(hops)
            frame = pb.Frame()
            frame.call = self.number
            end = frame.end
            if error is not None:
                self._failed(end, error)
            streams = {one.producer: number for number, one in enumerate(self.arriving, 1) if one.producer}
            end.accepted = self.attempt.accepted
            write_account(end.account, timing, now, hops, streams)
            if hops or error is not None or timing.notes:
                shorten(end.account, FRAME - 1024 - frames.INLINE - end.error.ByteSize())
            for arriving in self.arriving:
                arriving.leave()
            self._send_end(frame, value, error)
        timing.finish(now, "done" if error is None else "error")
        self.attempt.values = {}  # large arrays do not wait for the garbage collector
        for arriving in self.arriving:
            arriving.leave()
            arriving.channel.cancel("its reader has ended")
        hop.close()
        if self._turn is not None:
            self._turn.close()
        if hop.afters:
            host.after(hop)

    def tell_hops(self, hops: list[Timing]) -> None:
        """Let a caller that takes it hear of these, which have ended; they are told no more."""
        while hops and self._tells and not self.carrier.lost:
            frame = pb.Frame(call=self.number)
            write_progress(frame.account, self.hop.timing, self.hop.clock.now(), hops[:HOPS])
            shorten(frame.account, FRAME - 1024)
            self.carrier.send(self.number, frame)
            del hops[:HOPS]

    def _send_end(self, frame: Any, value: Encoded | None, error: BaseException | None) -> None:
        """Now, or once what is lent of its stream was taken."""
        if self._keep is None:
            self.carrier.end(frame, value)
        elif self.hop.reason or isinstance(error, Cancelled):
            self._keep.end(frame, End("cancelled"))
        else:
            self._keep.end(frame, DONE if error is None else End("error", error))

    # the replica's side

    def accepted(self) -> None:
        timing = self.hop.timing
        queued = self.hop.clock.now() - timing.received
        self.carrier.accept(self.number, queued)
        self.host.changed()

    def _cancelled(self, reason: str) -> None:
        out = self.attempt.out
        if out is not None:
            out.cancel(reason)
        if self._keep is not None and not self.over:
            self._keep.drop()
        self._task.cancel()
        self.host.changed()
        if not self._begun:  # a task that is cancelled before its first step runs none of its code
            asyncio.get_running_loop().call_soon(self._finish, Cancelled(reason), None)

    # what the caller says

    def on_item(self, stream: int, value: Encoded, size: int) -> None:
        self._stream(stream).arrive(value, size)

    def on_close(self, stream: int, close: Any) -> None:
        self._stream(stream).close(close)

    def _stream(self, stream: int) -> Arriving:
        if not 0 < stream <= len(self.arriving):
            raise ProtocolError(f"call {self.number} has no stream {stream}", mend="name it in the Open")
        return self.arriving[stream - 1]

    def on_credit(self, credit: Any) -> None:
        out = self.attempt.out
        if credit.stream != 0 or not isinstance(out, Outgoing):
            raise ProtocolError(f"call {self.number} sends no stream {credit.stream}", mend="give credit for stream 0")
        out.returned(credit.bytes)

    def on_hold(self, held: bool) -> None:
        if held:
            self.hop.hold()
        else:
            self.hop.resume()

    def on_direct(self, sent: Any) -> None:
        if sent.stream:
            self._stream(sent.stream).directed(sent)
            return
        out = self.attempt.out
        if not isinstance(out, Outgoing):
            raise ProtocolError(f"call {self.number} makes no stream that could be lent", mend="lend streams")
        if self._keep is None:
            self._keep = Keep(self, out, self.host.keeps)
        self._keep.told(sent)

    def on_cancel(self, reason: str) -> None:
        self.hop.cancel(reason or "cancelled")
        if self._keep is not None:
            self._keep.drop()

    def on_lost(self, why: str) -> None:
        self.on_cancel(why)

    def on_played(self, turn: int, ms: float) -> None:
        self.hop.call.played.report(turn, ms)

    def on_account(self, account: Any) -> None:
        raise ProtocolError("a caller sent an Account", mend="leave that to the replica")

    def on_turn(self, turn: Any) -> None:
        raise ProtocolError("a caller sent a Turn", mend="leave that to the replica")

    def on_queued(self) -> None:
        raise ProtocolError("a caller sent Queued", mend="leave that to the replica")

    def on_accepted(self, queued: float) -> None:
        raise ProtocolError("a caller sent Accepted", mend="leave that to the replica")

    def on_end(self, end: Any, value: Encoded | None) -> None:
        raise ProtocolError("a caller sent End", mend="send Cancel")


def _open_hops(scope: Scope) -> Iterator[Timing]:
    """The hops below a scope that have not ended: they are accounted as they are, since it will not hear of them."""
    for child in scope._children:
        if isinstance(child, Hop):
            yield child.timing
        yield from _open_hops(child)


_IDLE = ("ready", 0, 0, 0, 0, 0, 0, 0, 0, 0)
_ANYTHING = Checker(int)
_NOTHING = Method("", "", (), _ANYTHING, streams_out=False, blocking=False)
