"""Where the time went. The account of every hop of recent calls is kept in memory; exporting spans is a switch.

A turn is accounted along its critical path: at each moment, the hop that the turn's root was waiting for, followed down
to the one that worked. So the segments of the path add up to the turn's latency exactly.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from chains.call import Call, Turn
from chains.timing import Clock, Timing, Wait

Part = Literal["serialise", "wire", "queue", "compute", "wait"]
CALLS = 256
HOPS = 4_096
TOTAL = 50_000


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a critical path, in monotonic seconds: `label` is the hop, `name` what it did there."""

    label: str
    part: Part
    name: str
    start: float
    end: float

    @property
    def ms(self) -> float:
        return (self.end - self.start) * 1e3


@dataclass(slots=True, eq=False)
class CallRecord:
    """What is known of one call: its hops (the last 4,096 that ended) and its turns."""

    call: Call
    hops: deque[Timing] = field(default_factory=lambda: deque(maxlen=HOPS))
    root: Timing | None = None
    closed: float = 0.0

    @property
    def id(self) -> str:
        return self.call.id

    @property
    def turns(self) -> list[Turn]:
        return self.call.turns


class Exporter(Protocol):
    """Where spans go when export is on."""

    def hop(self, record: CallRecord, timing: Timing) -> None: ...
    def closed(self, record: CallRecord) -> None: ...
    def flush(self) -> None: ...


class Recorder:
    """Keeps the accounts of the last `calls` calls (fewer when they have more than 50,000 hops together), and hands
    spans to `exporter` when there is one.
    """

    def __init__(self, clock: Clock, *, calls: int = CALLS, exporter: Exporter | None = None) -> None:
        self._clock = clock
        self._limit = calls
        self._exporter = exporter
        self._records: OrderedDict[str, CallRecord] = OrderedDict()
        self._hops = 0

    def open(self, call: Call) -> None:
        if call.id in self._records:  # an id that is used again: its last call is kept
            self._forget(call.id)
        self._records[call.id] = CallRecord(call)
        while len(self._records) > self._limit:
            self._forget(next(iter(self._records)))

    def _forget(self, id: str) -> None:
        self._hops -= len(self._records.pop(id).hops)

    def add(self, timing: Timing) -> None:
        """A hop has ended."""
        record = self._records.get(timing.call)
        if record is None:
            return
        if len(record.hops) < HOPS:
            self._hops += 1
        record.hops.append(timing)
        while self._hops > TOTAL and len(self._records) > 1:
            self._forget(next(iter(self._records)))
        if timing.parent is None and record.root is None:
            record.root = timing
        if self._exporter is not None:
            self._exporter.hop(record, timing)

    def close(self, call: Call) -> None:
        record = self._records.get(call.id)
        if record is not None:
            record.closed = self._clock.now()
            if self._exporter is not None:
                self._exporter.closed(record)

    def flush(self) -> None:
        if self._exporter is not None:
            self._exporter.flush()

    @property
    def calls(self) -> Sequence[CallRecord]:
        """Recent calls, the oldest first."""
        return list(self._records.values())

    def find(self, call: str) -> CallRecord | None:
        return self._records.get(call)


def critical_path(root: Timing, start: float, end: float, turn: int = 0) -> list[Segment]:
    """What the time from `start` to `end` (monotonic seconds) went into, seen from hop `root`.

    Where several waits overlap, one that belongs to `turn` counts before one of the whole call, and of those the one
    that lasted longest. The segments are in order, without gap or overlap.
    """
    segments: list[Segment] = []
    _walk(root, start, end, turn, segments, (root,))
    return _merged(segments)


