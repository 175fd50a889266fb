"""Which replica takes a call."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chains.policy.routing import choose


@pytest.mark.parametrize(
    ("loads", "preferred", "chosen"),
    [
        ([], None, None),
        ([-1, -1], None, None),
        ([3, 1, 2], None, 1),
        ([1, 1], None, 0),
        ([-1, 9], None, 1),
        ([2, 0], 0, 0),  # the one that it had before, while it is at most two calls above the best
        ([3, 0], 0, 1),
        ([-1, 5], 0, 1),  # which takes nothing now
        ([1, 2], 7, 0),  # which is gone
    ],
)
def test_choice(loads: list[int], preferred: int | None, chosen: int | None) -> None:
    assert choose(loads, preferred) == chosen


@given(st.lists(st.integers(-1, 20)), st.none() | st.integers(-3, 12), st.integers(0, 5))
def test_the_choice_takes_calls_and_is_near_the_least(loads: list[int], preferred: int | None, slack: int) -> None:
    index = choose(loads, preferred, slack)
    takers = [load for load in loads if load >= 0]
    if index is None:
        assert not takers
    else:
        assert 0 <= loads[index] <= min(takers) + (slack if index == preferred else 0)
