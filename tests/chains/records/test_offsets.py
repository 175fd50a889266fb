"""How far other clocks are off, from parents and children alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chains.records.offsets import Placed, offsets


def test_a_child_that_lies_outside_its_parent_is_put_into_its_middle() -> None:
    spans = [Placed(1, 0, 1, 0.0, 100.0), Placed(2, 1, 2, 5_000.0, 60.0)]
    assert offsets(spans, {1}) == {1: 0.0, 2: -4_980.0}


def test_children_that_fit_move_nothing() -> None:
    spans = [Placed(1, 0, 1, 0.0, 100.0), Placed(2, 1, 2, 1.0, 98.0), Placed(3, 1, 2, 99.5, 1.0)]
    assert offsets(spans) == {1: 0.0, 2: 0.0}


@given(st.floats(-86_400_000.0, 86_400_000.0), st.integers(2, 30))
def test_many_pairs_narrow_the_estimate_down(skew: float, count: int) -> None:
    """Each way takes 0.5 to 3 ms: the estimate is off by no more than that."""
    rnd = random.Random(count)
    spans = []
    for n in range(count):
        there, back, inside = rnd.uniform(0.5, 3.0), rnd.uniform(0.5, 3.0), rnd.uniform(1.0, 50.0)
        spans.append(Placed(10 + n, 0, 1, n * 100.0, there + inside + back))
        spans.append(Placed(1_000 + n, 10 + n, 2, n * 100.0 + there + skew, inside))
    found = offsets(spans, {1})[2]
    assert found == pytest.approx(-skew, abs=3.0 + 1.0)


def test_clocks_are_followed_from_process_to_process() -> None:
    spans = [Placed(1, 0, 1, 0.0, 100.0), Placed(2, 1, 2, 1_010.0, 80.0), Placed(3, 2, 3, -480.0, 60.0)]
    found = offsets(spans, {1})
    assert found == {1: 0.0, 2: -1_000.0, 3: 500.0}


def test_work_that_goes_on_after_its_parent_only_may_not_begin_before_it() -> None:
    later = [Placed(1, 0, 1, 0.0, 10.0), Placed(2, 1, 2, 40.0, 500.0)]
    assert offsets(later) == {1: 0.0, 2: 0.0}
    earlier = [Placed(1, 0, 1, 0.0, 10.0), Placed(2, 1, 2, -300.0, 500.0)]
    assert offsets(earlier) == {1: 0.0, 2: 300.0}


def test_what_is_not_linked_stays_where_it_is() -> None:
    assert offsets([Placed(1, 0, 1, 0.0, 10.0), Placed(2, 9, 2, 50_000.0, 10.0)]) == {1: 0.0, 2: 0.0}
    assert offsets([]) == {}


def test_one_pair_astray_among_many_that_fit_moves_nothing() -> None:
    spans = [Placed(1, 0, 1, 0.0, 1_000.0), *(Placed(10 + n, 1, 2, 100.0 * n, 50.0) for n in range(9))]
    assert offsets([*spans, Placed(99, 1, 2, 1_400.0, 50.0)], {1})[2] == 0.0
