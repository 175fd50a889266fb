"""What is drawn of a hop's inside, and the critical path through spans of others."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chains.records.packing import Wait, Work
from chains.records.waterfall import (
    KEPT,
    Bar,
    Hop,
    Waited,
    by_children,
    critical_path,
    proportional,
    segments,
    sums,
    tree,
)


def name(span: int) -> str:
    return {7: "Model.reply"}.get(span, "")


def test_a_bar_shows_the_way_there_the_queue_the_inside_and_the_way_back() -> None:
    hop = Hop(100.0, serialise=1.0, received=5.0, accepted=15.0, ended=98.0)
    assert segments(hop, name) == [
        ("serialise", 0.0, 1.0, ""), ("wire", 1.0, 4.0, ""), ("queue", 5.0, 10.0, ""), ("compute", 15.0, 83.0, ""),
        ("wire", 98.0, 2.0, ""),
    ]  # fmt: skip


def test_works_and_waits_stand_where_they_happened_with_their_names() -> None:
    waits = [Wait(10.0, 40.0, "hop", 7, 1), Wait(60.0, 20.0, "credit", 7, 1), Wait(80.0, 5.0, "input", 0, 1)]
    hop = Hop(100.0, received=0.0, accepted=0.0, ended=100.0, waits=waits, works=[Work(45.0, 10.0, "decode", 1)])
    assert segments(hop, name) == [
        ("compute", 0.0, 10.0, ""), ("wait", 10.0, 35.0, "Model.reply"), ("compute", 45.0, 10.0, "decode"),
        ("compute", 55.0, 5.0, ""), ("wait", 60.0, 20.0, "credit"), ("wait", 80.0, 5.0, "input"),
        ("compute", 85.0, 15.0, ""),
    ]  # fmt: skip


def test_before_the_first_wait_that_was_kept_nothing_is_claimed() -> None:
    waits = [Wait(1_000.0 + 10.0 * n, 5.0, "input", 0, 0) for n in range(KEPT)]
    drawn = segments(Hop(2_000.0, accepted=1.0, received=1.0, waits=waits), name)
    assert drawn[1] == ("mixed", 1.0, 999.0, "") and drawn[2] == ("wait", 1_000.0, 5.0, "input")


spot = st.floats(-50.0, 250.0)


@given(
    ms=st.floats(0.01, 200.0),
    marks=st.tuples(st.none() | spot, st.none() | spot, st.none() | spot),
    waits=st.lists(
        st.tuples(spot, st.floats(0.0, 90.0), st.sampled_from(["hop", "credit"]), st.sampled_from([0, 7])), max_size=6
    ),
    works=st.lists(st.tuples(spot, st.floats(0.0, 90.0)), max_size=6),
)
def test_segments_fill_the_bar_without_gap_or_overlap_whatever_was_sent(
    ms: float,
    marks: tuple[float | None, float | None, float | None],
    waits: list[tuple[float, float, str, int]],
    works: list[tuple[float, float]],
) -> None:
    received, accepted, ended = marks
    hop = Hop(
        ms, 0.3, received, accepted, ended, [Wait(*wait, 1) for wait in waits], [Work(*work, "w", 1) for work in works]
    )  # fmt: skip
    at = 0.0
    for _, start, length, _ in segments(hop, name):
        assert start == pytest.approx(at, abs=0.01) and length > 0
        at = start + length
    assert at == pytest.approx(ms, abs=0.01)


def test_a_hop_that_tells_nothing_shows_its_parts_in_order() -> None:
    assert proportional([0.0, 1.0, 0.0, 3.0, 2.0]) == [
        ("wire", 0.0, 1.0, ""),
        ("compute", 1.0, 3.0, ""),
        ("wait", 4.0, 2.0, ""),
    ]


def bar(id: int, parent: int, start: float, ms: float) -> Bar:
    return Bar(id, id, parent, f"span {id}", "", 0, start, ms)


def path(bars: list[Bar]) -> list[tuple[int, float, float]]:
    return [(of.id, start, ms) for of, start, ms in critical_path(tree(bars)[0])]


def test_the_path_follows_the_child_that_finished_last() -> None:
    bars = [bar(1, 0, 0, 100), bar(2, 1, 10, 30), bar(3, 1, 20, 60), bar(4, 3, 25, 10)]
    assert path(bars) == [(1, 0, 10), (2, 10, 10), (3, 20, 5), (4, 25, 10), (3, 35, 45), (1, 80, 20)]


def test_a_child_that_outlives_its_parent_counts_to_the_parents_end() -> None:
    assert path([bar(1, 0, 0, 50), bar(2, 1, 30, 90)]) == [(1, 0, 30), (2, 30, 20)]


@given(st.lists(st.tuples(st.integers(0, 11), st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=12))
def test_the_path_sums_to_its_root_also_in_circles_and_with_clocks_astray(
    spans: list[tuple[int, float, float]],
) -> None:
    bars = [bar(id + 1, parent, start, ms) for id, (parent, start, ms) in enumerate(spans)]
    root = tree(bars)[0]
    steps = critical_path(root)
    assert sum(ms for _, _, ms in steps) == pytest.approx(root.ms, abs=1e-6)
    for (_, start, ms), (_, following, _) in pairwise(steps):
        assert start + ms == pytest.approx(following)


def test_no_child_is_followed_while_its_caller_is_known_to_do_something_else() -> None:
    """A stream's maker runs on while its caller waits for a slow reader."""
    bars = [bar(1, 0, 0, 100), bar(2, 1, 5, 90)]
    inside = {1: [("wait", 0.0, 30.0, "span 2"), ("wait", 30.0, 60.0, "credit"), ("wait", 90.0, 10.0, "span 2")]}
    steps = [(of.id, start, ms) for of, start, ms in critical_path(tree(bars)[0], inside)]
    assert steps == [(1, 0, 5), (2, 5, 25), (1, 30, 60), (2, 90, 5), (1, 95, 5)]


