"""One call in full, as the page draws it."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chains.records import call
from chains.records.store import Store
from tests.chains.records import made

ENDED = made.START + 60_000 * made.MS


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[Path, sqlite3.Connection]]:
    path = tmp_path / "t.sqlite"
    with Store.open(path) as store:
        yield path, store.connection


def rows(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(body["columns"], row, strict=True)) for row in body["spans"]]


def test_a_call_is_told_in_full(store: tuple[Path, sqlite3.Connection]) -> None:
    path, connection = store
    spans = made.phone_call(turns=3, states=("answered", "interrupted"))
    made.stored(path, spans)
    body = call.detail(connection, "call-1")
    told = body["call"]
    assert (told["id"], told["chain"], told["tenant"], told["live"]) == ("call-1", "PhoneCall", "acme", False)
    assert told["trace_id"] == spans[0].trace.hex() and told["ended_ms"] - told["started_ms"] > 5_000
    assert [(turn["number"], turn["state"]) for turn in body["turns"]] == [
        (1, "answered"), (2, "interrupted"), (3, "answered"),
    ]  # fmt: skip
    first = body["turns"][0]
    assert first["latency_start"] == first["start"] + 600.0 == first["marks"]["speech_end"]
    assert first["path"][0][4] == first["latency_start"]
    assert sum(step[5] for step in first["path"]) == pytest.approx(first["latency_ms"], abs=0.01)
    assert len(body["spans"]) == len(spans) == told["spans"]
    assert body["checks"]["hops"] == sum(span.attributes["chains.kind"] == "hop" for span in spans)
    assert body["checks"]["worst_hop_ms"] <= 0.01 and body["checks"]["worst_turn_ms"] <= 0.01
    assert body["sources"][0]["offset_ms"] == 0.0 and not body["sources"][0]["estimated"]


def test_each_hops_segments_fill_its_bar(store: tuple[Path, sqlite3.Connection]) -> None:
    path, connection = store
    made.stored(path, made.phone_call(turns=2))
    for span in rows(call.detail(connection, "call-1")):
        if span["kind"] != "hop":
            assert span["segments"] is None
            continue
        at = 0.0
        for _, start, ms, _ in span["segments"]:
            assert start == pytest.approx(at, abs=0.002)
            at = start + ms
        assert at == pytest.approx(span["ms"], abs=0.01)
        assert sum(span["parts"]) == pytest.approx(span["ms"], abs=0.01)


def test_the_path_of_each_turn_lies_in_its_hops(store: tuple[Path, sqlite3.Connection]) -> None:
    path, connection = store
    made.stored(path, made.phone_call(turns=2))
    body = call.detail(connection, "call-1")
    on_path = sum(span["on_path"] for span in rows(body))
    assert on_path == pytest.approx(sum(turn["latency_ms"] for turn in body["turns"]), abs=0.05)
    heard = [span for span in rows(body) if span["name"] == "STT.transcribe"]
    assert len(heard) == 2 and all(span["on_path"] > 50 for span in heard)
    assert all(span["on_path"] == 0 for span in rows(body) if span["name"] == "Memory.note")


def test_a_call_that_runs_grows_by_what_is_new(store: tuple[Path, sqlite3.Connection]) -> None:
    path, connection = store
    spans = made.phone_call(turns=3)
    turn = next(index for index, span in enumerate(spans) if span.name == "turn 2")
    made.stored(path, spans[: turn - 2])
    first = call.detail(connection, "call-1")
    assert first["call"]["live"] and first["call"]["ended_ms"] is None and len(first["turns"]) == 1
    made.stored(path, spans[turn - 2 :])
    second = call.detail(connection, "call-1", first["last"])
    assert len(first["spans"]) + len(second["spans"]) == len(spans)
    assert {row[0] for row in first["spans"]}.isdisjoint({row[0] for row in second["spans"]})
    assert [turn["number"] for turn in second["turns"]] == [1, 2, 3] and not second["call"]["live"]
    whole = call.detail(connection, "call-1")
    for part in ("turns", "checks", "sources", "last"):
        assert second[part] == whole[part]
    known = {row["row"]: row["on_path"] for row in rows(first)} | dict(second["paths"])
    known |= {row["row"]: row["on_path"] for row in rows(second)}
    assert known == {row["row"]: row["on_path"] for row in rows(whole)}
    assert call.detail(connection, "call-1", whole["last"])["spans"] == []


def test_hops_alone_come_without_reading_the_rest(store: tuple[Path, sqlite3.Connection]) -> None:
    path, connection = store
    spans = made.phone_call(turns=1)
    made.stored(path, spans[:3])
    first = call.detail(connection, "call-1")
    made.stored(path, spans[3:5])
    second = call.detail(connection, "call-1", first["last"])
    assert len(second["spans"]) == 2 and second["paths"] == []
    assert second["checks"]["hops"] == 5 and second["turns"] == []


def test_a_trace_of_others_gets_a_path_over_its_root(store: tuple[Path, sqlite3.Connection]) -> None:
    path, connection = store
    spans = made.foreign_trace(spans=5)
    made.stored(path, spans, {"service.name": "shop", "service.version": "7"})
    body = call.detail(connection, spans[0].trace.hex())
    assert (body["call"]["chain"], body["call"]["version"]) == ("shop", "7")
    (turn,) = body["turns"]
    assert turn["number"] == 0 and turn["latency_ms"] == 15.0
    assert sum(step[5] for step in turn["path"]) == pytest.approx(15.0)
    root = next(span for span in rows(body) if not span["parent"])
    assert root["kind"] == "span" and root["parts"] == [0.0, 0.0, 0.0, 7.0, 8.0] and root["on_path"] == 7.0
    assert [part for part, *_ in root["segments"]][:2] == ["wait", "compute"]


def test_a_call_without_turns_is_as_long_as_the_list_says_and_blames_who_was_waited_on(
    store: tuple[Path, sqlite3.Connection],
) -> None:
    path, connection = store
    rnd = random.Random(1)
    one = made.Call("call-1", rnd, made.START, rnd.randbytes(16), rnd.randbytes(8))
    root = one.hop("Greeter.run", one.root, 0, 0.0, (0.0, 0.0, 0.0, 10.0, 90.0))
    maker = one.hop("Writer.write", root.span, 0, 5.0, (0.0, 0.0, 0.0, 85.0, 0.0), "Writer#0")
    reader = one.hop("Shouter.shout", root.span, 0, 5.0, (0.0, 0.0, 0.0, 1.0, 89.0))
    reader.attributes["chains.waits"] = json.dumps([[0.0, 85.0, "input", maker.span.hex(), 0]])
    root.attributes["chains.waits"] = json.dumps([[5.0, 90.0, "hop", reader.span.hex(), 0]])
    one.close(150.0, 0)
    made.stored(path, one.spans)
    body = call.detail(connection, "call-1")
    (turn,) = body["turns"]
    (slowest,) = connection.execute("SELECT slowest_ms FROM calls").fetchone()
    assert turn["latency_ms"] == slowest == 150.0 and body["checks"]["worst_turn_ms"] < 0.01
    totals: dict[str, float] = {}
    for hop, _, name, _, _, ms in turn["path"]:
        key = f"{hop} {name}".strip()
        totals[key] = totals.get(key, 0.0) + ms
    assert max(totals, key=lambda key: totals[key]) == "Writer.write" and totals["Writer.write"] == pytest.approx(85.0)
    assert totals["the call after Greeter.run"] == pytest.approx(50.0)


def test_spans_of_another_process_join_the_call_and_are_shifted_for_drawing_alone(
    store: tuple[Path, sqlite3.Connection],
) -> None:
    path, connection = store
    spans = made.phone_call(turns=2)
    made.stored(path, spans)
    hop = next(span for span in spans if span.name == "LLM.stream")
    late = hop.start + 5_000 * made.MS  # its machine's clock is 5 s ahead
    inner = made.Span(hop.trace, b"12345678", hop.span, "GET /v1", late + 20 * made.MS, late + 60 * made.MS, {})
    made.stored(path, [inner], {"service.name": "proxy", "service.instance.id": "far:1"})
    body = call.detail(connection, "call-1")
    far = next(source for source in body["sources"] if source["service"] == "proxy")
    near = next(source for source in body["sources"] if source["service"] == "PhoneCall")
    assert far["estimated"] and not near["estimated"] and near["offset_ms"] == 0.0
    length = (hop.end - hop.start) / made.MS
    assert far["offset_ms"] == pytest.approx(-5_000.0 - 20.0 + (length - 40.0) / 2, abs=0.01)
    drawn = {span["id"]: span for span in rows(body)}
    outer = drawn[hop.span.hex()]
    inside = drawn[b"12345678".hex()]
    assert outer["start"] < inside["start"] and inside["start"] + inside["ms"] < outer["start"] + outer["ms"]
    assert inside["ms"] == 40.0 and body["checks"]["worst_hop_ms"] <= 0.01


def test_a_call_of_very_many_spans_leaves_the_insides_out(
    store: tuple[Path, sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, connection = store
    made.stored(path, made.phone_call(turns=2))
    rich = call.detail(connection, "call-1")
    monkeypatch.setattr(call, "DETAILED", 10)
    lean = call.detail(connection, "call-1")
    assert all(span["segments"] is None for span in rows(lean))
    for part in ("call", "turns", "checks", "last"):
        assert lean[part] == rich[part]
    assert [span["parts"] for span in rows(lean)] == [span["parts"] for span in rows(rich)]


def test_a_parent_that_has_not_ended_is_named_all_the_same(store: tuple[Path, sqlite3.Connection]) -> None:
    path, connection = store
    spans = made.phone_call(turns=1)
    made.stored(path, spans[:4])
    body = call.detail(connection, "call-1")
    assert all(span["parent"] for span in rows(body)) and body["turns"] == []


def test_what_was_said_is_told_only_of_recorded_calls(store: tuple[Path, sqlite3.Connection]) -> None:
    path, connection = store
    made.stored(path, made.phone_call())
    body = call.detail(connection, "call-1")
    assert body["transcript"] == [] and body["audio"] == {"caller": False, "reply": False, "ms": 0.0}
