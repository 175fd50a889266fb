"""One side of a connection, without its socket: calls to frames, frames to calls.

What is to be sent waits in a lane for each call; a batch takes the lanes in turn, control frames first. Large values go
beside, and a call's frames wait for them in order, at both ends. Nothing here waits, reads a clock or runs user code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from chains.errors import ChainsError, LimitExceeded, ProtocolError
from chains.wire.codec import Encoded
from chains.wire.frames import INLINE, cost, framed, frames_of
from chains.wire.pb import carrier_pb2 as pb
from chains.wire.settings import FRAME, WireSettings
from chains.wire.sharing import Sharing
from chains.wire.transfers import Arrivals, Departures

BATCH_BYTES = 128 * 1024


class Port(Protocol):
    """One end of a call: is told what the peer says about it. None of these may wait."""

    def on_queued(self) -> None: ...
    def on_accepted(self, queued: float) -> None: ...
    def on_item(self, stream: int, value: Encoded, size: int) -> None: ...
    def on_close(self, stream: int, close: Any) -> None: ...
    def on_credit(self, credit: Any) -> None: ...
    def on_hold(self, held: bool) -> None: ...
    def on_cancel(self, reason: str) -> None: ...
    def on_turn(self, turn: Any) -> None: ...
    def on_account(self, account: Any) -> None: ...
    def on_played(self, turn: int, ms: float) -> None: ...
    def on_direct(self, sent: Any) -> None: ...
    def on_end(self, end: Any, value: Encoded | None) -> None: ...
    def on_lost(self, why: str) -> None:
        """The connection is gone, and with it the call."""
        ...


Answer = Callable[["Carrier", int, Any, dict[str, Encoded]], Port]
"""Begins the call that a peer opens: (carrier, number, Open, arguments)."""


class Carrier:
    """`wake` is called when there is something to send at once, `lazily` when it may wait for company.

    `answer` begins calls that the peer opens (None: it may open none), `told` is given frames about the connection.
    Without `sharing`, large values go in chunks. Once it is `closing` no call is begun. `goodbye`: the peer closes, and
    all has come that it had to say, but for what was `unread` of these calls when the connection was lost.
    """

    def __init__(
        self,
        settings: WireSettings,
        wake: Callable[[], None],
        lazily: Callable[[], None],
        answer: Answer | None,
        told: Callable[[str, Any], None],
        sharing: Sharing | None = None,
    ) -> None:
        self.calls: dict[int, Port] = {}
        self.lost = ""
        self.closing = False
        self.goodbye = False
        self.unread: frozenset[int] = frozenset()
        self.last = 0
        self.report: Callable[[], bytes] | None = None
        self._settings = settings
        self._wake = wake
        self._lazily = lazily
        self._answer = answer
        self._told = told
        self._control: deque[bytes] = deque()
        self._credits: dict[tuple[int, int], list[int]] = {}
        self._accepted: dict[int, float] = {}
        self._unwritten: list[Callable[[], None]] = []
        self._writing: list[Callable[[], None]] = []
        self._opening: set[int] = set()
        self._lanes: dict[int, deque[bytes]] = {}
        self._turn: deque[int] = deque()
        self._company = False
        self._sharing = sharing
        self._departures = Departures(sharing, wake)
        self._arrivals = Arrivals(settings, sharing, self._arrived)
        self._fault: ChainsError | None = None
        self._blocked: dict[int, deque[tuple[str, Any]]] = {}
        self._blocked_bytes = 0

    # sending

    def open(self, port: Port, frame: Any, arguments: dict[str, Encoded]) -> int:
        """Open a call with an Open frame; its number. Raises LimitExceeded when the frame would be too large."""
        opening = frame.open
        names = sum(map(len, arguments)) + 16 * len(arguments)
        if opening.ByteSize() + names > FRAME - INLINE - 1024:
            raise LimitExceeded(
                "the call's own data fill its frame", mend="give tenant, affinity and names of a few hundred bytes"
            )
        self.last += 1
        number = self.last
        self.calls[number] = port
        room = INLINE
        for name, value in arguments.items():
            argument = opening.arguments.add()
            argument.name = name
            room -= self._fill(argument.value, value, room)
        self._opening.add(number)
        frame.call = number
        self.send(number, frame)
        return number

    def accept(self, call: int, queued: float) -> None:
        """The call's code has started. Goes before what it sends; an End that comes right after says the same."""
        self._accepted[call] = queued
        self._wake()

    def queued(self, call: int) -> None:
        """The call waits: its code will not start before an Accepted has been written."""
        self.urge(pb.Frame(call=call, queued=pb.Queued()))

    def once_written(self, told: Callable[[], None]) -> None:
        """Call `told` when what is ready now was written, or the connection is lost."""
        if self.lost:
            told()
        else:
            self._unwritten.append(told)

    def written(self) -> None:
        """The last batch was."""
        told, self._writing = self._writing, []
        for one in told:
            one()

    def departed(self, call: int) -> bool:
        """Whether the Open of a call has left: the peer may have it."""
        return call not in self._opening

    def item(self, call: int, stream: int, value: Encoded) -> None:
        frame = pb.Frame()
        frame.call = call
        item = frame.item
        if stream:
            item.stream = stream
        self._fill(item.value, value)
        self.send(call, frame)

    def end(self, frame: Any, value: Encoded | None) -> None:
        """The End of a call, after what it has sent; then it is forgotten."""
        if value is not None:
            self._fill(frame.end.value, value)
        self._accepted.pop(frame.call, None)
        if self.calls.pop(frame.call, None) is not None:
            self.send(frame.call, frame)

    def send(self, call: int, frame: Any) -> None:
        """In the call's turn, after what it has sent before."""
        if self.lost:
            return
        data = framed(frame)
        if len(data) > FRAME:
            raise LimitExceeded(f"a frame has {len(data)} bytes", mend="send fewer and shorter arguments")
        lane = self._lanes.get(call)
        if lane is None:
            self._lanes[call] = deque((data,))
            self._turn.append(call)
        else:
            lane.append(data)
        self._wake()

    def urge(self, frame: Any) -> None:
        """Before everything else; of a call whose Open has not left yet, after that."""
        if frame.call in self._opening:
            self.send(frame.call, frame)
        else:
            self.urge_bytes(framed(frame))

    def urge_bytes(self, framed: bytes) -> None:
        """The same, of a frame about the connection that is bytes already."""
        if not self.lost:
            self._control.append(framed)
            self._wake()

    def credit(self, call: int, stream: int, size: int, *, urgent: bool, ended: bool = False) -> None:
        """An item of `size` was taken (or the stream's end was). What is not urgent goes with the next batch."""
        given = self._credits.get((call, stream))
        if given is None:
            self._credits[call, stream] = given = [0, 0, 0]
        if ended:
            given[2] = 1
        else:
            given[0] += 1
            given[1] += size
        if urgent:
            self._wake()
        else:
            self._lazily()

    def _fill(self, sent: Any, value: Encoded, room: int = INLINE) -> int:
        """A Value, filled in where it stands: a message that is put into another one is copied. The bytes it takes."""
        if value.nbytes > room:
            return self._departures.add(sent, value, room)
        sent.header = value.header
        if value.buffers:
            sent.buffers.extend(map(bytes, value.buffers))
        return value.nbytes

    @property
    def pending(self) -> bool:
        return bool(self._control or self._turn or self._credits or self._accepted or self._fault)

    @property
    def alone(self) -> bool:
        """Whether what is ready has no company to wait for: it is of the only call there is, had none the last time,
        and is not the mere word that its code has begun, which an End may overtake.
        """
        return len(self.calls) < 2 and not self._company and bool(self._turn or self._control)

    @property
    def bulky(self) -> bool:
        return bool(self._departures)

    @property
    def copying(self) -> bool:
        """Whether some of a large value has not left yet, though nothing of it may be ready."""
        return self._departures.under_way

    def batch(self) -> bytes:
        """What is ready, up to about 128 KiB of it: control, credit, then a frame of each call in turn.

        Raises what was found wrong with a value that came in another thread.
        """
        if self._fault is not None:
            raise self._fault
        parts: list[bytes] = []
        room, turn, lanes = BATCH_BYTES, self._turn, self._lanes
        while self._control and room > 0:
            parts.append(self._control.popleft())
            room -= len(parts[-1])
        if self.report is not None:
            parts.append(self.report())
        for (call, stream), (items, size, ended) in self._credits.items():
            credit = pb.Credit(stream=stream, items=items, bytes=size, ended=bool(ended))
            parts.append(framed(pb.Frame(call=call, credit=credit)))
        self._credits.clear()
        for call, queued in self._accepted.items():
            parts.append(framed(pb.Frame(call=call, accepted=pb.Accepted(queued=queued))))
        self._accepted.clear()
        if self._unwritten:
            self._writing += self._unwritten
            self._unwritten = []
        self._company = len(turn) > 1
        while turn and room > 0:
            call = turn.popleft()
            lane = lanes[call]
            data = lane.popleft()
            self._opening.discard(call)
            parts.append(data)
            room -= len(data)
            if lane:
                turn.append(call)
            else:
                del lanes[call]
        return b"".join(parts)

    def next_chunk(self) -> bytes:
        """A chunk of the next large value in turn."""
        return self._departures.next_chunk()

    # receiving

    def feed(self, batch: bytes) -> None:
        """Hand on what came. Raises ProtocolError or LimitExceeded when the peer does not keep the protocol."""
        frames = frames_of(batch)
        if len(batch) > FRAME and (size := max(frame.ByteSize() for frame in frames)) > FRAME:
            raise LimitExceeded(f"the peer sent a frame of {size} bytes", mend=f"send at most {FRAME} in one")
        for frame in frames:
            kind = frame.WhichOneof("kind")
            if kind is None:
                raise ProtocolError("the peer sent a frame of no known kind", mend="speak version 1")
            self._frame(frame.call, kind, getattr(frame, kind))

    def _frame(self, call: int, kind: str, sent: Any) -> None:
        if kind == "open":
            self._numbered(call)
        waiting = self._blocked.get(call) if self._blocked else None
        if (waiting and (kind in _ORDERED or waiting[0][0] == "open")) or (kind in _VALUED and self._lacks(kind, sent)):
            self._block(call, kind, sent)
        elif kind == "bye" and call == 0 and self._blocked:
            self.goodbye = True  # and told of when all that came before it is there
        else:
            self._handle(call, kind, sent)

    def _handle(self, call: int, kind: str, sent: Any) -> None:
        if call == 0:
            self._connection(kind, sent)
            return
        if kind == "open":
            if self.closing:
                for argument in sent.arguments:
                    self._arrivals.drop(argument.value)
            else:
                self._opened(call, sent)
            return
        port = self.calls.get(call)
        if port is None:
            if call > self.last:
                raise ProtocolError(f"the peer speaks of call {call}, which nobody opened", mend="open it first")
            if kind in _VALUED:  # about a call that has ended meanwhile
                self._arrivals.drop(sent.value)
            return
        if kind == "item":
            value = self._arrivals.taken(sent.value)
            port.on_item(sent.stream, value, cost(value))
        elif kind == "credit":
            port.on_credit(sent)
        elif kind == "end":
            del self.calls[call]
            port.on_end(sent, self._arrivals.taken(sent.value) if sent.HasField("value") else None)
        elif kind == "accepted":
            port.on_accepted(sent.queued)
        elif kind == "queued":
            port.on_queued()
        elif kind == "close":
            port.on_close(sent.stream, sent)
        elif kind == "cancel":
            port.on_cancel(sent.reason)
        elif kind == "hold":
            port.on_hold(sent.held)
        elif kind == "turn":
            port.on_turn(sent)
        elif kind == "account":
            port.on_account(sent)
        elif kind == "played":
            port.on_played(sent.turn, sent.ms)
        elif kind == "direct":
            port.on_direct(sent)
        else:
            raise ProtocolError(f"the peer sent a {kind} within a call", mend="send it with call 0")

    def _connection(self, kind: str, sent: Any) -> None:
        if kind == "ping":
            self.urge(pb.Frame(pong=pb.Pong(number=sent.number)))
        elif kind in ("hello", "load", "pong", "bye"):
            self.goodbye = self.goodbye or kind == "bye"
            self._told(kind, sent)
        elif kind == "shared":
            answer = self._sharing.heard(sent) if self._sharing is not None else None
            if answer is not None:
                self.urge(answer)
        else:
            raise ProtocolError(f"the peer sent a {kind} for call 0", mend="number calls from 1")

    def _numbered(self, call: int) -> None:
        """Whether the peer may open a call of this number."""
        if self._answer is None:
            raise ProtocolError(
                "the peer opens a call, and it is not its place", mend="open calls from the caller's side"
            )
        if call <= self.last:
            raise ProtocolError(f"the peer opens call {call} after call {self.last}", mend="number calls upwards")
        if len(self.calls) + len(self._blocked) >= self._settings.open_calls:
            raise LimitExceeded(
                f"the peer has {len(self.calls)} calls open",
                mend="raise WireSettings.open_calls, or wait for their ends",
            )
        self.last = call

    def _opened(self, call: int, sent: Any) -> None:
        assert self._answer is not None, "refused in _numbered"
        arguments = {one.name: self._arrivals.taken(one.value) for one in sent.arguments}
        self.calls[call] = self._answer(self, call, sent, arguments)

    # large values

    def _lacks(self, kind: str, sent: Any) -> bool:
        """Whether a part of this frame is still under way."""
        values = [argument.value for argument in sent.arguments] if kind == "open" else (sent.value,)
        return self._arrivals.lack(values)

    def _block(self, call: int, kind: str, sent: Any) -> None:
        self._blocked_bytes += sent.ByteSize() + 64
        if self._blocked_bytes > self._settings.queued_bytes:
            raise LimitExceeded("too much waits for large values", mend="raise WireSettings.queued_bytes")
        self._blocked.setdefault(call, deque()).append((kind, sent))

    def feed_chunk(self, message: bytes) -> None:
        """Hand on a chunk. Raises as `feed` does."""
        self._arrivals.feed(message)
        if self._fault is not None:
            raise self._fault

    def _arrived(self, fault: ChainsError | None) -> None:
        """A large value is there: hand on what has waited for it. What is wrong ends the connection."""
        if self.lost or (fault is None and not self._blocked):
            return
        try:
            if fault is not None:
                raise fault
            self._unblock()
        except ChainsError as error:
            self._fault = error
            self._wake()

    def _unblock(self) -> None:
        for call in list(self._blocked):
            waiting = self._blocked.pop(call)
            while waiting and not (waiting[0][0] in _VALUED and self._lacks(*waiting[0])):
                kind, sent = waiting.popleft()
                self._blocked_bytes -= sent.ByteSize() + 64
                self._handle(call, kind, sent)
            if waiting:
                self._blocked[call] = waiting
        if self.goodbye and not self._blocked:
            self._told("bye", None)

    # the end

    def lose(self, why: str) -> None:
        """The connection is gone: every call on it is told, once."""
        if self.lost:
            return
        self.lost = why or "the connection broke"
        self.unread = frozenset(self._blocked)
        self._control.clear()
        self._credits.clear()
        self._accepted.clear()
        self._lanes.clear()
        self._turn.clear()
        self._departures.clear()
        self._arrivals.clear()
        self._blocked.clear()
        if self._sharing is not None:
            self._sharing.lost()
        ports, self.calls = list(self.calls.values()), {}
        for port in ports:
            port.on_lost(self.lost)
        self._writing += self._unwritten
        self.written()


_ORDERED = frozenset({"open", "item", "close", "end", "turn", "account", "direct"})
_VALUED = frozenset({"open", "item", "end"})
