"""A chain's summary: percentiles, parts, paths, replicas and the graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from chains.records import chain, figures
from chains.records.figures import Wanted
from chains.records.ranges import Range
from tests.chains.records import made
from tests.chains.records.shaped import RESOURCE, calls, kept


@pytest.mark.parametrize("exact", [figures.EXACT, 0])
def test_a_chain_is_summed_up_the_same_from_spans_and_from_sketches(
    tmp_path: Path, exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "EXACT", exact)
    with kept(tmp_path / "t.sqlite", (calls(30, slow="Model-2"), RESOURCE)) as connection:
        found = chain.summary(connection, Wanted("Desk"))
    assert found["calls"] == 30
    model, desk = found["hops"]
    assert (model["hop"], model["node"], model["method"], model["calls"]) == ("Model.reply", "Model", "reply", 120)
    assert desk["hop"] == "Desk.run"
    assert 55 < model["parts"]["compute"]["p50"] < 85 and model["parts"]["wait"]["p50"] == 0.0
    assert model["on_path"]["turns"] == 120 and model["on_path"]["share"] == 1.0
    assert model["on_path"]["share_ms"] > 0.9
    by_name = {one["replica"]: one for one in model["replicas"]}
    assert [name for name, one in by_name.items() if one["outlier"]] == ["Model-2"]
    odd = by_name["Model-2"]
    assert odd["ratio"] > 1.8 and 60 < odd["delta_ms"] < 100 and odd["why"].endswith(" against its 3 peers")
    turns = found["turns"]
    assert turns["count"] == 120 and turns["p50"] <= turns["p95"] <= turns["p99"]
    assert sum(count for _, count in turns["histogram"]) == pytest.approx(120, abs=6)


def test_the_graph_runs_from_the_entry_to_what_it_calls(tmp_path: Path) -> None:
    with kept(tmp_path / "t.sqlite", (made.phone_call(), made.RESOURCE)) as connection:
        graph = chain.summary(connection, Wanted("PhoneCall"))["graph"]
    assert graph["nodes"][0] == "PhoneCall"
    assert set(graph["nodes"]) == {"PhoneCall", "VAD", "STT", "Turns", "LLM", "TTS", "Memory", "Tools"}
    assert ["PhoneCall", "LLM"] in graph["edges"] and all(caller == "PhoneCall" for caller, _ in graph["edges"])


def test_versions_and_times_are_told_apart(tmp_path: Path) -> None:
    hour = 3_600_000_000_000
    later = {**RESOURCE, "service.version": "v2"}
    batches = (calls(10), RESOURCE), (calls(5, prefix="later", seed=2, start=made.START + 2 * hour), later)
    with kept(tmp_path / "t.sqlite", *batches) as connection:
        assert chain.summary(connection, Wanted("Desk"))["calls"] == 15
        assert chain.summary(connection, Wanted("Desk", version="v2"))["calls"] == 5
        start = made.START / 1e6
        early = chain.summary(connection, Wanted("Desk", range=Range(start, start + 3.6e6)))
    assert early["calls"] == 10 and early["turns"]["count"] == 40


def test_an_unknown_chain_has_nothing(tmp_path: Path) -> None:
    with kept(tmp_path / "t.sqlite", (calls(1), RESOURCE)) as connection:
        found = chain.summary(connection, Wanted("Nobody"))
    assert (found["calls"], found["hops"], found["turns"]["count"], found["findings"]) == (0, [], 0, [])


def test_spans_of_others_stand_under_their_service(tmp_path: Path) -> None:
    with kept(tmp_path / "t.sqlite", (made.foreign_trace(), {"service.name": "shop"})) as connection:
        found = chain.summary(connection, Wanted("shop"))
    assert {hop["hop"] for hop in found["hops"]} == {"GET /orders/{id}", "SELECT orders", "SELECT users"}
    assert ["GET /orders/{id}", "SELECT orders"] in found["graph"]["edges"]
