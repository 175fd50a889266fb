"""Where the time went: critical paths, what is kept, how it is shown, and what is exported."""

from __future__ import annotations

import gzip
import itertools
import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from chains.call import Call, Turn
from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build
from chains.runtime.inprocess import InProcess
from chains.spans import (
    HOPS,
    TOTAL,
    CallRecord,
    OtlpExporter,
    Recorder,
    account,
    critical_path,
    exporter_from_env,
    hop_rows,
    table,
    to_json,
)
from chains.testing import FakeClock
from chains.timing import LoopClock, Timing, Work

T = 100.0  # when the tests' time begins: a moment of 0 is one that has not come
moments = st.floats(T, T + 10.0)


@st.composite
def trees(draw: Any) -> Timing:
    """A hop of any shape, with waits on hops of any shape: nested, overlapping, on one another, on nothing."""
    hops: list[Timing] = []
    for number in range(draw(st.integers(1, 6))):
        parent = draw(st.sampled_from(hops)) if hops else None
        edges = sorted(draw(st.lists(moments, min_size=4, max_size=4)))
        hop = Timing(str(number), parent, "c", 0, f"N{number}", "m", edges[0])
        hop.received, hop.accepted = edges[1], edges[2]
        if draw(st.booleans()):
            hop.ended = hop.closed = edges[3]
        hops.append(hop)
    for hop in hops:
        for _ in range(draw(st.integers(0, 4))):
            start, end = sorted(draw(st.tuples(moments, moments)))
            on = draw(st.none() | st.sampled_from(hops))
            wait = hop.begin_wait(start, draw(st.sampled_from(["hop", "input", "credit"])), on, draw(st.integers(0, 2)))
            if draw(st.booleans()):
                hop.end_wait(wait, end)
        for _ in range(draw(st.integers(0, 2))):
            start, end = sorted(draw(st.tuples(moments, moments)))
            hop.add_work(Work("w", start, end, draw(st.integers(0, 2))))
    return hops[0]


@given(trees(), moments, moments, st.integers(0, 2))
def test_a_path_has_no_gap_and_no_overlap(root: Timing, a: float, b: float, turn: int) -> None:
    start, end = min(a, b), max(a, b)
    path = critical_path(root, start, end, turn)
    assert sum(segment.ms for segment in path) == pytest.approx((end - start) * 1e3, abs=1e-6)
    if path:
        assert (path[0].start, path[-1].end) == (start, end)
    for left, right in itertools.pairwise(path):
        assert left.end == right.start
        assert left.start < left.end
        assert (left.label, left.part, left.name) != (right.label, right.part, right.name), "merged"


def hop(node: str, opened: float, closed: float, parent: Timing | None = None, turn: int = 0) -> Timing:
    timing = Timing(node, parent, "c", turn, node, "m", T + opened)
    timing.received = timing.accepted = T + opened
    timing.ended = timing.closed = T + closed
    return timing


def waiting(on: Timing, start: float, end: float, who: Timing, turn: int = 0) -> None:
    ended, who.ended = who.ended, 0.0
    who.end_wait(who.begin_wait(T + start, "hop", on, turn), T + end)
    who.ended = ended


def steps(root: Timing, start: float, end: float, turn: int = 0) -> list[tuple[str, str, float]]:
    path = critical_path(root, T + start, T + end, turn)
    return [(s.label.partition(".")[0], s.name or s.part, round(s.end - s.start, 6)) for s in path]


def test_a_path_goes_down_to_the_hop_that_works() -> None:
    root = hop("Call", 0.0, 10.0)
    ears = hop("Ears", 1.0, 4.0, root)
    ears.received, ears.accepted = T + 1.5, T + 2.0
    waiting(ears, 1.0, 4.0, root)
    ears.add_work(Work("decode", T + 2.5, T + 3.0, 0))
    assert steps(root, 0.0, 6.0) == [
        ("Call", "compute", 1.0),
        ("Ears", "wire", 0.5),
        ("Ears", "queue", 0.5),
        ("Ears", "compute", 0.5),
        ("Ears", "decode", 0.5),
        ("Ears", "compute", 1.0),
        ("Call", "compute", 2.0),
    ]


def test_of_two_that_are_waited_for_the_slower_is_on_the_path() -> None:
    root = hop("Call", 0.0, 10.0)
    quick, slow = hop("Intent", 1.0, 2.0, root), hop("Reply", 1.0, 5.0, root)
    waiting(quick, 1.0, 2.0, root)
    waiting(slow, 1.0, 5.0, root)
    assert steps(root, 0.0, 5.0) == [("Call", "compute", 1.0), ("Reply", "compute", 4.0)]


