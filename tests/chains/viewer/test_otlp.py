"""Each span is checked by itself: what is wrong is refused alone, with a reason, whatever it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from chains.records.arrived import Arrived, CallEnd, Segment, TurnEnd
from chains.records.packing import unpack, unpack_parts, unpack_path
from chains.records.schema import CALL, FOREIGN, HOP, TURN
from chains.viewer.otlp import Decoded, decode, senders
from tests.chains.records import made

NOW = made.START + 3_600 * 1_000_000_000


def foreign(**changes: Any) -> ExportTraceServiceRequest:
    """A request of one good span and one that `changes` made of it."""
    request = made.request(made.foreign_trace(1, spans=2))
    span = request.resource_spans[0].scope_spans[0].spans[1]
    for name, value in changes.items():
        setattr(span, name, value)
    return request


def refused(request: ExportTraceServiceRequest) -> list[str]:
    """Why the second span was refused; the first one was not."""
    decoded = decode(request, NOW)
    assert len(decoded.spans) == 2 - decoded.refused.total()
    return [reason for (_, reason), count in decoded.refused.items() for _ in range(count)]


def test_all_of_a_phone_call_is_taken() -> None:
    spans = made.phone_call("call-1", 2)
    decoded = decode(made.request(spans), NOW)
    assert decoded.refused.total() == 0 and decoded.complaint() == ""
    by_kind = {kind: [span for span in decoded.spans if span.kind == kind] for kind in (FOREIGN, HOP, TURN, CALL)}
    assert [len(found) for found in by_kind.values()] == [0, len(spans) - 3, 2, 1]
    assert by_kind[CALL][0].detail == CallEnd("PhoneCall.run", "acme", "done", "", 2)
    sent = spans[0]
    hop = decoded.spans[0]
    assert (hop.name, hop.call, hop.turn, hop.start, hop.duration) == (
        "VAD.windows", "call-1", 1, sent.start, sent.end - sent.start,
    )  # fmt: skip
    assert hop.replica == sent.attributes["chains.replica"] and hop.source.service == "PhoneCall"
    assert sum(unpack_parts(hop.parts)) == pytest.approx(hop.duration / 1e6, abs=0.01)
    (turn, _) = by_kind[TURN]
    assert isinstance(turn.detail, TurnEnd) and turn.detail.state == "answered"
    assert sum(segment.ms for segment in unpack_path(turn.detail.path)) == pytest.approx(
        turn.detail.latency_ms, abs=0.01
    )
    assert "chains.path" not in unpack(turn.rest).attributes
    assert [event.name for event in unpack(turn.rest).events] == ["speech_start", "speech_end", "first_audio"]


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"trace_id": b"short"}, "id of a wrong length"),
        ({"trace_id": bytes(16)}, "id of a wrong length"),
        ({"span_id": b"123456789"}, "id of a wrong length"),
        ({"span_id": b""}, "id of a wrong length"),
        ({"parent_span_id": b"1"}, "id of a wrong length"),
        ({"end_time_unix_nano": 1}, "end before start"),
        ({"end_time_unix_nano": 0}, "end before start"),
        ({"start_time_unix_nano": 0}, "absurd time"),
        ({"end_time_unix_nano": 2**64 - 1}, "absurd time"),
        ({"start_time_unix_nano": 2**63, "end_time_unix_nano": 2**63 + 1}, "absurd time"),
        ({"kind": 77}, "unknown enum"),
    ],
)
def test_what_is_wrong_with_a_span(changes: dict[str, Any], reason: str) -> None:
    assert refused(foreign()) == []
    assert refused(foreign(**changes)) == [reason]


@pytest.mark.parametrize("id", ["a/b", "../x", "/", ".", "..", "a\nb", "\x1b[2J", "a\u202eb"])
def test_a_call_that_no_address_could_name(id: str) -> None:
    """It would be listed, and could be neither opened nor deleted."""
    spans = made.phone_call("good", 1)
    spans[0].attributes["chains.call"] = id
    found = decode(made.request(spans), NOW)
    assert len(found.spans) == len(spans) - 1
    assert [reason for _, reason in found.refused] == ["chains.call cannot stand in an address"]


def test_an_unknown_status() -> None:
    request = foreign()
    request.resource_spans[0].scope_spans[0].spans[1].status.code = 9
    assert refused(request) == ["unknown enum"]


def test_attributes_that_are_too_much() -> None:
    request = foreign()
    span = request.resource_spans[0].scope_spans[0].spans[1]
    span.attributes.add(key="body").value.string_value = "x" * 10_000_000
    assert refused(request) == ["attributes that are too large, or cannot be kept"]
    request = foreign()
    value = request.resource_spans[0].scope_spans[0].spans[1].attributes.add(key="deep").value
    for _ in range(40):
        value = value.array_value.values.add()
    assert refused(request) == ["nested too deep"]
    request = foreign()
    value = request.resource_spans[0].scope_spans[0].spans[1].attributes.add(key="deep").value
    for _ in range(40):
        value = value.kvlist_value.values.add(key="k").value
    assert refused(request) == ["nested too deep"]


@pytest.mark.parametrize(
    "kind, changes",
    [
        ("hop", {"chains.call": ""}),
        ("hop", {"chains.call": "x" * 300}),
        ("hop", {"chains.turn": "three"}),
        ("hop", {"chains.turn": -1}),
        ("hop", {"chains.turn": 2**40}),
        ("hop", {"chains.replica": ["a"]}),
        ("hop", {"chains.wire_ms": "fast"}),
        ("hop", {"chains.wire_ms": -1.0}),
        ("hop", {"chains.wire_ms": float("nan")}),
        ("hop", {"chains.wire_ms": float("inf")}),
        ("turn", {"chains.latency_ms": float("nan")}),
        ("turn", {"chains.latency_ms": "soon"}),
        ("turn", {"chains.latency_ms": -5.0}),
        ("turn", {"chains.latency_ms": 1e9}),
        ("call", {"chains.turns": 1.5}),
        ("call", {"chains.tenant": 5}),
    ],
)
def test_attributes_of_ours_that_are_of_no_use(kind: str, changes: dict[str, Any]) -> None:
    spans = made.phone_call("call-1", 1)
    (bad,) = [span for span in spans if span.attributes["chains.kind"] == kind][-1:]
    bad.attributes |= changes
    decoded = decode(made.request(spans), NOW)
    assert decoded.refused.total() == 1 and len(decoded.spans) == len(spans) - 1


@pytest.mark.parametrize(
    "path",
    [
        "[",
        "[[1]]",
        '[["a", "flight", "", "", 0, 1]]',
        '[["a", "wait", "", "", 0, -1]]',
        '[["a", "wait", "", "", 0, 1e300]]',
        7,
    ],
)
def test_a_path_that_makes_no_sense_is_no_path(path: object) -> None:
    spans = [span for span in made.phone_call("call-1", 1) if span.name == "turn 1"]
    spans[0].attributes["chains.path"] = path
    (turn,) = decode(made.request(spans), NOW).spans
    assert isinstance(turn.detail, TurnEnd) and turn.detail.path is None
    assert unpack(turn.rest).attributes["chains.path"] == path
    spans[0].attributes["chains.path"] = json.dumps([["a.b", "wait", "credit", "r", 0, 5]])
    (turn,) = decode(made.request(spans), NOW).spans
    assert isinstance(turn.detail, TurnEnd) and unpack_path(turn.detail.path) == [
        Segment("a.b", "wait", "credit", "r", 0.0, 5.0)
    ]
    assert turn.detail.shares == (("a.b", "r", "credit", 5.0),)


def test_what_foreign_spans_keep() -> None:
    request = foreign(kind=3)
    span = request.resource_spans[0].scope_spans[0].spans[1]
    span.links.add(trace_id=b"\1" * 16, span_id=b"\2" * 8)
    span.status.code, span.status.message = 2, "timed out"
    for key, value in {"yes": True, "no": False, "zero": 0, "none": "", "half": 0.5, "list": [1, "a"]}.items():
        made._set(span.attributes.add(key=key).value, value)
    span.attributes.add(key="bytes").value.bytes_value = b"\0\1"
    span.attributes.add(key="unset")
    inner = span.attributes.add(key="map").value.kvlist_value.values.add(key="a")
    inner.value.int_value = 5
    kept = decode(request, NOW).spans[1]
    found = unpack(kept.rest).attributes
    assert (kept.kind, kept.status, found["span.kind"], found["status.message"]) == (FOREIGN, 2, "client", "timed out")
    assert found["otel.links"] == ["01" * 16 + ":" + "02" * 8]
    assert {key: found[key] for key in ("yes", "no", "zero", "none", "half", "list", "bytes", "unset", "map")} == {
        "yes": True, "no": False, "zero": 0, "none": "", "half": 0.5, "list": [1, "a"], "bytes": b"\0\1", "unset": None,
        "map": {"a": 5},
    }  # fmt: skip


def test_long_names_are_cut() -> None:
    request = foreign(name="n" * 1_000)
    request.resource_spans[0].resource.attributes[0].value.string_value = "s" * 1_000
    span = decode(request, NOW).spans[1]
    assert len(span.name) == len(span.source.service) == 256


def test_who_sent_and_what_is_complained_of() -> None:
    request = foreign(trace_id=b"")
    assert senders(request) == {"PhoneCall (gateway:4711)": 2}
    decoded = decode(request, NOW)
    assert decoded.complaint() == "1 x id of a wrong length"
    assert decode(ExportTraceServiceRequest(), NOW) == Decoded()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_bytes_bring_it_down(data: st.DataObject) -> None:
    """A good request with some bytes changed is unreadable, or decoded in part."""
    body = bytearray(made.request(made.phone_call("call-1", 1)[:3]).SerializeToString())
    for _ in range(data.draw(st.integers(1, 8))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        request = ExportTraceServiceRequest.FromString(bytes(body))
    except Exception:
        return
    decoded = decode(request, NOW)
    assert all(isinstance(span, Arrived) for span in decoded.spans)
    assert len(decoded.spans) + decoded.refused.total() == sum(senders(request).values())
