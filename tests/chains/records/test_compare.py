"""Side by side: what got slower, whether that is sure, and what cannot be said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chains.errors import InvalidValue, NotFound
from chains.records.compare import compare
from tests.chains.records import made
from tests.chains.records.shaped import RESOURCE, calls, kept

HOUR = 3_600_000_000_000
V2 = {**RESOURCE, "service.version": "v2"}


def versions(path: Path, count: int = 40, **changed: Any) -> dict[str, Any]:
    later = calls(count, prefix="later", seed=2, start=made.START + HOUR, **changed)
    with kept(path / "t.sqlite", (calls(count), RESOURCE), (later, V2)) as connection:
        return compare(connection, "version:v1", "version:v2", made.START / 1e6)


def verdicts(told: dict[str, Any]) -> dict[str, str]:
    return {hop["hop"]: hop["verdict"] for hop in told["hops"]}


def test_a_version_that_is_the_same_is_said_to_be_so(tmp_path: Path) -> None:
    told = versions(tmp_path)
    assert verdicts(told) == {"Model.reply": "same", "Desk.run": "same"}
    assert told["findings"] == []
    assert (told["a"]["label"], told["b"]["label"]) == ("version v1", "version v2")


def test_a_hop_that_got_slower_is_named_with_its_part_and_what_turns_lose(tmp_path: Path) -> None:
    told = versions(tmp_path, compute_ms=100.0)
    hop = told["hops"][0]
    assert (hop["hop"], hop["verdict"], hop["changed"][0]["part"]) == ("Model.reply", "slower", "compute")
    assert 30 < hop["delta_p50"] < 50 and 30 < hop["path_delta_ms"] < 50 and 30 < hop["parts"]["compute"] < 50
    assert 30 < told["turns"]["delta_p50"] < 50
    (finding,) = told["findings"]
    assert (finding["hop"], finding["kind"]) == ("Model.reply", "model")
    assert finding["text"].startswith("Model.reply got slower: compute +")


def test_a_queue_that_grew_is_a_queue(tmp_path: Path) -> None:
    (finding,) = versions(tmp_path, queue_ms=100.0)["findings"]
    assert finding["kind"] == "queue"


def test_a_hop_that_got_faster_is_no_finding(tmp_path: Path) -> None:
    told = versions(tmp_path, compute_ms=30.0)
    assert verdicts(told)["Model.reply"] == "faster" and told["findings"] == []


def test_too_few_calls_are_unsure(tmp_path: Path) -> None:
    told = versions(tmp_path, count=1, compute_ms=100.0, turns=2)
    assert verdicts(told)["Model.reply"] == "unsure"
    assert [one["kind"] for one in told["findings"]] == ["unsure"]
    assert "too few calls to say whether that is chance" in told["findings"][0]["text"]


def test_two_calls_that_lie_apart_in_every_turn_are_told_apart(tmp_path: Path) -> None:
    spans = [*calls(1), *calls(1, prefix="slow", seed=2, compute_ms=300.0, start=made.START + HOUR)]
    with kept(tmp_path / "t.sqlite", (spans, RESOURCE)) as connection:
        told = compare(connection, "call:call-0", "call:slow-0", 0.0)
    assert verdicts(told)["Model.reply"] == "slower"


def test_hops_that_came_or_went_are_said_so(tmp_path: Path) -> None:
    phone = {**made.RESOURCE, "chains.chain": "Desk", "service.version": "v2"}
    batches = (calls(10), RESOURCE), (list(made.calls(5, start=made.START + HOUR)), phone)
    with kept(tmp_path / "t.sqlite", *batches) as connection:
        told = compare(connection, "version:v1", "version:v2", 0.0)
    assert verdicts(told)["Model.reply"] == "gone" and verdicts(told)["LLM.stream"] == "new"
    assert ("new", "LLM.stream") in {(one["kind"], one["hop"]) for one in told["findings"]}


def test_ranges_are_compared(tmp_path: Path) -> None:
    spans = [*calls(20), *calls(20, prefix="later", seed=2, compute_ms=120.0, start=made.START + HOUR)]
    middle = made.START / 1e6 + 1.8e6
    with kept(tmp_path / "t.sqlite", (spans, RESOURCE)) as connection:
        told = compare(connection, f"range:..{middle}", "range:-30m..now;chain=Desk", middle + 3.6e6 - 1.8e6)
    assert told["a"]["turns"]["count"] == 80
    assert told["a"]["label"] == f"the beginning to {middle}" and told["b"]["label"] == "-30m to now"


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("", InvalidValue, "is no side to compare"),
        ("call:", InvalidValue, "is no side to compare"),
        ("call:nobody", NotFound, "there is no call 'nobody'"),
        ("version:v9", InvalidValue, "there is no version 'v9'"),
        ("range:yesterday..now", InvalidValue, "'yesterday' is no moment"),
        ("range:-1h", InvalidValue, "is no side to compare"),
        ("range:now..-1h", InvalidValue, "ends before it begins"),
        ("version:v1;chian=Desk", InvalidValue, "is no part of a side"),
    ],
)
def test_a_wrong_side_is_refused_with_the_mend(tmp_path: Path, spec: str, error: type[Exception], said: str) -> None:
    with kept(tmp_path / "t.sqlite", (calls(1), RESOURCE)) as connection, pytest.raises(error, match=said):
        compare(connection, spec, "version:v1", made.START / 1e6)


def test_several_chains_must_be_told_apart(tmp_path: Path) -> None:
    batches = (calls(1), RESOURCE), (made.phone_call(), {**made.RESOURCE, "service.version": "v1"})
    with kept(tmp_path / "t.sqlite", *batches) as connection:
        with pytest.raises(InvalidValue, match="add ;chain=NAME, one of Desk, PhoneCall"):
            compare(connection, "version:v1", "version:v1", 0.0)
        assert compare(connection, "version:v1;chain=Desk", "version:v1;chain=PhoneCall", 0.0)["a"]["chain"] == "Desk"
