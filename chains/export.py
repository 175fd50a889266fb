"""Calls, turns and hops as OpenTelemetry spans, sent by OTLP: what they are called, what they bear, where they go.

Spans are built in the sender's thread, straight from the accounts. What a caller said is never in one.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from msgspec import json
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from chains.call import HANG_UP, Turn
from chains.errors import SettingError
from chains.otlp import Batches, Endpoint, endpoint_of, header_can_hold, is_url, number, pairs
from chains.spans import CallRecord, Exporter, account, outcome_of, state_of
from chains.timing import Note, Timing, Wait, Work
from chains.trace import new_span

log = logging.getLogger("chains.export")

# What spans are called by those who read them. "" and 0 are left out.
KIND: Final = "chains.kind"  # "call", "turn" or "hop"
CALL, TURN = "chains.call", "chains.turn"
METHOD, TENANT, PRIORITY, OUTCOME, REASON = (
    "chains.method", "chains.tenant", "chains.priority", "chains.outcome", "chains.reason",
)  # fmt: skip
TURNS, DROPPED = "chains.turns", "chains.dropped"
LATENCY, LATENCY_START, SPOKEN, CANCELLED, PLAYED, STATE, PATH = (
    "chains.latency_ms", "chains.latency_start_ms", "chains.spoken", "chains.cancelled", "chains.played_ms",
    "chains.state", "chains.path",
)  # fmt: skip
NODE, REPLICA, ATTEMPTS, ITEMS_IN, ITEMS_OUT, FIRST_ITEM = (
    "chains.node", "chains.replica", "chains.attempts", "chains.items_in", "chains.items_out", "chains.first_item_ms",
)  # fmt: skip
PARTS: Final = {part: f"chains.{part}_ms" for part in ("serialise", "wire", "queue", "compute", "wait")}
RECEIVED, ACCEPTED, ENDED = "chains.received_ms", "chains.accepted_ms", "chains.ended_ms"
ERROR, WAITS, WORKS = "error.type", "chains.waits", "chains.works"
OURS: Final = frozenset(
    (KIND, CALL, TURN, METHOD, OUTCOME, NODE, REPLICA, ATTEMPTS, ITEMS_IN, ITEMS_OUT, FIRST_ITEM, *PARTS.values(),
     RECEIVED, ACCEPTED, ENDED, ERROR, WAITS, WORKS)
)  # fmt: skip
"""Attributes of a hop that a note cannot take."""
STRETCHES, NEAR = 48, 1e-3
"""The waits and works that a hop's span bears at most, and the seconds between two that are shown as one."""
REASON_LENGTH = 256
SLICE = 8
"""Spans that are built before the event loop is let in."""
VIEWER = Endpoint("", timeout=5.0, queue=16_384, delay=0.25)
"""As for a collector, but soon: the page shows calls while they go on."""

Item = tuple[CallRecord, Timing | Turn | None]


class Spans:
    """Makes requests of what has ended. `dropped()` says how many spans were lost since it was asked last."""

    def __init__(self, resource: Mapping[str, str], dropped: Callable[[], int]) -> None:
        self._dropped = dropped
        self._empty = ResourceSpans()
        for name, value in resource.items():
            _attribute(self._empty.resource.attributes, name, value)

    def request(self, items: Sequence[Item], rest: Callable[[], None]) -> bytes:
        """An ExportTraceServiceRequest; `rest` is called between small steps."""
        spans = ScopeSpans()
        spans.scope.name = "chains"
        for position, (record, ended) in enumerate(items, 1):
            span = spans.spans.add()
            if isinstance(ended, Timing):
                _hop(span, record, ended)
            elif ended is None:
                _call(span, record, self._dropped())
            else:
                _turn(span, record, ended)
                rest()
            if position % SLICE == 0:
                rest()
        request = ExportTraceServiceRequest()
        whole = request.resource_spans.add()
        whole.CopyFrom(self._empty)
        whole.scope_spans.append(spans)
        body: bytes = request.SerializeToString()
        return body


