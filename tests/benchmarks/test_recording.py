"""What recording costs is measured on frames that all arrive."""

from __future__ import annotations

from benchmarks.recording import gateway, store


def test_a_small_run_has_every_row() -> None:
    rows = gateway(rounds=1, frames=200, paced=20, seed=0)
    assert [row.goal for row in rows] == [20.0, 20.0, 20.0, None] and all(row.ours > 0 for row in rows[:3])


def test_a_short_call_is_kept_and_read() -> None:
    rows = store(minutes=1, seeks=2)
    assert len(rows) == 4 and all(row.ours > 0 for row in rows)
    assert rows[1].ours < 3.8  # raw it is 3.84 MB
