"""A minute of many streams with cancels and kills; ten minutes of it are benchmarks/soak.py."""

from __future__ import annotations

import pytest

from benchmarks.soak import Found, Soak, made, rows, slope

SECONDS = 60.0


def test_an_item_is_known_by_its_seed_and_place() -> None:
    assert made(7, 3) == made(7, 3)
    assert made(7, 3) != made(7, 4) != made(8, 4)


def test_the_slope_is_mb_per_minute_after_the_warm_up() -> None:
    warm = [(float(at), 1e6 * at) for at in range(10)]
    flat = [(float(at), 10e6) for at in range(10, 40)]
    rising = [(float(at), 10e6 + 0.1e6 * at) for at in range(10, 40)]
    assert slope(warm + flat, 10.0) == pytest.approx(0, abs=1e-6)
    assert slope(warm + rising, 10.0) == pytest.approx(6.0)
    assert slope(warm, 5.0) is None, "too few to say"


def test_a_wrong_answer_and_a_hang_miss_their_goals() -> None:
    bad = {row.name: row.met for row in rows(Found(wrong=["item 3"], hung=["stream"]), 0.0)}
    assert bad["wrong answers"] is False and bad["hangs"] is False
    assert all(row.met is not False for row in rows(Found(), 0.0))


def test_replicas_that_grow_from_third_to_third_miss_their_goal() -> None:
    lives = {1: [(float(at), 50e6) for at in range(60)], 2: [(float(at), 50e6 + 1e6 * at) for at in range(60)]}
    (row,) = (row for row in rows(Found(others=lives), 0.0) if row.name.startswith("MB: a replica"))
    assert row.met is False and row.peer == pytest.approx(88, abs=2) and row.ours == pytest.approx(108, abs=2)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("runtime", ["processes", "ray"])
async def test_a_minute_of_cancels_and_kills_gives_no_wrong_answer_and_no_hang(
    runtime: str, request: pytest.FixtureRequest
) -> None:
    if runtime == "ray":
        request.getfixturevalue("ray_cluster")  # one for all tests of a process
    found = await Soak(runtime, SECONDS, streams=50, kill_every=8.0, seed=0).run()
    assert (found.wrong, found.hung, found.left_behind) == ([], [], 0)
    assert len(found.kills) >= 3
    assert sum(found.outcomes.values()) > 200, "fifty at once, each seconds long at most, also on a busy machine"
    assert found.own[-1][1] - found.own[len(found.own) // 3][1] < 64e6, "the caller's memory grows"