def _begin(span: Span, record: CallRecord, name: str, id: int, parent: int, start: float, end: float) -> None:
    call = record.call
    zero = int(call.opened_wall * 1e9)
    span.trace_id = bytes.fromhex(call.trace_id)
    span.span_id = id.to_bytes(8, "big")
    if parent:
        span.parent_span_id = parent.to_bytes(8, "big")
    if call.tracestate:
        span.trace_state = call.tracestate
    span.flags = int(call.sampled)
    span.name = name
    span.kind = Span.SPAN_KIND_INTERNAL
    span.start_time_unix_nano = zero + int((start - call.opened) * 1e9)
    span.end_time_unix_nano = zero + int((end - call.opened) * 1e9)


def _hop(span: Span, record: CallRecord, hop: Timing) -> None:
    start = hop.opened
    parent = record.call.span if hop.parent is None else hop.parent.span
    _begin(span, record, hop.label, hop.span, parent, start, hop.closed)

    def at(moment: float) -> float:
        return (moment - start) * 1e3 if moment else 0.0

    fields: dict[str, Note] = {
        KIND: "hop",
        CALL: record.id,
        TURN: hop.turn,
        NODE: hop.node,
        METHOD: hop.method,
        REPLICA: hop.replica,
        OUTCOME: hop.outcome,
        ATTEMPTS: hop.attempts if hop.attempts > 1 else 0,
        ITEMS_IN: hop.items_in,
        ITEMS_OUT: hop.items_out,
        FIRST_ITEM: at(hop.first_item),
        RECEIVED: at(hop.received),
        ACCEPTED: at(hop.accepted),
        ENDED: at(hop.ended),
        ERROR: hop.error,
    }
    for part, seconds in hop.parts().items():
        fields[PARTS[part]] = seconds * 1e3
    if hop.waits:
        fields[WAITS] = _waits(list(hop.waits), start)
    if hop.works:
        fields[WORKS] = _works(list(hop.works), start)
    _attributes(span, fields)
    for name, note in list(hop.notes.items()):
        if name not in OURS:
            _attribute(span.attributes, name, note)
    if hop.outcome == "error":
        span.status.code = Status.STATUS_CODE_ERROR


def _call(span: Span, record: CallRecord, dropped: int) -> None:
    call = record.call
    parent = int(call.parent_span, 16) if call.parent_span else 0
    _begin(span, record, "call", call.span, parent, call.opened, record.closed)
    outcome = outcome_of(record)
    fields: dict[str, Note] = {
        KIND: "call",
        CALL: call.id,
        METHOD: record.root.label if record.root else "",
        TENANT: call.tenant,
        PRIORITY: call.priority if call.priority != "interactive" else "",
        OUTCOME: outcome,
        REASON: call.reason[:REASON_LENGTH] if outcome == "cancelled" or call.reason == HANG_UP else "",
        TURNS: len(call.turns),
        DROPPED: dropped,
        ERROR: record.failed,
    }
    _attributes(span, fields)
    if outcome == "error":
        span.status.code = Status.STATUS_CODE_ERROR


def _turn(span: Span, record: CallRecord, turn: Turn) -> None:
    _begin(span, record, f"turn {turn.number}", new_span(), record.call.span, turn.opened, turn.ended)
    entry = account(record, turn)
    fields: dict[str, Note] = {
        KIND: "turn",
        CALL: record.id,
        TURN: turn.number,
        CANCELLED: turn.reason[:REASON_LENGTH],
        PLAYED: record.call.played.of(turn.number),
        STATE: state_of(turn),
    }
    if entry is not None:
        fields[LATENCY] = entry.ms
        fields[LATENCY_START] = (entry.start - turn.opened) * 1e3
        fields[SPOKEN] = entry.spoken
        fields[PATH] = _json(
            [s.label, s.part, s.name, s.replica, *_stretch(s.start, s.end, entry.start)] for s in entry.segments
        )
    _attributes(span, fields)
    zero = span.start_time_unix_nano
    for name, moment in list(turn.marks.items()):
        event = span.events.add()
        event.name = _text(name)
        event.time_unix_nano = zero + int((moment - turn.opened) * 1e9)
    if fields[STATE] == "failed":
        span.status.code = Status.STATUS_CODE_ERROR