def test_a_wait_of_the_turn_goes_before_one_of_the_call() -> None:
    """The conversation always waits for the microphone; a turn's latency is not the microphone's."""
    root = hop("Call", 0.0, 10.0)
    microphone, reply = hop("Mic", 0.0, 10.0, root), hop("Reply", 2.0, 4.0, root, turn=1)
    waiting(microphone, 0.0, 10.0, root)
    waiting(reply, 2.0, 4.0, root, turn=1)
    assert steps(root, 2.0, 5.0, turn=1) == [("Reply", "compute", 2.0), ("Mic", "compute", 1.0)]


def test_a_deep_chain_of_waits_comes_to_an_end() -> None:
    root = below = hop("H0", 0.0, 10.0)
    for depth in range(1, 60):
        above, below = below, hop(f"H{depth}", 0.0, 10.0, below)
        waiting(below, 0.0, 10.0, above)
    assert steps(root, 0.0, 10.0) == [("H59", "compute", 10.0)]


# what is kept


def call_at(clock: FakeClock, id: str) -> Call:
    return Call(clock, id=id)


def test_the_last_calls_are_kept() -> None:
    clock = FakeClock()
    recorder = Recorder(clock, calls=3)
    for n in range(5):
        recorder.open(call_at(clock, f"c{n}"))
    assert [record.id for record in recorder.calls] == ["c2", "c3", "c4"]
    assert recorder.find("c0") is None
    stranger = hop("Late", 0.0, 1.0)
    stranger.call = "c0"
    recorder.add(stranger)  # of a call that was forgotten meanwhile
    recorder.open(call_at(clock, "c2"))  # again: it is now the youngest
    recorder.open(call_at(clock, "c5"))
    assert [record.id for record in recorder.calls] == ["c4", "c2", "c5"]


def test_the_hops_of_a_long_call_are_bounded() -> None:
    clock = FakeClock()
    recorder = Recorder(clock)
    recorder.open(call_at(clock, "c"))
    root = hop("Call", 0.0, 1.0)
    recorder.add(root)
    for n in range(HOPS + 10):
        recorder.add(hop(f"H{n}", 0.0, 1.0, root))
    record = recorder.find("c")
    assert record is not None
    assert len(record.hops) == HOPS
    assert record.root is root, "kept though it is among the oldest"


def test_hops_are_bounded_over_all_calls() -> None:
    clock = FakeClock()
    recorder = Recorder(clock)
    per_call = TOTAL // 14
    one = hop("H", 0.0, 1.0)
    for n in range(20):
        recorder.open(call_at(clock, f"c{n}"))
        one.call = f"c{n}"
        for _ in range(per_call):
            recorder.add(one)
    kept = sum(len(record.hops) for record in recorder.calls)
    assert TOTAL - per_call <= kept <= TOTAL
    assert recorder.calls[-1].id == "c19"


# how it is shown


@pytest.fixture
def record() -> tuple[CallRecord, Turn]:
    clock = FakeClock(now=100.0, wall=1_700_000_000.0)
    call = Call(clock, id="c")
    turn = call.new_turn()
    turn.mark("speech_end", 101.0)
    turn.mark("first_audio", 103.0)
    turn.ended = 104.0
    call.played.report(1, 240.0)
    recorder = Recorder(clock)
    recorder.open(call)
    root = hop("Call", 0.0, 5.0)
    reply = hop("Reply", 1.5, 2.5, root, turn=1)
    waiting(reply, 1.5, 2.5, root, turn=1)
    reply.outcome, reply.error, reply.items_out = "error", "ValueError", 7
    for timing in (reply, root):
        recorder.add(timing)
    return recorder.calls[0], turn


def test_an_account_runs_from_speech_end_to_first_audio(record: Any) -> None:
    entry = account(*record)
    assert entry is not None
    assert entry.ms == pytest.approx(2_000.0)
    assert entry.by_hop() == [("Call.m compute", 1_000.0), ("Reply.m compute", 1_000.0)]


def test_an_account_without_marks_runs_from_start_to_end(record: Any) -> None:
    found, turn = record
    turn.marks.clear()
    entry = account(found, turn)
    assert entry is not None
    assert (entry.start, entry.end) == (100.0, 104.0)
    turn.ended = 0.0
    assert account(found, turn) is None, "it has not ended"


def test_an_account_finds_the_entry_while_it_runs(record: Any) -> None:
    found, turn = record
    found.hops.pop()
    found.root = None
    entry = account(found, turn)
    assert entry is not None
    assert sum(segment.ms for segment in entry.segments) == pytest.approx(entry.ms)
    found.hops.clear()
    assert account(found, turn) is None


def test_the_table_shows_turns_and_hops(record: Any) -> None:
    text = table(record[0])
    assert "turn 1: 2000 ms from end of speech to first audio" in text
    assert "Reply.m compute" in text
    rows = {row["hop"]: row for row in hop_rows(record[0].hops)}
    assert (rows["Reply.m"]["errors"], rows["Reply.m"]["items"], rows["Call.m"]["errors"]) == (1, 7, 0)
    assert rows["Call.m"]["wait"] == pytest.approx(1_000.0)


