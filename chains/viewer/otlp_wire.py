"""How many messages an OTLP request holds, counted on its bytes: parsed, an empty span of two bytes takes a hundred
times the room, and as many times longer to refuse."""

from __future__ import annotations

from chains.errors import LimitExceeded, ProtocolError

MOST = 100_000
_INNER = (0x0A, 0x12)  # resource_spans of the request, scope_spans of those: what is counted within
_VARINT, _LENGTH = 0, 2
_FIXED = {1: 8, 5: 4}


def check(body: bytes, most: int = MOST) -> None:
    """LimitExceeded when there are more than `most` spans (and groups, and other fields beside them); ProtocolError
    when the bytes are no protobuf."""
    try:
        _count(body, 0, len(body), 0, most)
    except IndexError:
        raise malformed() from None


def malformed() -> ProtocolError:
    return ProtocolError("the body is no OTLP", mend="send an ExportTraceServiceRequest")


def _count(body: bytes, at: int, end: int, depth: int, left: int) -> int:
    """Go through the fields from `at` to `end`; gives how many more there may be."""
    inner = _INNER[depth] if depth < len(_INNER) else 0
    while at < end:
        left -= 1
        if left < 0:
            raise LimitExceeded("a request of too many spans", mend="send fewer in a request")
        tag, at = body[at], at + 1
        if tag > 127:
            tag, at = _varint(body, at - 1)
        wire = tag & 7
        if wire == _LENGTH:
            size, at = body[at], at + 1
            if size > 127:
                size, at = _varint(body, at - 1)
            if tag == inner and at + size <= end:
                left = _count(body, at, at + size, depth + 1, left)
            at += size
        elif wire == _VARINT:
            _, at = _varint(body, at)
        elif wire in _FIXED:
            at += _FIXED[wire]
        else:
            raise malformed()
    if at > end:
        raise malformed()
    return left


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and what follows it."""
    value = shift = 0
    while body[at] > 127:
        value |= (body[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if shift > 63:
            raise malformed()
    return value | body[at] << shift, at + 1