def test_a_deep_trace_is_walked() -> None:
    deep = [bar(n, n - 1, n / 1e3, 200.0 - n / 1e3) for n in range(1, 20_001)]
    assert sum(ms for _, _, ms in critical_path(tree(deep)[0])) == pytest.approx(deep[0].ms)


def test_a_bar_waits_while_its_children_run() -> None:
    bars = [bar(1, 0, 0, 100), bar(2, 1, 10, 30), bar(3, 1, 30, 30), bar(4, 1, 95, 50)]
    stretches = by_children(tree(bars)[0])
    assert stretches == [
        ("compute", 0, 10, ""), ("wait", 10, 30, "span 2"), ("wait", 40, 20, "span 3"), ("compute", 60, 35, ""),
        ("wait", 95, 5, "span 4"),
    ]  # fmt: skip
    assert sums(stretches) == [0.0, 0.0, 0.0, 45.0, 55.0]


def test_who_waits_on_a_sibling_is_on_the_path_for_what_the_sibling_did() -> None:
    root = Bar(1, 1, 0, "Greeter.run", "", 0, 0.0, 100.0)
    maker = Bar(2, 2, 1, "Writer.write", "", 0, 5.0, 85.0)
    reader = Bar(3, 3, 1, "Shouter.shout", "", 0, 6.0, 90.0)
    tree([root, maker, reader])
    waits = {1: [Waited(6.0, 96.0, "hop", reader)], 3: [Waited(7.0, 95.0, "input", maker)]}
    inside = {
        1: [("compute", 0.0, 6.0, ""), ("wait", 6.0, 90.0, "")],
        3: [("compute", 0.0, 1.0, ""), ("wait", 1.0, 88.0, "")],
    }
    assert [(bar.name, start, start + ms) for bar, start, ms in critical_path(root, inside, waits)] == [
        ("Greeter.run", 0.0, 6.0), ("Shouter.shout", 6.0, 7.0), ("Writer.write", 7.0, 90.0),
        ("Shouter.shout", 90.0, 95.0), ("Shouter.shout", 95.0, 96.0), ("Greeter.run", 96.0, 100.0),
    ]  # fmt: skip


def test_who_waits_for_its_input_from_outside_is_not_said_to_wait_for_a_child_that_runs() -> None:
    root, child = Bar(1, 1, 0, "A.run", "", 0, 0.0, 10.0), Bar(2, 2, 1, "B.listen", "", 0, 0.0, 10.0)
    tree([root, child])
    path = critical_path(root, {1: [("wait", 0.0, 10.0, "input")]}, {1: [Waited(0.0, 10.0, "input", None)]})
    assert path == [(root, 0.0, 10.0)]


@given(
    bars=st.lists(st.tuples(spot, st.floats(0.1, 200.0), st.integers(0, 7)), min_size=1, max_size=8),
    waits=st.lists(
        st.tuples(
            st.integers(0, 7), spot, st.floats(0.0, 200.0), st.sampled_from(["hop", "input"]), st.integers(-1, 7)
        ),
        max_size=12,
    ),
)
def test_a_path_ends_and_fills_the_root_whoever_waits_on_whom(
    bars: list[tuple[float, float, int]], waits: list[tuple[int, float, float, str, int]]
) -> None:
    made = [
        Bar(n, n + 1, parent % n + 1 if n else 0, f"H{n}.f", "", 0, at, ms) for n, (at, ms, parent) in enumerate(bars)
    ]
    tree(made)
    told: dict[int, list[Waited]] = {}
    for row, at, ms, kind, on in waits:
        told.setdefault(row, []).append(Waited(at, at + ms, kind, made[on % len(made)] if on >= 0 else None))
    path = critical_path(made[0], None, told)
    assert all(start + ms == pytest.approx(after) for (_, start, ms), (_, after, _) in pairwise(path))
    assert sum(ms for _, _, ms in path) == pytest.approx(made[0].ms)
    assert all(bar.start - 1e-6 <= start and start + ms <= bar.end + 1e-6 for bar, start, ms in path)