def _walk(hop: Timing, start: float, end: float, turn: int, out: list[Segment], seen: tuple[Timing, ...]) -> None:
    """Split [start, end] of `hop` at the edges of its states and waits; follow the waits down."""
    waits = [w for w in _waits(hop, end) if w.start < end and w.end > start]
    works = [w for w in hop.works if w.start < end and w.end > start and (not w.turn or not turn or w.turn == turn)]
    received, accepted = hop.received or end, hop.accepted or end
    ended = hop.ended or end
    edges = {start, end, hop.opened, received, accepted, ended}
    edges.update(t for w in waits for t in (w.start, w.end))
    edges.update(t for w in works for t in (w.start, w.end))
    points = sorted(t for t in edges if start <= t <= end)
    for left, right in itertools.pairwise(points):
        if right <= left:
            continue
        middle = (left + right) / 2
        if middle < received or middle > ended:
            out.append(Segment(hop.label, "wire", "", left, right))
        elif middle < accepted:
            out.append(Segment(hop.label, "queue", "", left, right))
        elif work := next((w for w in reversed(works) if w.start <= middle < w.end), None):
            out.append(Segment(hop.label, "compute", work.name, left, right))
        elif wait := _chosen([w for w in waits if w.start <= middle < w.end and not _closed(w, seen)], turn):
            _follow(hop, wait, left, right, turn, out, seen)
        elif any(w.start <= middle < w.end for w in waits):
            out.append(Segment(hop.label, "wait", "", left, right))
        else:
            out.append(Segment(hop.label, "compute", "", left, right))


def _follow(
    hop: Timing,
    wait: Wait,
    left: float,
    right: float,
    turn: int,
    out: list[Segment],
    seen: tuple[Timing, ...],
) -> None:
    if wait.on is None:
        out.append(Segment(hop.label, "wait", wait.kind, left, right))
    else:
        _walk(wait.on, left, right, turn, out, (*seen, wait.on))


def _closed(wait: Wait, seen: tuple[Timing, ...]) -> bool:
    """Whether following this wait would go in a circle. An input leads back to its maker, once: it may wait too."""
    return wait.on is not None and seen.count(wait.on) >= (2 if wait.kind == "input" else 1)


def _waits(hop: Timing, now: float) -> Iterable[Wait]:
    yield from hop.waits
    for wait in hop.open_waits:
        yield Wait(wait.start, now, wait.kind, wait.on, wait.turn)


def _chosen(waits: list[Wait], turn: int) -> Wait | None:
    own = [w for w in waits if w.turn == turn] if turn else []
    others = [w for w in waits if not w.turn] or waits
    return max(own or others, key=lambda w: w.end, default=None)


def _merged(segments: list[Segment]) -> list[Segment]:
    merged: list[Segment] = []
    for segment in segments:
        last = merged[-1] if merged else None
        if last and (last.label, last.part, last.name) == (segment.label, segment.part, segment.name):
            merged[-1] = Segment(last.label, last.part, last.name, last.start, segment.end)
        else:
            merged.append(segment)
    return merged


@dataclass(frozen=True, slots=True)
class TurnAccount:
    """One turn's latency: from `speech_end` (or the turn's start) to `first_audio` (or its end), and its path.

    `cancelled` is why it was, "" if it was not; `spoken` says that it began with the end of somebody's speech.
    """

    number: int
    start: float
    end: float
    segments: tuple[Segment, ...]
    cancelled: str
    spoken: bool = False

    @property
    def ms(self) -> float:
        return (self.end - self.start) * 1e3

    def by_hop(self) -> list[tuple[str, float]]:
        """(what, milliseconds) in the order in which each first stood on the path; they sum to `ms`."""
        totals: dict[str, float] = {}
        for s in self.segments:
            name = f"{s.label} {s.name or s.part}"
            totals[name] = totals.get(name, 0.0) + s.ms
        return list(totals.items())


def account(record: CallRecord, turn: Turn) -> TurnAccount | None:
    """The account of a turn that has begun to be answered; None while there is nothing to account."""
    start = turn.marks.get("speech_end", turn.opened)
    end = turn.marks.get("first_audio", turn.ended)
    root = record.root or next((hop for hop in record.hops if hop.parent is None), None) or _open_root(record)
    if root is None or end <= start:
        return None
    path = critical_path(root, start, end, turn.number)
    return TurnAccount(turn.number, start, end, tuple(path), turn.reason, "speech_end" in turn.marks)


