"""OTLP requests to spans for the store: each span is checked by itself, and a bad one refused alone."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from chains.errors import LimitExceeded
from chains.records.arrived import Arrived, CallEnd, Length, Millis, Source, TurnEnd
from chains.records.packing import PART_KEYS, PARTS, Shares, pack, pack_parts, pack_path, signed
from chains.records.private import holds_words, without_words
from chains.records.schema import CALL, FOREIGN, HOP, TURN

UNNAMED = Source().label
LONGEST_TEXT = 256
DEEPEST = 8
_SLACK_MS = 1_000.0
MOST_PARTS = 1_000_000
_RESOURCE = 1_000  # attributes of a resource that are looked at
_DAY = 86_400 * 1_000_000_000
_LONGEST = 30 * _DAY
_EARLIEST = 946_684_800 * 1_000_000_000  # the year 2000
_KINDS = {"hop": HOP, "turn": TURN, "call": CALL}
_OUTCOMES = ("done", "error", "cancelled")
_STATES = ("answered", "interrupted", "dropped", "failed")
_SPAN_KINDS = ("", "internal", "server", "client", "producer", "consumer")
_PARTS = frozenset(PARTS)
_path = msgspec.json.Decoder(list[tuple[str, str, str, str, Millis, Length]])


@dataclass(slots=True)
class Decoded:
    """What a request held: spans to keep, how many were refused and why, and who sent it."""

    spans: list[Arrived] = field(default_factory=list)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)

    def complaint(self) -> str:
        """The reasons for refusals, in words; empty when there are none."""
        reasons: Counter[str] = Counter()
        for (_, reason), number in self.refused.items():
            reasons[reason] += number
        return ", ".join(f"{number} x {reason}" for reason, number in reasons.most_common())


class Refused(Exception):
    """A span that is not kept; the text says why, in a few words of ours."""


def decode(request: ExportTraceServiceRequest, now: int | None = None) -> Decoded:
    """Every span of the request, checked; `now` is in ns since 1970."""
    decoded = Decoded()
    latest = (time.time_ns() if now is None else now) + _DAY
    for group in request.resource_spans:
        source = source_of(group.resource)
        for scope in group.scope_spans:
            take(scope.spans, source, latest, decoded)
    return decoded


def weigh(request: ExportTraceServiceRequest) -> None:
    """LimitExceeded when its spans have more attributes and events than any that say something could have in the
    bytes of a request."""
    parts = 0
    for group in request.resource_spans:
        for scope in group.scope_spans:
            for span in scope.spans:
                parts += len(span.attributes)
                if events := span.events:
                    parts += len(events)
                    if parts < MOST_PARTS:
                        parts += sum(len(one.attributes) for one in events)
            if parts > MOST_PARTS:
                raise LimitExceeded(f"a request of more than {MOST_PARTS} attributes and events", mend="send fewer")


def take(spans: Iterable[Span], source: Source, latest: int, decoded: Decoded) -> None:
    """Check these, and add them to `decoded`; none may end after `latest`."""
    keep = decoded.spans.append
    for span in spans:
        try:
            keep(arrived(span, source, latest))
        except Refused as why:
            decoded.refused[source.label, str(why)] += 1


def senders(request: ExportTraceServiceRequest) -> Counter[str]:
    """How many spans each source sent, without a look at them."""
    found: Counter[str] = Counter()
    for group in request.resource_spans:
        found[source_of(group.resource).label] += sum(len(scope.spans) for scope in group.scope_spans)
    return found


def source_of(resource: Resource) -> Source:
    """Who exported: texts that are too long are cut, what is missing is empty."""
    known = {entry.key: entry.value.string_value[:LONGEST_TEXT] for entry in islice(resource.attributes, _RESOURCE)}
    return Source(
        service=known.get("service.name", ""),
        version=known.get("service.version", ""),
        instance=known.get("service.instance.id", ""),
        chain=known.get("chains.chain", ""),
        app=known.get("chains.app", ""),
    )


def arrived(span: Span, source: Source, latest: int) -> Arrived:
    """The span as the store takes it; Refused when something is wrong with it."""
    trace, own, above = span.trace_id, span.span_id, span.parent_span_id
    if len(trace) != 16 or len(own) != 8 or len(above) not in (0, 8) or not any(trace) or not any(own):
        raise Refused("id of a wrong length")
    start, end = span.start_time_unix_nano, span.end_time_unix_nano
    if end < start:
        raise Refused("end before start")
    if start < _EARLIEST or end > latest or end - start > _LONGEST:
        raise Refused("absurd time")
    status = span.status.code
    if not 0 <= status <= 2 or not 0 <= span.kind <= 5:
        raise Refused("unknown enum")
    attributes = attributes_of(span.attributes)
    pop = attributes.pop
    said, call, replica = pop("chains.kind", ""), pop("chains.call", ""), pop("chains.replica", "")
    turn = pop("chains.turn", 0)
    if not type(said) is type(call) is type(replica) is str or max(len(call), len(replica)) > LONGEST_TEXT:
        raise Refused("chains.kind, .call or .replica is no text, or too long")
    if call and (not call.isprintable() or "/" in call or call in (".", "..")):
        raise Refused("chains.call cannot stand in an address")
    if type(turn) is not int or not 0 <= turn < 2**31:
        raise Refused("chains.turn is no number")
    kind = _KINDS.get(said, FOREIGN)
    if kind and not call:
        raise Refused("no chains.call")
    parts = _parts(attributes) if kind == HOP else None
    detail: CallEnd | TurnEnd | None = None
    if kind == CALL:
        detail = _call_end(attributes, status)
    elif kind == TURN:
        detail = _turn_end(attributes, status, end - start)
    elif kind == FOREIGN:
        _foreign(span, attributes)
    if status == 2 and span.status.message:
        attributes["status.message"] = span.status.message
    name = span.name[:LONGEST_TEXT]
    return Arrived(
        source, trace, signed(own), signed(above), name, kind, call, turn, replica, start, end - start, status, parts,
        _rest(span, attributes, name, start), detail,
    )  # fmt: skip


def attributes_of(entries: Iterable[KeyValue], depth: int = 0) -> dict[str, Any]:
    """As plain data; what nests deeper than 8 is refused."""
    found: dict[str, Any] = {}
    for entry in entries:
        value = entry.value
        # most are texts and floats that are not empty: asking which of them is set costs more than trying
        found[entry.key] = value.string_value or value.double_value or value.int_value or _value(value, depth)
    return found


def _value(value: AnyValue, depth: int) -> Any:
    which = value.WhichOneof("value")
    if which is None:
        return None
    if which in ("array_value", "kvlist_value"):
        if depth >= DEEPEST:
            raise Refused("nested too deep")
        if which == "kvlist_value":
            return attributes_of(value.kvlist_value.values, depth + 1)
        return [_value(entry, depth + 1) for entry in value.array_value.values]
    return getattr(value, which)


def _rest(span: Span, attributes: dict[str, Any], name: str, start: int) -> bytes | None:
    events: list[tuple[str, int, dict[str, Any]]] = []
    if span.events:
        events = [
            (one.name, (one.time_unix_nano - start) // 1000, without_words(attributes_of(one.attributes)))
            for one in span.events
        ]
    if holds_words(attributes):
        attributes = without_words(attributes)
    try:
        return pack(attributes, events, name)
    except (OverflowError, ValueError, TypeError):
        raise Refused("attributes that are too large, or cannot be kept") from None


def _text(attributes: dict[str, Any], key: str) -> str:
    found = attributes.pop(key, "")
    if not isinstance(found, str) or len(found) > LONGEST_TEXT:
        raise Refused(f"{key} is no text, or too long")
    return found


def _number(attributes: dict[str, Any], key: str) -> int:
    found = attributes.pop(key, 0)
    if type(found) is not int or not 0 <= found < 2**31:
        raise Refused(f"{key} is no number")
    return found


def _ms(found: Any, key: str) -> float:
    if type(found) not in (int, float) or not math.isfinite(found) or abs(found) > 1e10:
        raise Refused(f"{key} is no time")
    return float(found)


def _parts(attributes: dict[str, Any]) -> bytes:
    pop = attributes.pop
    values = [pop(key, 0.0) for key in PART_KEYS]
    try:
        if not 0.0 <= sum(values) < 1e10 or min(values) < 0.0:  # also refuses what is no number
            raise Refused("a part that is no time")
        return pack_parts(values)
    except (TypeError, OverflowError):
        raise Refused("a part that is no time") from None


def _call_end(attributes: dict[str, Any], status: int) -> CallEnd:
    outcome = attributes.get("chains.outcome")
    return CallEnd(
        method=_text(attributes, "chains.method"),
        tenant=_text(attributes, "chains.tenant"),
        outcome=outcome if outcome in _OUTCOMES else ("done", "done", "error")[status],
        reason=str(attributes.get("chains.reason", ""))[:LONGEST_TEXT],
        turns=_number(attributes, "chains.turns"),
        lost=_number(attributes, "chains.dropped"),
    )


def _turn_end(attributes: dict[str, Any], status: int, duration: int) -> TurnEnd:
    state = attributes.get("chains.state")
    latency = _ms(attributes.get("chains.latency_ms", 0.0), "chains.latency_ms")
    before = max(0.0, -_ms(attributes.get("chains.latency_start_ms", 0.0), "chains.latency_start_ms"))
    if not 0.0 <= latency <= before + duration / 1e6 + _SLACK_MS:  # one such turn would spoil all percentiles
        raise Refused("chains.latency_ms is no part of the turn")
    path, shares = _packed_path(attributes)
    return TurnEnd(
        latency_ms=latency,
        state=state if state in _STATES else "failed" if status == 2 else "answered",
        reason=str(attributes.get("chains.cancelled", ""))[:LONGEST_TEXT],
        path=path,
        shares=shares,
    )


def _packed_path(attributes: dict[str, Any]) -> tuple[bytes | None, Shares]:
    """The critical path; one that is not as it should be stays among the attributes, as the text that it is."""
    text = attributes.get("chains.path")
    if not isinstance(text, str):
        return None, ()
    try:
        found = _path.decode(text)
    except msgspec.MsgspecError:
        return None, ()
    if len(found) > 4_096 or not _PARTS.issuperset([row[1] for row in found]):
        return None, ()
    del attributes["chains.path"]
    return pack_path(found)


def _foreign(span: Span, attributes: dict[str, Any]) -> None:
    """What else of a span of others is worth keeping."""
    if span.kind > 1:
        attributes["span.kind"] = _SPAN_KINDS[span.kind]
    if span.links:
        attributes["otel.links"] = [f"{link.trace_id.hex()}:{link.span_id.hex()}" for link in span.links[:32]]
