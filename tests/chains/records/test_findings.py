"""What an operator is told: the right thing first, and nothing where nothing is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chains.records import chain
from chains.records.figures import Wanted
from chains.records.findings import amount, signed_ms
from tests.chains.records import made
from tests.chains.records.shaped import RESOURCE, calls, kept


def told(path: Path, **wrong: Any) -> list[dict[str, Any]]:
    with kept(path / "t.sqlite", (calls(wrong.pop("count", 40), **wrong), RESOURCE)) as connection:
        return list(chain.summary(connection, Wanted("Desk"))["findings"])


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    assert told(tmp_path) == []


@pytest.mark.parametrize("seed", range(6))
def test_chance_is_no_finding_however_few_or_many_replicas(tmp_path: Path, seed: int) -> None:
    assert told(tmp_path, seed=seed, replicas=1 + 3 * seed, count=20 + 10 * seed) == []


def test_one_slow_replica_is_named_first_with_its_hop(tmp_path: Path) -> None:
    first = told(tmp_path, slow="Model-2")[0]
    assert (first["kind"], first["hop"], first["replica"]) == ("replica", "Model.reply", "Model-2")
    assert 60 < first["ms"] < 100
    assert "Replica Model-2 of Model.reply is slower than its 3 peers: compute +" in first["text"]


def test_a_slow_replica_among_phone_calls_is_the_only_finding(tmp_path: Path) -> None:
    with kept(tmp_path / "t.sqlite", (list(made.calls(12, slow="LLM-1")), made.RESOURCE)) as connection:
        found = chain.summary(connection, Wanted("PhoneCall"))["findings"]
    assert [(one["kind"], one["hop"], one["replica"]) for one in found] == [("replica", "LLM.stream", "LLM-1")]


def test_too_long_a_queue_is_named_with_its_mend(tmp_path: Path) -> None:
    first, *rest = told(tmp_path, queue_ms=150.0)
    assert (first["kind"], first["hop"], first["replica"]) == ("queue", "Model.reply", None)
    assert "The queue of Model.reply is too long" in first["text"]
    assert (
        "Give Model more replicas (scaling=Autoscaling(max=...)), or let each take more calls at once (limits="
        in first["text"]
    )
    assert rest == []


def test_a_slow_client_is_said_to_be_the_client(tmp_path: Path) -> None:
    first, *rest = told(tmp_path, credit_ms=1_500.0)
    assert (first["kind"], first["hop"]) == ("client", "Desk.run")
    assert "The client reads slowly: in 40 of 40 calls Desk.run waited 1.5 s" in first["text"]
    assert rest == []


def test_a_far_hop_is_said_to_be_the_wire(tmp_path: Path) -> None:
    found = told(tmp_path, wire_ms=60.0)
    assert [(one["kind"], one["hop"]) for one in found] == [("wire", "Model.reply")]


def test_a_slow_model_is_said_to_be_no_single_replica(tmp_path: Path) -> None:
    found = told(tmp_path, compute_ms=1_200.0)
    assert [(one["kind"], one["hop"], one["replica"]) for one in found] == [("model", "Model.reply", None)]
    assert "in all 4 replicas alike" in found[0]["text"]


def test_a_replica_that_fails_is_named(tmp_path: Path) -> None:
    found = [one for one in told(tmp_path, failing="Model-1") if one["kind"] == "errors"]
    assert [(one["hop"], one["replica"]) for one in found] == [("Model.reply", "Model-1")]


def test_a_replica_says_nothing_with_too_few_calls(tmp_path: Path) -> None:
    assert told(tmp_path, slow="Model-2", count=4) == []


@pytest.mark.parametrize(("ms", "text"), [(0.31, "0.3 ms"), (81.4, "81 ms"), (1_420.0, "1.4 s"), (64_000.0, "64 s")])
def test_amounts_are_written_for_people(ms: float, text: str) -> None:
    assert amount(ms) == text
    assert signed_ms(-ms) == f"\N{MINUS SIGN}{text}"