def _open_root(record: CallRecord) -> Timing | None:
    """The entry's hop while it still runs: it is the parent of hops that have ended."""
    for hop in record.hops:
        above = hop
        while above.parent is not None:
            above = above.parent
        return above
    return None


def hop_rows(hops: Iterable[Timing]) -> list[dict[str, Any]]:
    """One row for each (node, method): calls, errors, and milliseconds by part, summed."""
    rows: dict[str, dict[str, Any]] = {}
    for hop in hops:
        row = rows.setdefault(hop.label, {"hop": hop.label, "calls": 0, "errors": 0, "items": 0})
        row["calls"] += 1
        row["errors"] += hop.outcome == "error"
        row["items"] += hop.items_out
        for part, seconds in hop.parts().items():
            row[part] = row.get(part, 0.0) + seconds * 1e3
    return sorted(rows.values(), key=lambda row: -row["compute"])


def table(record: CallRecord) -> str:
    """The call in plain text: each turn's latency and what it went into, then every hop's parts in milliseconds."""
    lines = [f"call {record.id}"]
    accounts = [a for turn in record.turns if (a := account(record, turn)) is not None]
    for entry in accounts:
        note = f" (cancelled: {entry.cancelled})" if entry.cancelled else ""
        since = "from end of speech " if entry.spoken else ""
        lines.append(f"  turn {entry.number}: {entry.ms:.0f} ms {since}to first audio{note}")
        if not entry.cancelled:
            lines.extend(_path_lines(entry))
    parts = ("serialise", "wire", "queue", "compute", "wait")
    head = f"  {'hop':<32}{'calls':>6}{'errors':>7}" + "".join(f"{part:>11}" for part in parts)
    lines.append(head + "   (ms; wait is for other hops, for input and for slow readers)")
    for row in hop_rows(record.hops):
        figures = "".join(f"{row[part]:>11.1f}" for part in parts)
        lines.append(f"  {row['hop']:<32}{row['calls']:>6}{row['errors']:>7}{figures}")
    return "\n".join(lines)


def _path_lines(entry: TurnAccount) -> list[str]:
    """What the turn's time went into; what took less than a millisecond stands together in the last line."""
    named = [(name, ms) for name, ms in entry.by_hop() if ms >= 1.0]
    rest = entry.ms - sum(ms for _, ms in named)
    return [f"    {name:<44} {ms:8.1f} ms" for name, ms in [*named, ("everything else", rest)]]


def to_json(record: CallRecord) -> dict[str, Any]:
    """The call as plain data; times are milliseconds since the call was opened."""
    zero = record.call.opened

    def ms(t: float) -> float:
        return round((t - zero) * 1e3, 3)

    return {
        "call": record.id,
        "trace_id": record.call.trace_id,
        "opened": record.call.opened_wall,
        "turns": [_turn_json(record, turn, ms) for turn in record.turns],
        "hops": [
            {
                "id": hop.id,
                "parent": hop.parent.id if hop.parent else None,
                "turn": hop.turn,
                "node": hop.node,
                "method": hop.method,
                "replica": hop.replica,
                "start": ms(hop.opened),
                "end": ms(hop.closed or hop.opened),
                "first_item": ms(hop.first_item) if hop.first_item else None,
                "outcome": hop.outcome,
                "error": hop.error,
                "attempts": hop.attempts,
                "items_in": hop.items_in,
                "items_out": hop.items_out,
                "parts": {part: round(seconds * 1e3, 3) for part, seconds in hop.parts().items()},
                "work": [{"name": w.name, "start": ms(w.start), "end": ms(w.end)} for w in hop.works],
            }
            for hop in record.hops
        ],
    }


