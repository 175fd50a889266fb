"""Frames and chunks as bytes: proto/chains/v1/carrier.proto, with the two hot places written by hand.

A batch is the concatenation of its frames, each behind the tag and length that protobuf gives a repeated field; the
data of a chunk is sent and received without going through protobuf's copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from chains.errors import ErrorDetail, Frame, ProtocolError
from chains.wire.codec import Encoded
from chains.wire.pb import carrier_pb2 as pb

CONNECT = "/chains.v1.Carrier/Connect"
BULK = "/chains.v1.Carrier/Bulk"
VERSION = 1
ITEM_COST = 32
"""What an item costs of its window beside its bytes."""
INLINE = 32 * 1024
"""Values up to this many bytes travel in their frame."""
SHARE = 128 * 1024
"""Values from this many bytes on go through shared memory, where there is some."""
CHUNK = 256 * 1024
TEXT = 4096
"""The longest error message and line of source that is sent on."""
DONE, ERROR, CANCELLED = pb.End.DONE, pb.End.ERROR, pb.End.CANCELLED
INTERACTIVE, BATCH = pb.INTERACTIVE, pb.BATCH


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_SHORT = [b"\n" + varint(length) for length in range(4096)]


def framed(frame: Any) -> bytes:
    """A frame as it stands in a batch."""
    data: bytes = frame.SerializeToString()
    size = len(data)
    return (_SHORT[size] if size < 4096 else b"\n" + varint(size)) + data


BYE = framed(pb.Frame(bye=pb.Bye()))


def frames_of(batch: bytes) -> Iterable[Any]:
    """The frames of a batch. Raises ProtocolError for bytes that are none."""
    try:
        return pb.Batch.FromString(batch).frames  # type: ignore[no-any-return]
    except DecodeError:
        raise ProtocolError("the peer sent bytes that are no frames", mend="speak proto/chains/v1") from None


def cost(value: Encoded) -> int:
    """What an item takes of its stream's window."""
    if not value.buffers:
        return len(value.header) + ITEM_COST
    return value.nbytes + ITEM_COST


# chunks


def chunk(transfer: int, sizes: Sequence[int], data: memoryview, slot: Any = None) -> bytes:
    head: bytes = pb.Chunk(transfer=transfer, sizes=sizes, slot=slot).SerializeToString()
    return b"".join((head, b"\x1a", varint(data.nbytes), data))


def chunk_of(message: bytes) -> tuple[int, list[int], memoryview, Any]:
    """(transfer, sizes, data, slot or None) of a chunk; the data is a view of the message. Raises ProtocolError."""
    at, head = 0, memoryview(message)
    while at < len(message) and message[at] != 0x1A:  # the fields before the data, which usually stands last
        tag, at = message[at], at + 1
        number, at = _varint(message, at)
        if tag == 0x12:
            at += number
        elif tag != 0x08:
            return _parsed(message)
    if at >= len(message):
        return _parsed(message)
    size, start = _varint(message, at + 1)
    if start + size != len(message):
        return _parsed(message)
    transfer, sizes, _, _ = _parsed(bytes(head[:at]))
    return transfer, sizes, head[start:], None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    raise ProtocolError("the peer sent a chunk that is cut off", mend="speak proto/chains/v1")


def _parsed(message: bytes) -> tuple[int, list[int], memoryview, Any]:
    try:
        found = pb.Chunk.FromString(message)
    except DecodeError:
        raise ProtocolError("the peer sent bytes that are no chunk", mend="speak proto/chains/v1") from None
    slot = found.slot if found.HasField("slot") else None
    return found.transfer, list(found.sizes), memoryview(found.data), slot


# errors


def detail_to(detail: ErrorDetail) -> Any:
    """An error as it travels: at most 64 lines of the way, the root cause among them, and no text without end."""
    lines = detail.frames if len(detail.frames) <= 64 else (*detail.frames[:32], *detail.frames[-32:])
    return pb.ErrorDetail(
        type_name=_cut(detail.type_name, 256),
        message=_cut(detail.message),
        mend=_cut(detail.mend),
        reason=_cut(detail.reason),
        frames=[
            pb.SourceLine(
                hop=_cut(line.hop, 256),
                file=_cut(line.file, 256),
                line=max(0, line.line),
                function=_cut(line.function, 128),
                source=_cut(line.source, 160),
            )
            for line in lines
        ],
    )


def detail_from(sent: Any) -> ErrorDetail:
    lines = tuple(Frame(line.hop, line.file, line.line, line.function, line.source) for line in sent.frames)
    return ErrorDetail(sent.type_name, sent.message, sent.mend, lines, sent.reason)


def _cut(text: str, limit: int = TEXT) -> str:
    """Short enough, and free of the surrogates that UTF-8 has no place for."""
    text = text if len(text) <= limit else f"{text[:limit]}..."
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
