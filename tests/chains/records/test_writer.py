"""What a batch leaves in the file: each row right, in whatever order and however often its spans come."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains.records.arrived import Arrived
from chains.records.store import Store
from chains.records.writer import Writer
from chains.viewer.otlp import decode
from tests.chains.records import made

SECOND = 1_000_000_000


def arrivals(spans: Sequence[made.Span], resource: dict[str, str] | None = None) -> list[Arrived]:
    decoded = decode(made.request(spans, resource))
    assert not decoded.refused
    return decoded.spans


def rows(connection: sqlite3.Connection) -> dict[str, Any]:
    """All that stands in the file, without row ids and arrival times."""
    names = dict(connection.execute("SELECT id, text FROM names"))
    names[-1] = "every"
    calls = {row[0]: row[1] for row in connection.execute("SELECT id, call FROM calls")}

    def read(query: str) -> list[tuple[Any, ...]]:
        return connection.execute(query).fetchall()

    return {
        "calls": sorted(read(
            "SELECT call, trace, started, ended, latest, method, tenant, outcome, reason, turns, interrupted, dropped,"
            " errors, spans, round(slowest_ms, 3), recorded, service, version, chain FROM calls"
            " JOIN sources ON sources.id = calls.source"
        )),
        "spans": sorted(
            (calls[call], span, parent, names[name], names[replica], *rest)
            for call, span, parent, name, replica, *rest in read(
                "SELECT call, span, parent, name, replica, kind, turn, start, duration, status, parts, rest FROM spans"
            )
        ),
        "turns": sorted((calls[call], *rest) for call, *rest in read("SELECT * FROM turns")),
        "sketches": sorted(
            (bucket, names[chain], names[version], names[hop], names[replica], *rest)
            for bucket, chain, version, hop, replica, *rest in read(
                "SELECT bucket, chain, version, hop, replica, count, errors FROM sketches"
            )
        ),
        "paths": sorted(
            (bucket, names[hop], names[replica], names[part], turns, round(ms, 3))
            for bucket, hop, replica, part, turns, ms in read(
                "SELECT bucket, hop, replica, part, turns, ms FROM paths"
            )
        ),
    }  # fmt: skip


def written(path: Path, batches: Iterable[Sequence[Arrived]]) -> dict[str, Any]:
    with Store.open(path) as store:
        writer = Writer(store)
        for batch in batches:
            writer.write(batch)
        return rows(store.connection)


STATES = ("answered", "interrupted", "dropped", "failed")


def test_a_phone_call(tmp_path: Path) -> None:
    spans = made.phone_call("call-1", 4, states=STATES)
    found = written(tmp_path / "traces.sqlite", [arrivals(spans)])
    (call,) = found["calls"]
    closed = spans[-1]
    latencies = [span.attributes["chains.latency_ms"] for span in spans if span.name.startswith("turn")]
    assert call == (
        "call-1", closed.trace, closed.start, closed.end, closed.end, "PhoneCall.run", "acme", "done", "", 4, 1, 1, 0,
        len(spans), round(max(ms for ms, state in zip(latencies, STATES, strict=True) if state != "dropped"), 3), 0,
        "PhoneCall", "0badf00d", "PhoneCall",
    )  # fmt: skip
    assert [row[1] for row in found["turns"]] == [1, 2, 3, 4]
    assert [(row[5], row[6]) for row in found["turns"]] == [
        ("answered", ""), ("interrupted", "barge-in"), ("dropped", "barge-in"), ("failed", ""),
    ]  # fmt: skip
    hops = [span for span in spans if span.attributes["chains.kind"] == "hop"]
    assert sum(row[5] for row in found["sketches"] if row[3]) == len(hops)
    assert sum(row[5] for row in found["sketches"] if not row[3]) == 3  # the dropped turn is not counted
    assert sum(row[6] for row in found["sketches"] if not row[3]) == 1  # the failed one is an error
    whole = [row for row in found["paths"] if row[2] == "every"]
    on_path = [row for row in whole if row[1] == "STT.transcribe"]
    assert sum(row[4] for row in on_path) == 3
    kept = [ms for ms, state in zip(latencies, STATES, strict=True) if state != "dropped"]
    assert sum(row[5] for row in whole) == pytest.approx(sum(kept), abs=0.1)
    assert sum(row[5] for row in found["paths"] if row[2] != "every") == pytest.approx(sum(kept), abs=0.1)


def test_a_call_is_live_until_its_span_is_there(tmp_path: Path) -> None:
    spans = made.phone_call("call-1", 2)
    with Store.open(tmp_path / "traces.sqlite") as store:
        writer = Writer(store, wall=lambda: 5)
        assert writer.write(arrivals(spans[:10])) == {1}
        query = "SELECT outcome, ended, started, spans, turns, seen, slowest_ms > 0 FROM calls"
        first = min(span.start for span in spans[:10])
        assert store.connection.execute(query).fetchone() == ("live", None, first, 10, 0, 5, 0)
        assert writer.write(arrivals(spans[10:-1])) == {1}
        assert store.connection.execute(query).fetchone()[3:5] == (len(spans) - 1, 2)
        assert writer.write(arrivals(spans[-1:])) == {1}
        end = spans[-1].end
        assert store.connection.execute(query).fetchone() == ("done", end, spans[-1].start, len(spans), 2, 5, 1)
        assert writer.write(arrivals(spans)) == set()  # a retry of what is there changes nothing


def test_a_call_that_failed_and_its_errors(tmp_path: Path) -> None:
    spans = made.phone_call("call-1", 1, outcome="error")
    spans[3].status = spans[4].status = 2
    spans[-1].attributes["chains.reason"] = "the model fell over"
    (call,) = written(tmp_path / "traces.sqlite", [arrivals(spans)])["calls"]
    assert (call[7], call[8], call[12]) == ("error", "the model fell over", 2)


def test_a_foreign_trace_is_a_call_of_its_own(tmp_path: Path) -> None:
    spans = made.foreign_trace(1)
    found = written(tmp_path / "traces.sqlite", [arrivals(spans[:2]), arrivals(spans[2:])])
    (call,) = found["calls"]
    assert call[0] == spans[0].trace.hex()
    assert (call[5], call[7], call[13], call[14]) == ("GET /orders/{id}", "done", 5, 15.0)
    assert (call[2], call[3]) == (spans[-1].start, spans[-1].end)
    failed = made.foreign_trace(2, failed=True)
    found = written(tmp_path / "traces.sqlite", [arrivals(failed)])
    assert sorted(call[7] for call in found["calls"]) == ["done", "error"]


def test_a_foreign_trace_without_its_root_is_live(tmp_path: Path) -> None:
    (call,) = written(tmp_path / "traces.sqlite", [arrivals(made.foreign_trace(1)[:3])])["calls"]
    assert (call[3], call[5], call[7]) == (None, "", "live")


@pytest.mark.parametrize("ours_first", [True, False])
def test_foreign_spans_of_our_trace_join_its_call(tmp_path: Path, ours_first: bool) -> None:
    ours, theirs = made.phone_call("call-1", 1), made.foreign_trace(1)
    for span in theirs:
        span.trace = ours[0].trace
    batches = [arrivals(ours), arrivals(theirs, {"service.name": "shop"})]
    found = written(tmp_path / "traces.sqlite", batches if ours_first else reversed(batches))
    (call,) = found["calls"]
    assert (call[0], call[5], call[7], call[13]) == ("call-1", "PhoneCall.run", "done", len(ours) + len(theirs))
    assert call[16] == "PhoneCall" and call[2] == ours[-1].start
    assert {row[1] for row in found["sketches"]} == {"PhoneCall", "shop"}


def test_a_calls_id_that_is_used_again(tmp_path: Path) -> None:
    first, second = made.phone_call("call-1", 1), made.phone_call("call-1", 2, seed="again")
    found = written(tmp_path / "traces.sqlite", [arrivals(first), arrivals(second), arrivals(second)])
    assert [(call[0], call[9]) for call in found["calls"]] == [
        ("call-1", 1), (f"call-1@{second[0].trace.hex()[:8]}", 2),
    ]  # fmt: skip


def test_a_call_that_its_recording_began(tmp_path: Path) -> None:
    spans = made.phone_call("call-1", 1)
    with Store.open(tmp_path / "traces.sqlite") as store:
        store.connection.execute(
            "INSERT INTO calls (call, trace, source, started, latest, seen, recorded)"
            " VALUES ('call-1', x'', 0, 1, 1, 1, 2)"
        )
        assert Writer(store).write(arrivals(spans)) == {1}
        (call,) = rows(store.connection)["calls"]
    assert call[1] == spans[0].trace and call[2] == spans[-1].start and call[15:17] == (2, "PhoneCall")


def test_spans_that_their_sender_dropped_are_counted(tmp_path: Path) -> None:
    spans = made.phone_call("call-1", 1)
    spans[-1].attributes["chains.dropped"] = 7
    with Store.open(tmp_path / "traces.sqlite") as store:
        writer = Writer(store)
        for _ in range(2):
            writer.write(arrivals(spans), {("a", "queue full"): 3})
        assert store.connection.execute("SELECT * FROM drops ORDER BY reason").fetchall() == [
            ("PhoneCall (gateway:4711)", "dropped by its sender", 7), ("a", "queue full", 6),
        ]  # fmt: skip


def test_a_batch_that_fails_leaves_nothing_and_the_next_is_whole(tmp_path: Path) -> None:
    spans = arrivals(made.phone_call("call-1", 1))
    with Store.open(tmp_path / "traces.sqlite") as store:
        writer = Writer(store)
        store.connection.execute("ALTER TABLE paths RENAME TO gone")
        with pytest.raises(sqlite3.Error):
            writer.write(spans)
        assert store.connection.execute(
            "SELECT (SELECT count(*) FROM spans) + (SELECT count(*) FROM names)"
        ).fetchone() == (1,)
        store.connection.execute("ALTER TABLE gone RENAME TO paths")
        assert writer.write(spans) == {1}
        assert len(rows(store.connection)["spans"]) == len(spans)


def mixture() -> list[Arrived]:
    ours = made.phone_call("call-1", 2, states=("interrupted", "dropped")) + made.phone_call("call-2", 1)
    joined = made.foreign_trace("joined")
    for span in joined:
        span.trace = ours[0].trace
    others = [*joined, *made.foreign_trace("alone", failed=True)]
    return arrivals(ours) + arrivals(others, {"service.name": "shop"})


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_order_and_repetition_change_nothing(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    spans = mixture()
    folder = tmp_path_factory.mktemp("any")
    rnd = random.Random(data.draw(st.integers(0, 2**32), label="seed"))
    shuffled = spans + rnd.sample(spans, data.draw(st.integers(0, len(spans)), label="repeated"))
    rnd.shuffle(shuffled)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(shuffled)), max_size=6), label="cuts"))
    edges = [0, *cuts, len(shuffled)]
    batches = [shuffled[a:b] for a, b in itertools.pairwise(edges)]
    assert written(folder / "shuffled.sqlite", batches) == written(folder / "straight.sqlite", [spans])


def write_half(path: Path, half: int, again: bool) -> None:
    """In a process of its own: every second span of ten calls, in small batches."""
    with Store.open(path) as store:
        writer = Writer(store)
        for number in range(10):
            spans = made.phone_call(f"call-{number}", 3)[half::2]
            for batch in (spans[:9], spans[9:20], spans[20:]) * (2 if again else 1):
                writer.write(arrivals(batch))


def test_two_processes_write_to_one_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path = tmp_path / "traces.sqlite"
    both = [context.Process(target=write_half, args=(path, half, half == 1)) for half in (0, 1)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    straight = [arrivals(made.phone_call(f"call-{number}", 3)) for number in range(10)]
    with Store.open(path) as store:
        assert store.connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert rows(store.connection) == written(tmp_path / "straight.sqlite", straight)