def _turn_json(record: CallRecord, turn: Turn, ms: Callable[[float], float]) -> dict[str, Any]:
    entry = account(record, turn)
    return {
        "number": turn.number,
        "start": ms(turn.opened),
        "end": ms(turn.ended) if turn.ended else None,
        "cancelled": turn.cancelled,
        "marks": {name: ms(at) for name, at in turn.marks.items()},
        "played_ms": record.call.played.of(turn.number),
        "latency_ms": round(entry.ms, 3) if entry else None,
        "critical_path": [
            {"hop": s.label, "part": s.part, "name": s.name, "start": ms(s.start), "ms": round(s.ms, 3)}
            for s in (entry.segments if entry else ())
        ],
    }


class OtlpExporter:
    """Hands hops and calls as OpenTelemetry spans to an OTLP endpoint, in batches, from a thread of the SDK's.

    Configured by the standard OTEL_* variables alone. What a caller said is never in a span.
    """

    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "chains")})
        self._processor = BatchSpanProcessor(OTLPSpanExporter())
        self._salt = secrets.randbits(63) | 1

    def hop(self, record: CallRecord, timing: Timing) -> None:
        parent = self._span_id(timing.parent.id) if timing.parent else self._call_id(record)
        attributes: dict[str, Any] = {
            "chains.call": record.id,
            "chains.turn": timing.turn,
            "chains.replica": timing.replica,
            "chains.attempts": timing.attempts,
            "chains.outcome": timing.outcome,
            "chains.items_in": timing.items_in,
            "chains.items_out": timing.items_out,
            **{f"chains.{part}_ms": seconds * 1e3 for part, seconds in timing.parts().items()},
        }
        if timing.error:
            attributes["error.type"] = timing.error
        self._emit(record, timing.label, self._span_id(timing.id), parent, timing.opened, timing.closed, attributes)

    def closed(self, record: CallRecord) -> None:
        parent = int(record.call.parent_span, 16) if record.call.parent_span else 0
        attributes: dict[str, Any] = {"chains.call": record.id, "chains.turns": len(record.turns)}
        for turn in record.turns:
            entry = account(record, turn)
            if entry is not None:
                attributes[f"chains.turn.{turn.number}.latency_ms"] = entry.ms
        self._emit(record, "call", self._call_id(record), parent, record.call.opened, record.closed, attributes)

    def flush(self) -> None:
        self._processor.force_flush(5_000)

    def close(self) -> None:
        """Send what is left, and end the SDK's thread."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]

    def _span_id(self, id: str) -> int:
        return ((int(id, 16) * 0x9E3779B97F4A7C15) ^ self._salt) % 2**64 or 1

    def _call_id(self, record: CallRecord) -> int:
        return int.from_bytes(hashlib.blake2b(record.id.encode(), digest_size=8).digest(), "big") or 1

    def _emit(
        self,
        record: CallRecord,
        name: str,
        id: int,
        parent: int,
        start: float,
        end: float,
        attributes: dict[str, Any],
    ) -> None:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        call = record.call
        trace = int(call.trace_id, 16)
        flags = TraceFlags(TraceFlags.SAMPLED)
        failed = "error.type" in attributes
        self._processor.on_end(
            ReadableSpan(
                name,
                context=SpanContext(trace, id, is_remote=False, trace_flags=flags),
                parent=SpanContext(trace, parent, is_remote=False, trace_flags=flags) if parent else None,
                resource=self._resource,
                attributes=attributes,
                kind=SpanKind.INTERNAL,
                status=Status(StatusCode.ERROR if failed else StatusCode.UNSET),
                start_time=int((call.opened_wall + start - call.opened) * 1e9),
                end_time=int((call.opened_wall + end - call.opened) * 1e9),
            )
        )


def exporter_from_env(environ: Mapping[str, str]) -> OtlpExporter | None:
    """An exporter when the standard variables ask for one (an OTLP endpoint, or OTEL_TRACES_EXPORTER=otlp)."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return None
    asked = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")
    return OtlpExporter() if any(environ.get(name) for name in asked) else None
