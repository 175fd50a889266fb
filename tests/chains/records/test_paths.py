"""Which bars a turn's path runs through."""

from __future__ import annotations

import time
from typing import Any

import pytest

from chains.records.paths import computed, matched
from chains.records.waterfall import Bar, tree


def bar(row: int, name: str, turn: int, start: float, ms: float, replica: str = "", parent: int = 0) -> Bar:
    return Bar(row, row, parent, name, replica, turn, start, ms)


def turn(number: int, *path: tuple[Any, ...]) -> dict[str, Any]:
    return {"number": number, "path": path}


def test_the_bar_that_covers_most_of_a_stretch_is_meant() -> None:
    bars = [bar(1, "A.f", 1, 0.0, 50.0), bar(2, "A.f", 1, 40.0, 60.0), bar(3, "B.f", 1, 0.0, 100.0)]
    assert matched([turn(1, ("A.f", "compute", "", "", 45.0, 40.0))], bars) == {2: 40.0}


def test_a_bar_of_the_same_replica_and_turn_is_meant() -> None:
    bars = [
        bar(1, "A.f", 1, 0.0, 100.0, "A-0"),
        bar(2, "A.f", 1, 0.0, 100.0, "A-1"),
        bar(3, "A.f", 2, 0.0, 100.0, "A-0"),
    ]
    path = turn(1, ("A.f", "queue", "", "A-1", 10.0, 5.0)), turn(2, ("A.f", "queue", "", "A-0", 10.0, 7.0))
    assert matched(path, bars) == {2: 5.0, 3: 7.0}


def test_a_hop_of_the_whole_call_serves_every_turn() -> None:
    assert matched(
        [turn(n, ("A.f", "compute", "", "", 10.0 * n, 1.0)) for n in (1, 2)], [bar(1, "A.f", 0, 0.0, 90.0)]
    ) == {1: 2.0}


def test_a_stretch_beside_every_bar_is_in_none() -> None:
    assert matched([turn(1, ("A.f", "compute", "", "", 90.0, 5.0))], [bar(1, "A.f", 1, 0.0, 50.0)]) == {}


def test_many_turns_and_bars_take_no_square_of_time() -> None:
    bars = [bar(n, "A.f", n // 10, 10.0 * n, 9.0) for n in range(30_000)]
    turns = [turn(n, *(("A.f", "compute", "", "", 100.0 * n + 10.0 * k, 5.0) for k in range(10))) for n in range(3_000)]
    began = time.process_time()
    assert len(matched(turns, bars)) == 30_000
    assert time.process_time() - began < 5.0


def test_a_computed_path_is_split_by_what_is_known_of_the_inside() -> None:
    bars = [bar(1, "A.f", 0, 0.0, 100.0), bar(2, "B.g", 0, 30.0, 40.0, "B-0", parent=1)]
    inside = {1: [("queue", 0.0, 20.0, ""), ("compute", 20.0, 10.0, "plan"), ("wait", 30.0, 40.0, "B.g")]}
    told, on_path = computed(tree(bars)[0], inside)
    assert told["path"] == [
        ("A.f", "queue", "", "", 0.0, 20.0), ("A.f", "compute", "plan", "", 20.0, 10.0),
        ("B.g", "compute", "", "B-0", 30.0, 40.0), ("A.f", "compute", "", "", 70.0, 30.0),
    ]  # fmt: skip
    assert on_path == {1: 60.0, 2: 40.0} and told["latency_ms"] == pytest.approx(sum(on_path.values()))


def test_what_of_a_call_lies_beside_its_outermost_hop_is_named_and_counted() -> None:
    told, on_path = computed(tree([bar(1, "A.f", 0, 10.0, 40.0)])[0], {}, None, (0.0, 90.0))
    assert told["path"] == [
        ("the call", "wait", "before A.f", "", 0.0, 10.0), ("A.f", "compute", "", "", 10.0, 40.0),
        ("the call", "wait", "after A.f", "", 50.0, 40.0),
    ]  # fmt: skip
    assert told["latency_ms"] == 90.0 == sum(step[5] for step in told["path"]) and on_path == {1: 40.0}
