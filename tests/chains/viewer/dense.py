"""Requests of many parts that say nothing: two bytes each on the wire, and hundreds when they are parsed."""

from __future__ import annotations

import time


def field(tag: int, body: bytes) -> bytes:
    """A field of protobuf that has a length."""
    size = len(body)
    out = bytearray([tag])
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out) + body


def dense(what: str, size: int) -> bytes:
    """A request of about `size` bytes of nothing but groups, scopes, spans, attributes, events, attributes of an
    event, or attributes of the resource."""
    now = time.time_ns().to_bytes(8, "little")
    span = b"\x0a\x10" + b"a" * 16 + b"\x12\x08" + b"b" * 8 + b"\x39" + now + b"\x41" + now
    count = size // 2
    if what == "groups":
        return b"\x0a\x00" * count
    if what in ("scopes", "resource"):
        return field(0x0A, b"\x12\x00" * count if what == "scopes" else field(0x0A, b"\x0a\x00" * count))
    spans = {
        "spans": b"\x12\x00" * count,
        "attributes": field(0x12, span + b"\x4a\x00" * count),
        "events": field(0x12, span + b"\x5a\x00" * count),
        "attributes of an event": field(0x12, span + field(0x5A, b"\x1a\x00" * count)),
    }
    return field(0x0A, field(0x12, spans[what]))
