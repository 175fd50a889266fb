"""Percentiles: near the truth, also after many merges; minutes become hours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chains.records import sketches
from chains.records.schema import HOUR, MINUTE
from chains.records.sketches import COLUMNS, Tally, Values, merged
from chains.records.store import Store

RANKS = [0.5, 0.95, 0.99]


def values(count: int, seed: int = 0) -> Values:
    """Times as hops have them: most near 50 ms, some far slower, half of the parts nothing."""
    rnd = np.random.default_rng(seed)
    found = np.zeros((count, len(COLUMNS)), dtype=np.float32)
    found[:, 4] = rnd.lognormal(4, 0.6, count)
    found[:, 3] = np.where(rnd.random(count) < 0.03, 800, rnd.exponential(1.0, count))
    found[:, 0] = found.sum(axis=1)
    return found


def test_percentiles_after_sixty_merges() -> None:
    minutes = [values(500, seed) for seed in range(60)]
    rows = []
    for minute in minutes:
        tally = Tally()
        tally.add(minute, errors=2)
        rows.append(tally.dump())
    whole, every = merged(rows), np.concatenate(minutes)
    assert (whole.count, whole.errors) == (30_000, 120)
    for index, column in enumerate(COLUMNS):
        for rank, found in zip(RANKS, whole.quantiles(RANKS, column), strict=True):
            share = (every[:, index] <= found).mean()
            assert share >= rank - 0.02 and (every[:, index] < found).mean() <= rank + 0.02
        assert whole.mean(column) == pytest.approx(every[:, index].mean(), rel=1e-4)
    assert whole.quantiles([0.99])[0] == pytest.approx(np.quantile(every[:, 0], 0.99), rel=0.01)


def test_few_values_are_exact() -> None:
    tally = Tally()
    tally.add(values(20))
    assert tally.quantiles([0.5])[0] in values(20)[:, 0]
    assert sum(tally.shares([50.0, 100.0])) == pytest.approx(1.0)


@pytest.mark.parametrize("count", [3, 8, 9, 16, 17, 100])
def test_what_is_always_zero_takes_no_room_and_counts(count: int) -> None:
    tally = Tally()
    tally.add(np.zeros((count, 6), dtype=np.float32))
    row = tally.dump()
    assert len(row[3]) < 16
    late = np.full((count, 6), 8.0, dtype=np.float32)
    for whole in (merged([row]), tally):
        whole.add(late)
        assert whole.count == 2 * count and whole.quantiles([0.25, 0.75], "wire") == [0.0, 8.0]
    other = Tally()
    other.add(late)
    other.merge(merged([row]))
    assert other.quantiles([0.25, 0.75], "wire") == [0.0, 8.0]


@pytest.mark.parametrize("sizes", [[1], [5, 11], [5, 12], [16, 1], [17], [3, 40, 2]])
def test_few_and_many_count_alike(sizes: list[int]) -> None:
    parts = [values(size, seed) for seed, size in enumerate(sizes)]
    whole, every = Tally(), np.concatenate(parts)
    for part in parts:
        kept = Tally()
        kept.add(part, errors=1)
        whole.merge(Tally.load(*kept.dump()))
        whole = Tally.load(*whole.dump())
    assert (whole.count, whole.errors) == (sum(sizes), len(sizes))
    for index, column in enumerate(COLUMNS):
        assert whole.mean(column) == pytest.approx(every[:, index].mean(), rel=1e-4)
        assert whole.quantiles([0.0, 1.0], column) == [every[:, index].min(), every[:, index].max()]
    if sum(sizes) <= sketches.FEW:
        fresh = Tally()
        fresh.add(every)
        assert len(fresh.dump()[3]) == 2 + 16 * sum(sizes) * (every.any(axis=0).sum() / 4)


def test_nothing_has_no_percentiles() -> None:
    assert Tally().quantiles(RANKS) == [0.0] * 3 and Tally().mean() == 0.0 and Tally().shares([1.0]) == [0.0, 0.0]


def test_minutes_become_hours(tmp_path: Path) -> None:
    hour = 1_790_000_000 // HOUR * HOUR
    with Store.open(tmp_path / "traces.sqlite") as store:
        connection = store.connection
        every = []
        for minute in range(90):  # an hour and a half
            part = values(5, minute)
            every.append(part)
            sketches.add(connection, (hour + minute * 60, MINUTE, 1, 2, 3, 4), part, 1)
            row = (hour + minute * 60, MINUTE, 1, 2, 3, 4, 5, 1, 10.0)
            sketches.add_paths(connection, [row, row])
        assert not sketches.compact(connection, hour + HOUR - 1)
        while sketches.compact(connection, hour + HOUR + 10):
            pass
        rows = connection.execute("SELECT bucket, width, count, errors, sums, sketch FROM sketches").fetchall()
        assert [row[:2] for row in rows][:2] == [(hour, HOUR), (hour + HOUR, MINUTE)] and len(rows) == 31
        assert rows[0][2:4] == (300, 60)
        assert merged(row[2:] for row in rows).mean() == pytest.approx(np.concatenate(every)[:, 0].mean(), rel=1e-4)
        paths = connection.execute("SELECT width, turns, ms FROM paths ORDER BY bucket").fetchall()
        assert paths[0] == (HOUR, 120, 1200.0) and len(paths) == 31

        sketches.add(connection, (hour + 60, MINUTE, 1, 2, 3, 4), values(5), 0)  # a span that came late
        assert sketches.compact(connection, hour + HOUR) and not sketches.compact(connection, hour + HOUR)
        assert connection.execute("SELECT width, count FROM sketches WHERE bucket < ?", (hour + HOUR,)).fetchall() == [
            (HOUR, 305)
        ]
