"""Where figures come from: single spans, or sketches by the minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from chains.records import figures
from chains.records.figures import Wanted, of_calls, of_chain, part_of
from chains.records.ranges import Range
from tests.chains.records import made
from tests.chains.records.shaped import RESOURCE, calls, kept

MINUTE_MS = 60_000.0


def test_two_ranges_beside_one_another_share_no_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "EXACT", 0)
    with kept(tmp_path / "t.sqlite", (calls(120), RESOURCE)) as connection:
        start = made.START / 1e6
        halves = [Range(None, start + 2 * MINUTE_MS), Range(start + 2 * MINUTE_MS, None)]
        whole = of_chain(connection, Wanted("Desk")).hop("Model.reply").count
        split = [of_chain(connection, Wanted("Desk", range=half)).hop("Model.reply").count for half in halves]
    assert whole == 480 and sum(split) == whole and min(split) > 100


def test_paths_are_the_same_from_spans_and_from_sketches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kept(tmp_path / "t.sqlite", (list(made.calls(3)), made.RESOURCE)) as connection:
        exact = of_chain(connection, Wanted("PhoneCall"))
        monkeypatch.setattr(figures, "EXACT", 0)
        summed = of_chain(connection, Wanted("PhoneCall"))
    assert summed.on_path.keys() == exact.on_path.keys()
    for hop, (turns, ms) in exact.on_path.items():
        assert summed.on_path[hop] == (turns, pytest.approx(ms, abs=0.1))
    assert summed.path_parts.keys() == exact.path_parts.keys()


def test_an_app_is_counted_from_its_own_calls(tmp_path: Path) -> None:
    app = {**RESOURCE, "chains.app": "staging"}
    batches = (calls(4), RESOURCE), (calls(3, prefix="staged", seed=2), app)
    with kept(tmp_path / "t.sqlite", *batches) as connection:
        found = of_chain(connection, Wanted("Desk", app="staging"))
    assert (found.calls, found.turns.count) == (3, 12)


def test_the_outermost_hop_tells_how_long_it_waited_for_its_reader(tmp_path: Path) -> None:
    with kept(tmp_path / "t.sqlite", (calls(2, credit_ms=1_000.0), RESOURCE)) as connection:
        found = of_calls(connection, [1, 2])
    assert [hop for hop, _, _ in found.entries] == ["Desk.run", "Desk.run"]
    assert all(waited == pytest.approx(1_000.0, abs=1.0) for _, _, waited in found.entries)
    assert found.edges == {("Desk.run", "Model.reply")}


def test_dropped_turns_count_for_nothing(tmp_path: Path) -> None:
    spans = made.phone_call(turns=3, states=("dropped", "answered", "interrupted"))
    with kept(tmp_path / "t.sqlite", (spans, made.RESOURCE)) as connection:
        assert of_calls(connection, [1]).turns.count == 2


def test_waits_on_paths_are_told_apart() -> None:
    assert [part_of("wait", "credit"), part_of("wait", "input"), part_of("wait", ""), part_of("compute", "credit")] == [
        "credit", "input", "wait", "compute",
    ]  # fmt: skip
