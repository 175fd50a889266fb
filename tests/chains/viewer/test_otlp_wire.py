"""Counting on the bytes of a request: what a parser would see, no more and no less."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from chains.errors import LimitExceeded, ProtocolError
from chains.viewer.otlp_wire import check
from tests.chains.records import made
from tests.chains.viewer.dense import field

BODY = made.request(made.phone_call("call-1", 2)).SerializeToString()
EMPTY = b"\x12\x00"


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (b"", 0),
        (b"\x0a\x00" * 7, 7),
        (field(0x0A, EMPTY * 7), 8),
        (field(0x0A, field(0x12, EMPTY * 7)), 9),
        (field(0x0A, field(0x12, EMPTY * 200)), 202),
        (b"\x8a\x00" + field(0x0A, field(0x12, EMPTY * 7))[1:], 9),  # a tag in more bytes than it needs
        (b"\x18\x01" * 5 + b"\x1d1234" + b"\x1912345678", 7),  # fields that nobody knows
    ],
)
def test_no_more_than_so_many(body: bytes, fields: int) -> None:
    ExportTraceServiceRequest.FromString(body)
    check(body, fields)
    if fields:
        with pytest.raises(LimitExceeded):
            check(body, fields - 1)


def test_what_a_parser_reads_is_counted_whatever_its_bytes() -> None:
    """Requests with random bytes changed: what passes and can be parsed has no more spans than were counted."""
    chance = random.Random(5)
    read = 0
    for _ in range(3_000):
        body = bytearray(BODY[:2_000] if chance.random() < 0.2 else BODY)
        for _ in range(chance.randrange(1, 4)):
            body[chance.randrange(min(len(body), 400))] = chance.randrange(256)
        try:
            made_of = ExportTraceServiceRequest.FromString(bytes(body))
        except DecodeError:
            continue
        read += 1
        groups = made_of.resource_spans
        spans = sum(len(scope.spans) for group in groups for scope in group.scope_spans)
        try:
            with pytest.raises(LimitExceeded):
                check(bytes(body), max(0, spans + len(groups) - 1))
        except ProtocolError:
            pass  # stricter than the parser
    assert read > 100


@pytest.mark.parametrize("body", [b"\xff" * 30, b"\x0a", b"\x0a\x05a", b"\x0b\x0c", b"\x19123", BODY[:-3]])
def test_what_is_no_protobuf(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        check(body)
