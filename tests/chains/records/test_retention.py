"""What goes, what stays, and that it goes in small slices."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from chains.errors import SettingError
from chains.records.retention import EVERY_S, Retention, Upkeep
from chains.records.store import Store
from chains.records.writer import Writer
from tests.chains.records import made
from tests.chains.records.test_writer import SECOND, arrivals

DAY = 86_400 * SECOND


class Wall:
    """Nanoseconds since 1970, as a test sets them."""

    def __init__(self, now: int = made.START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def kept(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT call FROM calls ORDER BY id")]


def work(upkeep: Upkeep, connection: sqlite3.Connection) -> int:
    """All that is due; gives how many slices that took."""
    slices = 1
    while upkeep.slice(connection):
        slices += 1
        assert slices < 10_000
    return slices


def left(connection: sqlite3.Connection) -> int:
    """Rows of calls that are gone."""
    tables = ("spans", "turns", "recordings")
    return sum(
        connection.execute(f"SELECT count(*) FROM {table} WHERE call NOT IN (SELECT id FROM calls)").fetchone()[0]
        for table in tables
    )


def test_calls_go_by_age_with_all_that_is_theirs(tmp_path: Path) -> None:
    wall = Wall()
    with Store.open(tmp_path / "traces.sqlite") as store:
        connection, writer = store.connection, Writer(store, wall)
        upkeep = Upkeep(Retention(max_age_days=2.0), wall)
        for day in range(4):
            writer.write(arrivals(made.phone_call(f"call-{day}", 2)))
            connection.execute(
                "INSERT INTO recordings SELECT id, 0, 0, 0, 0, 'audio', 1, 20, 8000, NULL, x'00' FROM calls"
                " WHERE call = ?",
                (f"call-{day}",),
            )
            wall.now += DAY
        work(upkeep, connection)
        assert kept(connection) == ["call-2", "call-3"] and left(connection) == 0
        assert connection.execute("SELECT count(*) FROM recordings").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM sketches").fetchone()[0] > 0


def test_calls_go_by_size_the_oldest_first(tmp_path: Path) -> None:
    wall = Wall()
    with Store.open(tmp_path / "traces.sqlite") as store:
        connection, writer = store.connection, Writer(store, wall)
        for number in range(150):
            writer.write(arrivals(made.phone_call(f"call-{number}", 4)))
        before = store.bytes()
        upkeep = Upkeep(Retention(max_bytes=2**20), wall)
        assert before > 2**20
        assert work(upkeep, connection) > 10
        found = kept(connection)
        assert found == [f"call-{number}" for number in range(150 - len(found), 150)] and 10 < len(found) < 140
        assert store.bytes() <= 2**20 and left(connection) == 0
        assert connection.execute("PRAGMA freelist_count").fetchone()[0] < 256  # the rest went back to the disk


def test_a_large_call_is_deleted_in_slices(tmp_path: Path) -> None:
    wall = Wall()
    with Store.open(tmp_path / "traces.sqlite") as store:
        Writer(store, wall).write(arrivals(made.phone_call("call-1", 400)))
        (spans,) = store.connection.execute("SELECT spans FROM calls").fetchone()
        wall.now += 30 * DAY
        upkeep = Upkeep(Retention(), wall)
        sizes = []
        while upkeep.slice(store.connection):
            sizes.append(store.connection.execute("SELECT count(*) FROM spans").fetchone()[0])
        steps = [a - b for a, b in zip([spans, *sizes], sizes, strict=False)]
        assert spans > 5_000 and max(steps) == 1_000 and sizes[-1] == 0


def test_a_call_that_lives_goes_last(tmp_path: Path) -> None:
    wall = Wall()
    with Store.open(tmp_path / "traces.sqlite") as store:
        writer = Writer(store, wall)
        writer.write(arrivals(made.phone_call("live", 4)[:-1]))
        for number in range(150):
            writer.write(arrivals(made.phone_call(f"call-{number}", 4)))
        work(Upkeep(Retention(max_bytes=2**20), wall), store.connection)
        assert kept(store.connection)[0] == "live"


def test_a_call_of_which_nothing_comes_is_lost_after_ten_minutes(tmp_path: Path) -> None:
    wall = Wall()
    with Store.open(tmp_path / "traces.sqlite") as store:
        writer, upkeep = Writer(store, wall), Upkeep(Retention(), wall)
        writer.write(arrivals(made.phone_call("call-1", 2)[:-1]) + arrivals(made.foreign_trace(1)[:-1]))
        outcomes = "SELECT outcome FROM calls ORDER BY call = 'call-1'"
        wall.now += 599 * SECOND
        work(upkeep, store.connection)
        assert store.connection.execute(outcomes).fetchall() == [("live",), ("live",)]
        wall.now += (EVERY_S + 1) * SECOND
        work(upkeep, store.connection)
        assert store.connection.execute(outcomes).fetchall() == [("done",), ("lost",)]


def test_it_looks_once_a_minute(tmp_path: Path) -> None:
    wall = Wall()
    with Store.open(tmp_path / "traces.sqlite") as store:
        upkeep = Upkeep(Retention(max_age_days=1.0), wall)
        Writer(store, wall).write(arrivals(made.phone_call("call-1", 1)))
        wall.now += DAY
        assert not upkeep.slice(store.connection)  # on the second
        wall.now += (EVERY_S - 1) * SECOND
        assert not upkeep.slice(store.connection) and kept(store.connection)
        wall.now += SECOND
        work(upkeep, store.connection)
        assert not kept(store.connection)


def test_a_clock_that_leaps_ahead_deletes_nothing_for_an_hour(tmp_path: Path) -> None:
    wall = Wall()
    with Store.open(tmp_path / "traces.sqlite") as store:
        upkeep = Upkeep(Retention(), wall)
        Writer(store, wall).write(arrivals(made.phone_call("call-1", 1)))
        work(upkeep, store.connection)
        for minutes in (0, 59):  # put right again, and once more to stay
            wall.now += 3_650 * DAY
            for _ in range(minutes + 1):
                work(upkeep, store.connection)
                wall.now += EVERY_S * SECOND
            assert kept(store.connection) == ["call-1"]
            if not minutes:
                wall.now -= 3_650 * DAY
                work(upkeep, store.connection)
        wall.now += EVERY_S * SECOND
        work(upkeep, store.connection)
        assert not kept(store.connection)


def test_a_clock_that_was_ahead_and_is_put_right_stops_nothing(tmp_path: Path) -> None:
    wall = Wall()
    with Store.open(tmp_path / "traces.sqlite") as store:
        upkeep = Upkeep(Retention(max_bytes=2**20), wall)
        wall.now += 3_650 * DAY
        work(upkeep, store.connection)
        wall.now -= 3_650 * DAY
        for number in range(150):
            Writer(store, wall).write(arrivals(made.phone_call(f"call-{number}", 4)))
        work(upkeep, store.connection)
        assert store.bytes() <= 2**20


def test_percentiles_go_after_their_own_time(tmp_path: Path) -> None:
    wall = Wall()
    with Store.open(tmp_path / "traces.sqlite") as store:
        Writer(store, wall).write(arrivals(made.phone_call("call-1", 1)))
        count = "SELECT (SELECT count(*) FROM sketches) + (SELECT count(*) FROM paths)"
        wall.now += 89 * DAY
        upkeep = Upkeep(Retention(), wall)
        work(upkeep, store.connection)
        assert store.connection.execute(count).fetchone()[0] > 0 and not kept(store.connection)
        wall.now += 2 * DAY
        work(Upkeep(Retention(), wall), store.connection)
        assert store.connection.execute(count).fetchone() == (0,)


@pytest.mark.parametrize("settings", [{"max_age_days": 0}, {"max_bytes": 1000}, {"statistics_days": -1}])
def test_settings_that_make_no_sense(settings: dict[str, float]) -> None:
    with pytest.raises(SettingError):
        Retention(**settings)  # type: ignore[arg-type]