def _waits(waits: list[Wait], start: float) -> str:
    shown: list[Wait] = []
    for wait in waits:
        last = shown[-1] if shown else None
        same = last is not None and (last.kind, last.on, last.turn) == (wait.kind, wait.on, wait.turn)
        if last is not None and same and wait.start - last.end < NEAR:
            shown[-1] = Wait(last.start, max(last.end, wait.end), last.kind, last.on, last.turn)
        else:
            shown.append(wait)
    return _json(
        [*_stretch(w.start, w.end, start), w.kind, f"{w.on.span:016x}" if w.on else "", w.turn]
        for w in shown[-STRETCHES:]
    )


def _works(works: list[Work], start: float) -> str:
    shown: list[Work] = []
    for work in works:
        last = shown[-1] if shown else None
        same = last is not None and (last.name, last.turn) == (work.name, work.turn)
        if last is not None and same and work.start - last.end < NEAR:
            shown[-1] = Work(last.name, last.start, max(last.end, work.end), last.turn)
        else:
            shown.append(work)
    return _json([*_stretch(w.start, w.end, start), w.name, w.turn] for w in shown[-STRETCHES:])


def _stretch(start: float, end: float, zero: float) -> tuple[float, float]:
    """(start, length) in milliseconds after `zero`, to the microsecond, such that neighbours meet."""
    first = round((start - zero) * 1e3, 3)
    return first, round(round((end - zero) * 1e3, 3) - first, 3)


def _json(rows: Iterable[list[Any]]) -> str:
    return json.encode(list(rows)).decode()


def _attributes(span: Span, fields: Mapping[str, Note]) -> None:
    for name, value in fields.items():
        if value:
            _attribute(span.attributes, name, value)


def _attribute(attributes: Any, name: str, value: Note) -> None:
    attribute = attributes.add()
    attribute.key = _text(name)
    held = attribute.value
    if isinstance(value, str):
        held.string_value = _text(value)
    elif isinstance(value, bool):
        held.bool_value = value
    elif isinstance(value, int) and -(2**63) <= value < 2**63:
        held.int_value = value
    elif isinstance(value, int | float):
        held.double_value = float(value)
    else:
        held.array_value.SetInParent()
        for text in value:
            held.array_value.values.add().string_value = _text(text)


def _text(text: str) -> str:
    """Without the surrogates that UTF-8 has no place for."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class OtlpExporter:
    """Sends calls, turns and hops to an OTLP endpoint. `dropped` counts spans that did not get there.

    `sample(trace_id, sampled)` says of a call that begins, and of how its parent was sampled (None: it has none),
    whether it is sent. Without it all are, whatever their parent says.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        resource: Mapping[str, str],
        sample: Callable[[str, bool | None], bool] | None = None,
    ) -> None:
        self._sample = sample
        self._told = self._telling = 0
        self._spans = Spans(resource, self._news)
        self._batches: Batches[Item] = Batches(endpoint, self._request, self._sent)
        self._put = self._batches.put

    @property
    def dropped(self) -> int:
        return self._batches.dropped

    def _request(self, items: Sequence[Item], rest: Callable[[], None]) -> bytes:
        self._telling = self._told  # a request before this one that was lost has told nobody
        return self._spans.request(items, rest)

    def _news(self) -> int:
        """How many were dropped that no span before has told of."""
        news, self._telling = self.dropped - self._telling, self.dropped
        return news

    def _sent(self) -> None:
        self._told = self._telling

    def opened(self, record: CallRecord) -> None:
        call = record.call
        if self._sample is not None:
            call.sampled = self._sample(call.trace_id, call.sampled if call.parent_span else None)

    def hop(self, record: CallRecord, timing: Timing) -> None:
        if self._sample is None or record.call.sampled:
            self._put((record, timing))

    def turn(self, record: CallRecord, turn: Turn) -> None:
        if self._sample is None or record.call.sampled:
            self._put((record, turn))

    def closed(self, record: CallRecord) -> None:
        if self._sample is None or record.call.sampled:
            self._put((record, None))

    def flush(self) -> bool:
        """Whether all is sent within a moment."""
        return self._batches.flush()

    def close(self) -> None:
        self._batches.close()


