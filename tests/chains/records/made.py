"""Spans as processes would export them: phone calls, slow replicas, traces of others. For tests and benchmarks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from chains.records.store import Store
from chains.records.writer import Writer
from chains.viewer.otlp import decode

START = 1_790_000_000_000_000_000  # ns since 1970: 21 September 2026
MS = 1_000_000
RESOURCE = {
    "service.name": "PhoneCall",
    "service.version": "0badf00d",
    "service.instance.id": "gateway:4711",
    "chains.chain": "PhoneCall",
}


@dataclass(slots=True)
class Span:
    """A span to export; ids as OpenTelemetry has them, times in ns since 1970."""

    trace: bytes
    span: bytes
    parent: bytes
    name: str
    start: int
    end: int
    attributes: dict[str, Any]
    events: list[tuple[str, int]] = field(default_factory=list)
    status: int = 0


@dataclass(slots=True)
class Call:
    """Makes the spans of one call; ms are since the call's start."""

    id: str
    random: random.Random
    start: int
    trace: bytes
    root: bytes
    spans: list[Span] = field(default_factory=list)

    def hop(
        self, name: str, parent: bytes, turn: int, at: float, parts: Sequence[float], replica: str = "", **more: Any
    ) -> Span:
        """A hop that began `at` ms; parts (serialise, wire, queue, compute, wait) in ms add up to its time."""
        serialise, wire, queue, compute, wait = (round(part, 3) for part in parts)
        node, _, method = name.partition(".")
        total = serialise + wire + queue + compute + wait
        taken = round(serialise + wire / 2, 3)
        attributes: dict[str, Any] = {
            "chains.kind": "hop", "chains.call": self.id, "chains.turn": turn, "chains.node": node,
            "chains.method": method, "chains.replica": replica, "chains.outcome": "done", "chains.items_out": 1,
            "chains.serialise_ms": serialise, "chains.wire_ms": wire, "chains.queue_ms": queue,
            "chains.compute_ms": compute, "chains.wait_ms": wait, "chains.received_ms": taken,
            "chains.accepted_ms": round(taken + queue, 3), "chains.ended_ms": round(total - wire / 2, 3), **more,
        }  # fmt: skip
        failed = 2 if "error.type" in attributes else 0
        made = Span(
            self.trace, self.random.randbytes(8), parent, name, self.start + round(at * MS),
            self.start + round((at + total) * MS), {k: v for k, v in attributes.items() if v not in (0, "", 0.0)},
            status=failed,
        )  # fmt: skip
        self.spans.append(made)
        return made

    def turn(self, number: int, at: float, until: float, latency: float, path: list[list[Any]], **more: Any) -> Span:
        """A turn; `path` is what chains.path says."""
        attributes = {
            "chains.kind": "turn", "chains.call": self.id, "chains.turn": number, "chains.latency_ms": latency,
            "chains.latency_start_ms": 600.0, "chains.spoken": True, "chains.state": "answered",
            "chains.played_ms": round(until - at - latency - 600), "chains.path": json.dumps(path), **more,
        }  # fmt: skip
        start = self.start + round(at * MS)
        marks = [("speech_start", start), ("speech_end", start + 600 * MS)]
        marks.append(("first_audio", start + round((600 + latency) * MS)))
        made = Span(
            self.trace, self.random.randbytes(8), self.root, f"turn {number}", start, self.start + round(until * MS),
            attributes, marks,
        )  # fmt: skip
        self.spans.append(made)
        return made

    def close(self, until: float, turns: int, outcome: str = "done", reason: str = "") -> Span:
        """The span of the whole call."""
        attributes = {
            "chains.kind": "call", "chains.call": self.id, "chains.method": "PhoneCall.run", "chains.turns": turns,
            "chains.tenant": "acme", "chains.priority": "interactive", "chains.outcome": outcome,
        }  # fmt: skip
        attributes |= {"chains.reason": reason} if reason else {}
        end = self.start + round(until * MS)
        made = Span(self.trace, self.root, b"", "call", self.start, end, attributes, status=2 * (outcome == "error"))
        self.spans.append(made)
        return made


