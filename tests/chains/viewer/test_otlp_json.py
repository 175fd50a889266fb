"""OTLP's JSON, as the standard's own examples have it."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from chains.errors import ProtocolError
from chains.records.packing import unpack
from chains.viewer.otlp import decode
from chains.viewer.otlp_json import parse, text
from tests.chains.records import made

# after opentelemetry-proto/examples/trace.json
EXAMPLE: dict[str, Any] = {
    "resourceSpans": [
        {
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "my.service"}}]},
            "scopeSpans": [
                {
                    "scope": {"name": "my.library", "version": "1.0.0"},
                    "spans": [
                        {
                            "traceId": "5B8EFFF798038103D269B633813FC60C",
                            "spanId": "EEE19B7EC3C1B174",
                            "parentSpanId": "EEE19B7EC3C1B173",
                            "name": "I'm a server span",
                            "startTimeUnixNano": "1544712660000000000",
                            "endTimeUnixNano": 1544712661000000000,
                            "kind": 2,
                            "flags": 256,
                            "attributes": [
                                {"key": "my.span.attr", "value": {"stringValue": "some value"}},
                                {"key": "many", "value": {"intValue": "600"}},
                                {"key": "few", "value": {"intValue": 6}},
                                {"key": "raw", "value": {"bytesValue": "AAE="}},
                            ],
                            "links": [{"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174"}],
                            "status": {"code": 2},
                            "of.a.later.version": True,
                        }
                    ],
                }
            ],
        }
    ]
}


def spans_of(example: dict[str, Any]) -> list[Any]:
    found: list[Any] = example["resourceSpans"][0]["scopeSpans"][0]["spans"]
    return found


def test_the_example() -> None:
    request, bad = parse(json.dumps(EXAMPLE).encode())
    (span,) = decode(request).spans
    assert bad == 0 and span.trace.hex() == "5b8efff798038103d269b633813fc60c"
    assert (span.span, span.parent) == (-0x111E64813C3E4E8C, -0x111E64813C3E4E8D)
    assert (span.name, span.duration, span.status, span.source.service) == (
        "I'm a server span", 1_000_000_000, 2, "my.service",
    )  # fmt: skip
    assert unpack(span.rest).attributes == {
        "my.span.attr": "some value", "many": 600, "few": 6, "raw": b"\0\1", "span.kind": "server",
        "otel.links": ["5b8efff798038103d269b633813fc60c:eee19b7ec3c1b174"],
    }  # fmt: skip


def test_it_is_what_protobuf_is() -> None:
    """A phone call sent as JSON is stored like one sent as protobuf."""
    sent = made.request(made.phone_call("call-1", 1))
    plain = MessageToDict(sent)
    for span in spans_of(plain):
        for key in ("traceId", "spanId", "parentSpanId"):
            if key in span:
                span[key] = base64.b64decode(span[key]).hex()
    request, bad = parse(json.dumps(plain).encode())
    assert bad == 0 and decode(request) == decode(sent)


@pytest.mark.parametrize(
    "changes",
    [
        {"spanId": 5},
        {"spanId": "no hex at all"},
        {"spanId": "abc"},
        {"startTimeUnixNano": "yesterday"},
        {"startTimeUnixNano": -1},
        {"attributes": "none"},
        {"attributes": [{"key": 5}]},
        {"attributes": [{"key": "a", "value": {"intValue": "x"}}]},
        {"status": 5},
        {"links": [5]},
        {"name": {"deep": [1]}},
        {"events": [{"timeUnixNano": 2**70}]},
    ],
)
def test_a_malformed_span_is_refused_alone(changes: dict[str, Any]) -> None:
    example = json.loads(json.dumps(EXAMPLE))
    spans_of(example).append(spans_of(example)[0] | changes)
    request, bad = parse(json.dumps(example).encode())
    decoded = decode(request)
    assert (len(decoded.spans), bad + decoded.refused.total()) == (1, 1)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"resourceSpans": 5}', b'{"resourceSpans": [5]}',
        b'{"resourceSpans": [{"scopeSpans": {}}]}', b'{"resourceSpans": [{"resource": 5}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [5]}]}]}', b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    ],
)  # fmt: skip
def test_what_is_no_request_is_said(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(body)


def test_deep_values_are_refused_alone() -> None:
    example = json.loads(json.dumps(EXAMPLE))
    value: dict[str, Any] = {"stringValue": "x"}
    for _ in range(200):
        value = {"arrayValue": {"values": [value]}}
    spans_of(example).append(spans_of(example)[0] | {"attributes": [{"key": "deep", "value": value}]})
    request, bad = parse(json.dumps(example).encode())
    assert bad == 1 and len(decode(request).spans) == 1


def test_the_empty_request_and_its_answer() -> None:
    assert parse(b"{}")[1] == 0
    answer = ExportTraceServiceResponse()
    assert text(answer) == b"{}"
    answer.partial_success.rejected_spans = 3
    answer.partial_success.error_message = "why"
    assert json.loads(text(answer)) == {"partialSuccess": {"rejectedSpans": "3", "errorMessage": "why"}}