def test_json_is_plain_and_its_parts_sum(record: Any) -> None:
    data = json.loads(json.dumps(to_json(record[0])))
    assert (data["call"], data["opened"]) == ("c", 1_700_000_000.0)
    turn = data["turns"][0]
    assert (turn["latency_ms"], turn["played_ms"], turn["marks"]) == (
        2000.0,
        240.0,
        {"speech_end": 1000.0, "first_audio": 3000.0},
    )
    assert sum(step["ms"] for step in turn["critical_path"]) == pytest.approx(2000.0)
    for row in data["hops"]:
        assert sum(row["parts"].values()) == pytest.approx(row["end"] - row["start"], abs=0.01)
    assert data["hops"][0]["parent"] == data["hops"][1]["id"]


# export


class Received(threading.Thread):
    """An OTLP receiver on a free port of this machine."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.requests: list[tuple[str, ExportTraceServiceRequest, bytes]] = []
        received = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                received.requests.append((self.path, ExportTraceServiceRequest.FromString(body), body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def run(self) -> None:
        self.server.serve_forever(poll_interval=0.01)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.join()

    @property
    def spans(self) -> list[Any]:
        found = [(resource, span) for _, request, _ in self.requests for resource in request.resource_spans
                 for scope in resource.scope_spans for span in scope.spans]  # fmt: skip
        return [span for _, span in found]


@pytest.fixture
def receiver() -> Iterator[Received]:
    receiver = Received()
    receiver.start()
    yield receiver
    receiver.close()


@chainlet
class Mind:
    async def answer(self, text: str) -> str:
        if "?" not in text:
            raise ValueError(f"no question in {text}")
        return f"an answer to {text}"


@chainlet(entry=True)
class Chat:
    mind: Mind = depends(Mind)

    async def talk(self, text: str) -> AsyncIterator[str]:
        yield await self.mind.answer(text)


SECRET = "my number is 0171-555"


async def converse(recorder: Recorder, clock: LoopClock) -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with (
        InProcess(build(Chat), clock=clock, recorder=recorder) as runtime,
        runtime.open_call(id="c1", traceparent=traceparent) as call,
        call.new_turn(),
    ):
        assert [text async for text in runtime.entry.talk(f"{SECRET}?")] == [f"an answer to {SECRET}?"]
        with pytest.raises(ValueError, match="no question"):
            await anext(runtime.entry.talk(SECRET))


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_spans_reach_an_otlp_receiver(
    receiver: Received, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_SERVICE_NAME": "clinic",
        "OTEL_EXPORTER_OTLP_COMPRESSION": compression,
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    clock, exporter = LoopClock(), exporter_from_env(environ)
    assert exporter is not None
    try:
        await converse(Recorder(clock, exporter=exporter), clock)
        check_spans(receiver)
    finally:
        exporter.close()


def check_spans(receiver: Received) -> None:
    assert {path for path, _, _ in receiver.requests} == {"/v1/traces"}
    spans = {span.name: span for span in receiver.spans}
    assert sorted(span.name for span in receiver.spans) == [
        "Chat.talk", "Chat.talk", "Mind.answer", "Mind.answer", "call",
    ]  # fmt: skip
    assert {span.trace_id.hex() for span in spans.values()} == {"0af7651916cd43dd8448eb211c80319c"}
    assert spans["call"].parent_span_id.hex() == "b7ad6b7169203331"
    talks = {span.span_id for span in receiver.spans if span.name == "Chat.talk"}
    for span in receiver.spans:
        assert span.end_time_unix_nano >= span.start_time_unix_nano > 1_600_000_000 * 10**9
        if span.name == "Chat.talk":
            assert span.parent_span_id == spans["call"].span_id
        elif span.name == "Mind.answer":
            assert span.parent_span_id in talks
    failed = [span for span in receiver.spans if span.status.code == 2]
    assert {attribute_of(span, "error.type") for span in failed} == {"ValueError"}
    resource = receiver.requests[0][1].resource_spans[0].resource
    assert {a.key: a.value.string_value for a in resource.attributes}["service.name"] == "clinic"
    for _, _, body in receiver.requests:
        assert b"0171" not in body, "what a caller said stands in no span"


def attribute_of(span: Any, key: str) -> str:
    return str(next(a.value.string_value for a in span.attributes if a.key == key))


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "clinic"}, False),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, False),
        ({"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces"}, True),
    ],
)
def test_export_is_asked_for_by_the_standard_variables_alone(environ: dict[str, str], asked: bool) -> None:
    exporter = exporter_from_env(environ)
    try:
        assert isinstance(exporter, OtlpExporter) == asked
    finally:
        if exporter is not None:
            exporter.close()


async def test_nothing_is_exported_unasked(receiver: Received) -> None:
    clock = LoopClock()
    recorder = Recorder(clock, exporter=exporter_from_env({}))
    await converse(recorder, clock)
    assert receiver.requests == []
    assert len(recorder.calls[0].hops) == 4, "the account is kept all the same"