def phone_call(
    call: str = "call-1",
    turns: int = 6,
    *,
    start: int = START,
    replicas: int = 2,
    slow: str = "",
    slow_ms: float = 80.0,
    seed: int | str | None = None,
    states: Sequence[str] = (),
    outcome: str = "done",
) -> list[Span]:
    """A phone call as it is exported: hops as they end, turns, the call last; about 14 spans a turn.

    Chainlets VAD, STT, LLM, TTS run on `replicas` each (VAD-0, VAD-1, ...); each call of the replica named `slow`
    ("LLM-1") computes `slow_ms` longer. `states` are those of the first turns.
    """
    rnd = random.Random(call if seed is None else seed)
    made = Call(call, rnd, start, rnd.randbytes(16), rnd.randbytes(8))
    run = rnd.randbytes(8)
    at, waits = 0.0, []
    for number in range(1, turns + 1):
        state = states[number - 1] if number <= len(states) else "answered"
        began, at = at, _turn(made, run, number, at, state, replicas, (slow, slow_ms), rnd)
        waits.append([round(began, 3), round(at - began, 3), "input", "", number])
    root = made.hop("PhoneCall.run", made.root, 0, 0.0, (0.1, 0.4, 0.2, 12.0 * turns, at - 12.0 * turns))
    root.attributes["chains.waits"] = json.dumps(waits[-48:])
    for span in made.spans:  # its id was given out before it ended
        if span is root:
            span.span = run
    made.close((root.end - start) / MS + 2.0, turns, outcome)
    return made.spans


def _turn(
    call: Call,
    run: bytes,
    number: int,
    at: float,
    state: str,
    replicas: int,
    slow: tuple[str, float],
    rnd: random.Random,
) -> float:
    """One turn from `at`: hearing, thinking, speaking. Gives when it ended."""

    def hop(name: str, when: float, compute: float, wait: float = 0.0, **more: Any) -> Span:
        node = name.partition(".")[0]
        replica = f"{node}-{rnd.randrange(replicas)}"
        compute *= rnd.lognormvariate(0, 0.15)
        compute += slow[1] if replica == slow[0] else 0.0
        parts = (rnd.uniform(0.02, 0.1), rnd.uniform(0.2, 0.8), rnd.expovariate(1.0), compute, wait)
        return call.hop(name, run, number, when, parts, replica, **more)

    def ms(span: Span) -> float:
        return (span.end - span.start) / MS

    for window in range(4):
        hop("VAD.windows", at + 150.0 * window, 2.5, **{"chains.items_in": 8, "chains.items_out": 8})
    speech_end = at + 600.0
    heard = hop("STT.transcribe", speech_end, 90.0, **{"chains.works": _works(rnd, "encode", "decode", number, 2)})
    thought_at = speech_end + ms(heard)
    first = hop("Turns.finished", thought_at, 8.0)
    thought_at += ms(first)
    llm = hop(
        "LLM.stream", thought_at, 180.0, 420.0,
        **{
            "chains.items_out": 64, "chains.first_item_ms": 61.25, "chains.ttft_ms": 58.5,
            "gen_ai.operation.name": "chat", "gen_ai.request.model": "qwen3-0.6b",
            "gen_ai.usage.input_tokens": 200 + 60 * number, "gen_ai.usage.output_tokens": 64,
            "chains.cached_tokens": 128, "chains.works": _works(rnd, "prefill", "step", number, 12),
            "chains.waits": _credit(rnd, number, 6),
        },
    )  # fmt: skip
    said_at = thought_at + 70.0 + (slow[1] if llm.attributes["chains.replica"] == slow[0] else 0.0)
    speech = hop("TTS.speak", said_at, 60.0, **{"chains.first_item_ms": 45.0, "chains.items_out": 12})
    for sentence in range(1, 4):
        more = {"chains.items_out": 12, "chains.works": _works(rnd, "synthesise", "resample", number, 2)}
        hop("TTS.speak", said_at + 700.0 * sentence, 60.0, **more)
    replies = [hop("Memory.note", thought_at + 5.0, 1.5), hop("Tools.look_up", thought_at + 9.0, 14.0)]
    latency = round(said_at + ms(speech) - speech_end, 3)
    path = _path(heard, first, said_at - thought_at, speech, latency, replies, llm)
    until = at + 600.0 + latency + rnd.uniform(2_400.0, 3_600.0)
    cancelled = {"chains.state": state, "chains.cancelled": "barge-in"} if state in ("interrupted", "dropped") else {}
    call.turn(number, at, until, latency, path, **({"chains.state": state} | cancelled))
    return until + 40.0


def _path(
    heard: Span, first: Span, thinking: float, speech: Span, latency: float, replies: list[Span], llm: Span
) -> list[list[Any]]:
    """Segments that add up to the latency: each hop's queue and compute, and PhoneCall itself for the rest."""
    rows: list[list[Any]] = []
    at = 0.0
    for span, limit in ((heard, 1e9), (first, 1e9), (llm, thinking), (speech, 1e9)):
        for part in ("wire", "queue", "compute"):
            ms = round(min(span.attributes.get(f"chains.{part}_ms", 0.0), limit), 3)
            limit -= ms
            if ms:
                rows.append([span.name, part, part, span.attributes["chains.replica"], round(at, 3), ms])
                at += ms
    rows.append(["PhoneCall.run", "compute", "compute", "", round(at, 3), round(latency - at, 3)])
    return rows


