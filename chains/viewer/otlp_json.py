"""OTLP's JSON: protobuf's own, but for ids, which are hex; a span that is malformed is refused alone."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from chains.errors import LimitExceeded, ProtocolError

MALFORMED = "malformed"
MOST_SPANS, MOST_OBJECTS = 100_000, 1_000_000
_IDS = ("traceId", "spanId", "parentSpanId")


def parse(body: bytes) -> tuple[ExportTraceServiceRequest, int]:
    """The request, and how many of its spans could not be read. ProtocolError when it is no request at all,
    LimitExceeded when it is too large."""
    if body.count(b"{") + body.count(b"[") > MOST_OBJECTS:
        raise LimitExceeded(f"a request of more than {MOST_OBJECTS} objects", mend="send fewer spans in a request")
    try:
        plain = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise ProtocolError(f"the body is no JSON: {error}", mend="send an OTLP ExportTraceServiceRequest") from None
    made = ExportTraceServiceRequest()
    bad, left = 0, MOST_SPANS
    for group in _objects(plain, "resourceSpans"):
        into = made.resource_spans.add()
        _read(group.get("resource") or {}, into.resource)
        for scope in _objects(group, "scopeSpans"):
            spans = into.scope_spans.add().spans
            for span in _objects(scope, "spans"):
                left -= 1
                if left < 0:
                    raise LimitExceeded("a request of too many spans", mend="send fewer in a request")
                try:
                    spans.append(ParseDict(_with_ids(span), Span(), ignore_unknown_fields=True, max_recursion_depth=64))
                except (ParseError, ValueError, TypeError, RecursionError, AttributeError):
                    bad += 1
    return made, bad


def text(response: ExportTraceServiceResponse) -> bytes:
    """The answer in JSON."""
    return msgspec.json.encode(MessageToDict(response))


def _objects(parent: Any, key: str) -> Iterator[dict[str, Any]]:
    found = parent.get(key) if isinstance(parent, dict) else None
    if found is None and isinstance(parent, dict):
        return
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise ProtocolError(f"{key} is no list of objects", mend="send an OTLP ExportTraceServiceRequest")
    yield from found


def _read(plain: Any, into: Any) -> None:
    try:
        ParseDict(plain, into, ignore_unknown_fields=True, max_recursion_depth=64)
    except (ParseError, ValueError, TypeError, RecursionError, AttributeError):
        raise ProtocolError("a resource that cannot be read", mend="send OTLP's JSON") from None


def _with_ids(span: dict[str, Any]) -> dict[str, Any]:
    """With ids in base64, as protobuf's own JSON has bytes."""
    found = span | {key: base64.b64encode(bytes.fromhex(span[key])).decode() for key in _IDS if span.get(key)}
    if span.get("links"):
        found["links"] = [_with_ids(link) for link in span["links"]]
    return found
