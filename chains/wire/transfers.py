"""Values too large for a frame, on their way: in shared memory where both ends can reach it, else in chunks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from chains.errors import ChainsError, LimitExceeded, ProtocolError
from chains.wire.borrowing import Spare
from chains.wire.codec import Encoded
from chains.wire.frames import CHUNK, SHARE, chunk, chunk_of
from chains.wire.pb import carrier_pb2 as pb
from chains.wire.segments import ALIGN, MIB, Handle
from chains.wire.settings import WireSettings
from chains.wire.sharing import AT_ONCE, Sharing

TRANSFERS = 65536
"""The most that may be under way, and the most buffers of one."""
SLOT, BUFFERS = 640, 8
"""Bytes of its frame that a slot is given, and the most buffers that it may name there."""
PIECE, PIECES = (4 * MIB, 8 * MIB), 8
"""The bytes that a piece may have, and in how many a value is lent within that: one end copies while the other does."""
KEEP = 64 * MIB
"""Bytes of received values whose memory is kept for the next ones."""


class Departures:
    """Large values that go out, each under a number of its own. `wake` is called when a chunk has become ready."""

    def __init__(self, sharing: Sharing | None, wake: Callable[[], None]) -> None:
        self._sharing = sharing
        self._wake = wake
        self._number = 0
        self._ready: deque[_Sending] = deque()
        self._copying = 0  # pieces
        self._over = False

    def add(self, sent: Any, value: Encoded, room: int) -> int:
        """Fill the Value `sent` in: with a slot, or with the number under which the value goes on Bulk. The bytes that
        it takes of `room` in its frame."""
        sharing = self._shared_by(value)
        if sharing is not None and _fits(value, room):
            handle = sharing.lend(value.buffers)
            if handle is not None:
                sent.header = value.header
                sent.slot.CopyFrom(_slot(handle, [buffer.nbytes for buffer in value.buffers]))
                return len(value.header) + SLOT
        self._number += 1
        sent.transfer = self._number
        sending = _Sending(self._number, value)
        if sharing is None:
            sending.chunk_all()
            self._ready.append(sending)
        else:
            pieces = sending.pieces()
            left = iter(pieces)
            self._copying += len(pieces)
            sharing.lend_apart(pieces, lambda handle: self._lent(sending, next(left), handle))
        return 0

    def _lent(self, sending: _Sending, piece: list[memoryview], handle: Handle | None) -> None:
        """A piece lies in shared memory, or there was no room. Where nobody is left to send to it was taken back."""
        self._copying -= 1
        if self._over:
            return
        if not sending.ready:
            self._ready.append(sending)
        sending.lent(piece, handle)
        self._wake()

    def _shared_by(self, value: Encoded) -> Sharing | None:
        """Who shares the value, when it can be."""
        sharing = self._sharing
        large = value.nbytes - len(value.header) >= SHARE and value.header
        return sharing if sharing is not None and sharing.readable and large else None

    def __bool__(self) -> bool:
        """Whether there are chunks to send."""
        return bool(self._ready)

    @property
    def under_way(self) -> bool:
        """Whether there are chunks to send, or will be."""
        return bool(self._ready) or self._copying > 0

    def next_chunk(self) -> bytes:
        """A chunk of the next large value in turn."""
        sending = self._ready.popleft()
        message, more = sending.next()
        if more:
            self._ready.append(sending)
        return message

    def clear(self) -> None:
        """Nothing is sent any more."""
        self._over = True
        self._ready.clear()


class Arrivals:
    """Large values that come in. `arrived` is called when one is whole that was not at once, or with what is wrong."""

    def __init__(
        self, settings: WireSettings, sharing: Sharing | None, arrived: Callable[[ChainsError | None], None]
    ) -> None:
        self._settings = settings
        self._sharing = sharing
        self._arrived = arrived
        self._spare = Spare(KEEP) if sharing is None else sharing.spare
        self._receiving: dict[int, _Receiving] = {}

    def lack(self, values: Iterable[Any]) -> bool:
        """Whether one of these Values is still under way."""
        numbers = [value.transfer for value in values if value.transfer]
        if len(set(numbers)) < len(numbers):
            raise ProtocolError("the peer uses a transfer twice", mend="send each value once")
        return any(number not in self._receiving or self._receiving[number].left for number in numbers)

    def feed(self, message: bytes) -> None:
        """Take a chunk. Raises ProtocolError or LimitExceeded."""
        number, sizes, data, slot = chunk_of(message)
        receiving = self._receiving.get(number)
        if receiving is None:
            receiving = self._begun(number, sizes)
        elif sizes:
            raise ProtocolError("the peer names a transfer's sizes twice", mend="name them in the first chunk")
        receiving.fill(data)
        if slot is not None:
            self._fetch(receiving, slot)
        elif not receiving.left:
            self._arrived(None)

    def _begun(self, number: int, sizes: list[int]) -> _Receiving:
        if not sizes or number == 0:
            raise ProtocolError("the peer sent a chunk of no transfer", mend="name the sizes in the first chunk")
        total = sum(sizes) + sum(one.total for one in self._receiving.values())
        if total > self._settings.value_bytes or len(sizes) > TRANSFERS or len(self._receiving) >= TRANSFERS:
            raise LimitExceeded(
                f"values of {total} bytes are under way", mend="raise WireSettings.value_bytes, or send less at once"
            )
        self._receiving[number] = made = _Receiving(sizes, self._spare)
        return made

    def _fetch(self, receiving: _Receiving, slot: Any) -> None:
        """The next piece lies in shared memory."""
        if self._sharing is None or not slot.sizes:
            raise _unshared()

        def fetched(fault: ChainsError | None) -> None:
            receiving.left -= sum(slot.sizes)
            if fault is not None or not receiving.left:
                self._arrived(fault)

        self._sharing.fetch_apart(slot, [receiving.room(size) for size in slot.sizes], fetched)

    def taken(self, value: Any) -> Encoded:
        """The value, which lacks nothing any more."""
        if value.transfer:
            return self._receiving.pop(value.transfer).value()
        if value.HasField("slot"):
            return self._fetched(value)
        buffers = value.buffers
        return Encoded(value.header, [memoryview(buffer) for buffer in buffers] if buffers else [])

    def _fetched(self, value: Any) -> Encoded:
        slot = value.slot
        size = sum(slot.sizes)
        if self._sharing is None or not slot.sizes:
            raise _unshared()
        if size > min(AT_ONCE, self._settings.value_bytes):
            raise LimitExceeded(f"a frame names {size} bytes in shared memory", mend="send so much on Bulk")
        return Encoded(value.header, [buffer.toreadonly() for buffer in self._sharing.fetch(slot)])

    def drop(self, value: Any) -> None:
        """Nobody wants it any more."""
        self._receiving.pop(value.transfer, None)
        if self._sharing is not None and value.HasField("slot"):
            self._sharing.drop(value.slot)

    def clear(self) -> None:
        self._receiving.clear()


def _fits(value: Encoded, room: int) -> bool:
    """Whether the value may lie in a slot that its frame names."""
    return value.nbytes <= AT_ONCE and len(value.header) + SLOT <= room and len(value.buffers) <= BUFFERS


def _slot(handle: Handle, sizes: list[int]) -> Any:
    return pb.Slot(name=handle.name.rpartition("/")[2], generation=handle.generation, sizes=sizes)


def _unshared() -> ProtocolError:
    return ProtocolError("the peer sends a value in shared memory that is not shared", mend="send it in chunks")


class _Sending:
    """A large value on its way out. `ready` is what may leave, in order: bytes, and slots that hold the next ones."""

    def __init__(self, number: int, value: Encoded) -> None:
        self.number = number
        self._header = memoryview(value.header)
        self._buffers = [buffer.cast("B") for buffer in value.buffers]
        self._sizes = [part.nbytes for part in (self._header, *self._buffers)]
        self.ready: deque[Any] = deque()

    def chunk_all(self) -> None:
        """Send all of it in chunks."""
        self._add(self._header, *self._buffers)

    def _add(self, *parts: memoryview) -> None:
        self.ready.extend(part for part in parts if part.nbytes)

    def pieces(self) -> list[list[memoryview]]:
        """The buffers in pieces that may each lie in a slot."""
        size = min(max(sum(self._sizes) // PIECES, PIECE[0]), PIECE[1])
        pieces, room = list[list[memoryview]](), 0
        for buffer in self._buffers:
            while buffer.nbytes:
                if not room:
                    pieces.append([])
                    room = 1 << (size - 1).bit_length()
                pieces[-1].append(buffer[:room])
                buffer, room = buffer[room:], max(0, room - -(-buffer.nbytes // ALIGN) * ALIGN)
        return pieces

    def lent(self, piece: list[memoryview], handle: Handle | None) -> None:
        self._add(self._header)
        self._header = self._header[:0]
        if handle is not None:
            self.ready.append(_slot(handle, [part.nbytes for part in piece]))
        else:
            self._add(*piece)

    def next(self) -> tuple[bytes, bool]:
        data, slot = _NOTHING, None
        if isinstance(self.ready[0], memoryview):
            part = self.ready.popleft()
            data, rest = part[:CHUNK], part[CHUNK:]
            if rest:
                self.ready.appendleft(rest)
        if self.ready and not isinstance(self.ready[0], memoryview):
            slot = self.ready.popleft()
        sizes, self._sizes = self._sizes, []
        return chunk(self.number, sizes, data, slot), bool(self.ready)


class _Receiving:
    """A large value on its way in; each buffer lies by itself, so that arrays in it are aligned. `left` is how many
    bytes are not there yet."""

    def __init__(self, sizes: list[int], spare: Spare) -> None:
        self.total = self.left = sum(sizes)
        self._parts = [spare.array(size).data for size in sizes]
        self._open = deque(part for part in self._parts if part.nbytes)

    def room(self, size: int) -> memoryview:
        """Where the next `size` bytes belong, which lie in one buffer."""
        if not self._open or size > self._open[0].nbytes:
            raise ProtocolError("the peer sent more of a value than it said", mend="name its sizes")
        part = self._open.popleft()
        if size < part.nbytes:
            self._open.appendleft(part[size:])
        return part[:size]

    def fill(self, data: memoryview) -> None:
        while data.nbytes:
            size = min(data.nbytes, self._open[0].nbytes) if self._open else data.nbytes
            self.room(size)[:] = data[:size]
            self.left -= size
            data = data[size:]

    def value(self) -> Encoded:
        header, *buffers = self._parts
        return Encoded(bytes(header), [buffer.toreadonly() for buffer in buffers])


_NOTHING = memoryview(b"")
