"""When one set of times is surely unlike another."""

from __future__ import annotations

import numpy as np
import pytest

from chains.records.peers import difference, differences, own_time
from chains.records.sketches import COLUMNS, Tally


def tally(count: int, seed: int, **parts: float) -> Tally:
    """Spread like real times: each part lognormal around its mean."""
    rnd = np.random.default_rng(seed)
    values = np.zeros((count, len(COLUMNS)), dtype=np.float32)
    for part, mean in parts.items():
        values[:, COLUMNS.index(part)] = mean * rnd.lognormal(0.0, 0.3, count)
    values[:, 0] = values[:, 1:].sum(axis=1)
    made = Tally()
    made.add(values)
    return made


def test_a_part_that_takes_longer_is_found_with_by_how_much() -> None:
    found = difference(tally(60, 1, compute=140.0, queue=1.0), tally(200, 2, compute=60.0, queue=1.0))
    assert found is not None and found.part == "compute" and not found.tail
    assert found.ms == pytest.approx(80.0, abs=20.0)


def test_waiting_is_somebody_elses_time() -> None:
    assert difference(tally(60, 1, compute=60.0, wait=900.0), tally(200, 2, compute=60.0, wait=100.0)) is None


def test_few_values_say_nothing() -> None:
    assert difference(tally(11, 1, compute=140.0), tally(200, 2, compute=60.0)) is None
    assert difference(tally(200, 1, compute=140.0), tally(11, 2, compute=60.0)) is None


def test_what_is_sure_but_small_does_not_matter() -> None:
    mine, others = tally(20_000, 1, compute=64.5), tally(20_000, 2, compute=60.0)
    assert difference(mine, others) is None
    assert [one.part for one in differences(mine, others)] == ["compute"]


def test_a_slow_tail_is_found_where_the_median_is_like_the_others() -> None:
    mine, others = tally(900, 1, compute=60.0), tally(2_000, 2, compute=60.0)
    mine.merge(tally(100, 3, compute=600.0))
    found = difference(mine, others)
    assert found is not None and found.tail and found.part == "compute" and found.ms > 300.0


def test_equal_spreads_differ_less_often_than_once_in_two_hundred() -> None:
    """A page shows some 20 replicas; it must not cry wolf every day."""
    alarms = sum(
        difference(tally(40, seed, compute=60.0), tally(120, seed + 10_000, compute=60.0)) is not None
        for seed in range(600)
    )
    assert alarms <= 3


def test_own_time_leaves_the_waits_out() -> None:
    assert own_time(tally(500, 1, compute=50.0, queue=10.0, wait=400.0)) == pytest.approx(60.0, rel=0.1)