class Both:
    """Two exporters as one; each has its own queue."""

    def __init__(self, first: Exporter, second: Exporter) -> None:
        self._each = (first, second)

    def opened(self, record: CallRecord) -> None:
        for exporter in self._each:
            exporter.opened(record)

    def hop(self, record: CallRecord, timing: Timing) -> None:
        for exporter in self._each:
            exporter.hop(record, timing)

    def turn(self, record: CallRecord, turn: Turn) -> None:
        for exporter in self._each:
            exporter.turn(record, turn)

    def closed(self, record: CallRecord) -> None:
        for exporter in self._each:
            exporter.closed(record)

    def flush(self) -> None:
        for exporter in self._each:
            exporter.flush()

    def close(self) -> None:
        for exporter in self._each:
            exporter.close()


def exporter_from_env(
    environ: Mapping[str, str], *, chain: str = "", app: str = "", version: str = ""
) -> Exporter | None:
    """Exports where the standard variables ask for it (an OTLP endpoint, or OTEL_TRACES_EXPORTER=otlp), and to the
    viewer at $CHAINS_VIEWER (with $CHAINS_VIEWER_KEY); None when nobody asks. Raises SettingError.
    """
    resource = resource_of(environ, chain=chain, app=app, version=version)
    found: list[Exporter] = []
    if _asked(environ):
        found.append(OtlpExporter(endpoint_of(environ), resource, sampler(environ)))
    if viewer := environ.get("CHAINS_VIEWER", ""):
        found.append(OtlpExporter(viewer_endpoint(viewer, environ.get("CHAINS_VIEWER_KEY", "")), resource))
    return Both(*found) if len(found) == 2 else next(iter(found), None)


def viewer_endpoint(url: str, key: str = "") -> Endpoint:
    """The viewer whose page is at `url`."""
    if not is_url(url):
        raise SettingError(f"CHAINS_VIEWER is {url!r}", mend="write the page's address, http://HOST:PORT")
    if not header_can_hold(key):
        raise SettingError("CHAINS_VIEWER_KEY is more than one line of ASCII", mend="give the page's key, nothing else")
    return replace(
        VIEWER, url=f"{url.rstrip('/')}/v1/traces", headers={"Authorization": f"Bearer {key}"} if key else {}
    )


def _asked(environ: Mapping[str, str]) -> bool:
    wanted = {name.strip() for name in (environ.get("OTEL_TRACES_EXPORTER") or "otlp").split(",")}
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if others := ", ".join(sorted(wanted - {"otlp", "none", ""})):
        log.warning("OTEL_TRACES_EXPORTER names %.80r: chains knows otlp and none, and sends by no other", others)
    if "otlp" not in wanted:
        return False
    asked = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")
    return any(environ.get(name) for name in asked)


def sampler(environ: Mapping[str, str]) -> Callable[[str, bool | None], bool]:
    """Which calls are sent, by OTEL_TRACES_SAMPLER: `sample(trace_id, how the parent was sampled)`."""
    name = environ.get("OTEL_TRACES_SAMPLER") or "parentbased_always_on"
    by_parent, kind = name.startswith("parentbased_"), name.removeprefix("parentbased_")
    if kind not in ("always_on", "always_off", "traceidratio"):
        raise SettingError(
            f"OTEL_TRACES_SAMPLER is {name!r}",
            mend="write always_on, always_off or traceidratio, or one of them after parentbased_",
        )
    ratio = {"always_on": 1.0, "always_off": 0.0}.get(kind)
    if ratio is None:
        ratio = number(environ, "OTEL_TRACES_SAMPLER_ARG", 1.0)
        if ratio > 1.0:
            raise SettingError(f"OTEL_TRACES_SAMPLER_ARG is {ratio:g}", mend="write a share from 0 to 1")
    bound = round(ratio * 2**64)

    def sample(trace_id: str, parent: bool | None) -> bool:
        if by_parent and parent is not None:
            return parent
        return int(trace_id[16:], 16) < bound

    return sample


def resource_of(environ: Mapping[str, str], *, chain: str = "", app: str = "", version: str = "") -> dict[str, str]:
    """Who sends: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES go before what is known of the chain."""
    known = {
        "service.name": chain or "chains",
        "service.version": version,
        "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
    }
    said = pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    if name := environ.get("OTEL_SERVICE_NAME", ""):
        said["service.name"] = name
    found = {**known, **said, "chains.chain": chain, "chains.app": app, "telemetry.sdk.language": "python"}
    return {name: value for name, value in found.items() if value}
