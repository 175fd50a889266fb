"""Why one call was slow."""

from __future__ import annotations

from pathlib import Path

from chains.records import why
from tests.chains.records import made
from tests.chains.records.shaped import RESOURCE, calls, kept


def test_a_turn_through_a_slow_replica_names_it(tmp_path: Path) -> None:
    with kept(tmp_path / "t.sqlite", (calls(60, slow="Model-2", slow_ms=200.0), RESOURCE)) as connection:
        told = [why.findings(connection, f"call-{number}") for number in range(60)]
    slow = [one for one in told if one["ms"] > 180]
    assert len(slow) > 20
    for one in slow:
        first = one["findings"][0]
        assert (first["kind"], first["hop"], first["replica"]) == ("replica", "Model.reply", "Model-2")
        assert one["usual_ms"] < one["ms"]


def test_a_call_that_queued_says_so(tmp_path: Path) -> None:
    odd = calls(1, prefix="odd", seed=3, queue_ms=400.0, start=made.START + 200_000 * made.MS)
    with kept(tmp_path / "t.sqlite", ([*calls(20), *odd], RESOURCE)) as connection:
        told = why.findings(connection, "odd-0")
    assert [one["kind"] for one in told["findings"]][:1] == ["queue"]
    assert "The call waited in the queue of Model.reply" in told["findings"][0]["text"]


def test_a_slow_client_is_told_of(tmp_path: Path) -> None:
    odd = calls(1, prefix="odd", seed=3, compute_ms=40.0, credit_ms=1_500.0, start=made.START + 200_000 * made.MS)
    with kept(tmp_path / "t.sqlite", ([*calls(20), *odd], RESOURCE)) as connection:
        assert [one["kind"] for one in why.findings(connection, "odd-0")["findings"]] == ["client"]


def test_a_usual_call_has_no_findings(tmp_path: Path) -> None:
    with kept(tmp_path / "t.sqlite", (calls(20), RESOURCE)) as connection:
        told = [why.findings(connection, f"call-{number}")["findings"] for number in range(20)]
    assert sum(map(bool, told)) <= 4  # a fifth of a lognormal spread lies that far out


def test_without_anything_to_compare_with_the_largest_share_is_named(tmp_path: Path) -> None:
    with kept(tmp_path / "t.sqlite", (calls(1, turns=2), RESOURCE)) as connection:
        told = why.findings(connection, "call-0")
    assert told["usual_ms"] is None
    assert (
        "was compute of Model.reply" in told["findings"][0]["text"] and "too few turns" in told["findings"][0]["text"]
    )


def test_a_trace_of_others_names_what_took_most(tmp_path: Path) -> None:
    spans = made.foreign_trace(spans=3)
    with kept(tmp_path / "t.sqlite", (spans, {"service.name": "shop"})) as connection:
        told = why.findings(connection, spans[0].trace.hex())
    assert told["turn"] == 0 and told["findings"][0]["hop"] == "GET /orders/{id}"