def _works(rnd: random.Random, first: str, then: str, turn: int, count: int) -> str:
    at, rows = 0.5, []
    for index in range(count):
        ms = round(rnd.uniform(3.0, 9.0), 3)
        rows.append([round(at, 3), ms, then if index else first, turn])
        at += ms + rnd.uniform(1.0, 3.0)
    return json.dumps(rows)


def _credit(rnd: random.Random, turn: int, count: int) -> str:
    rows = [
        [round(70.0 * i + rnd.random(), 3), round(rnd.uniform(20.0, 60.0), 3), "credit", "", turn] for i in range(count)
    ]
    return json.dumps(rows)


def foreign_trace(seed: int | str = 0, *, spans: int = 5, start: int = START, failed: bool = False) -> list[Span]:
    """A trace of somebody else's: a web server, its database and a model behind it; children before their parent."""
    rnd = random.Random(f"foreign {seed}")
    trace, root = rnd.randbytes(16), rnd.randbytes(8)
    found = [
        Span(
            trace, rnd.randbytes(8), root, f"SELECT {'orders' if index % 2 else 'users'}", start + index * 3 * MS,
            start + index * 3 * MS + 2 * MS, {"db.system.name": "postgresql", "db.response.returned_rows": index},
        )
        for index in range(spans - 1)
    ]  # fmt: skip
    attributes = {"http.request.method": "GET", "http.route": "/orders/{id}", "http.response.status_code": 200}
    end = start + spans * 3 * MS
    return [*found, Span(trace, root, b"", "GET /orders/{id}", start, end, attributes, status=2 if failed else 1)]


def calls(count: int, *, turns: int = 6, start: int = START, apart_ms: float = 500.0, **more: Any) -> Iterator[Span]:
    """The spans of `count` phone calls, call-0, call-1, ..., one after the other."""
    for index in range(count):
        yield from phone_call(f"call-{index}", turns, start=start + round(index * apart_ms * MS), **more)


def many(spans: int, *, start: int = START) -> list[Span]:
    """At least that many spans of phone calls that began half a second apart."""
    found: list[Span] = []
    index = 0
    while len(found) < spans:
        found += phone_call(f"call-{index}", start=start + index * 500 * MS, seed=index)
        index += 1
    return found


def request(spans: Iterable[Span], resource: dict[str, str] | None = None) -> ExportTraceServiceRequest:
    """The spans as one OTLP request of one resource."""
    made = ExportTraceServiceRequest()
    group = made.resource_spans.add()
    for key, text in (RESOURCE if resource is None else resource).items():
        group.resource.attributes.add(key=key).value.string_value = text
    scope = group.scope_spans.add()
    scope.scope.name = "chains"
    for span in spans:
        one = scope.spans.add()
        one.trace_id, one.span_id, one.parent_span_id = span.trace, span.span, span.parent
        one.name, one.kind = span.name, 1
        one.start_time_unix_nano, one.end_time_unix_nano = span.start, span.end
        for key, value in span.attributes.items():
            _set(one.attributes.add(key=key).value, value)
        for name, at in span.events:
            one.events.add(name=name, time_unix_nano=at)
        if span.status:
            one.status.code = span.status
    return made


def requests(
    spans: Sequence[Span], size: int = 512, resource: dict[str, str] | None = None
) -> list[ExportTraceServiceRequest]:
    """The spans in requests of `size`, as an exporter sends them."""
    return [request(spans[at : at + size], resource) for at in range(0, len(spans), size)]


def stored(path: Path, spans: Sequence[Span], resource: dict[str, str] | None = None) -> None:
    """Keep the spans in the file, as the receiver would."""
    with Store.open(path) as store:
        writer = Writer(store)
        for batch in requests(spans, 4_096, resource):
            writer.write(decode(batch, now=max(span.end for span in spans)).spans)


def _set(value: AnyValue, given: Any) -> None:
    if isinstance(given, bool):
        value.bool_value = given
    elif isinstance(given, int):
        value.int_value = given
    elif isinstance(given, float):
        value.double_value = given
    elif isinstance(given, list):
        for entry in given:
            _set(value.array_value.values.add(), entry)
    else:
        value.string_value = given
