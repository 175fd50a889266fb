"""The queue and its writer: nothing waits, what does not fit is counted, the file may come to harm."""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path

import pytest

from chains.errors import SettingError
from chains.records.arrived import Arrived
from chains.records.intake import FULL, LOCKED, UNWRITABLE, Intake, Limits
from chains.records.retention import Retention
from chains.records.store import Store
from tests.chains.records import made
from tests.chains.records.test_retention import Wall
from tests.chains.records.test_writer import SECOND, arrivals

SENDER = "PhoneCall (gateway:4711)"


def call(name: str = "call-1", turns: int = 1) -> list[Arrived]:
    return arrivals(made.phone_call(name, turns))


def one(path: Path, query: str) -> tuple[object, ...]:
    with Store.open(path, readonly=True) as store:
        found: tuple[object, ...] = store.connection.execute(query).fetchone()
        return found


def test_what_is_offered_is_written_and_told(tmp_path: Path) -> None:
    path, told = tmp_path / "traces.sqlite", []
    with Intake(path, changed=told.append) as intake:
        assert intake.offer(call("a")) and intake.offer(call("b")) and intake.offer([])
        intake.drop({("x", "malformed"): 3})
        assert intake.flush() and intake.waiting == 0
        assert one(path, "SELECT count(*), sum(spans) FROM calls") == (2, len(call("a")) + len(call("b")))
        assert one(path, "SELECT source, reason, count FROM drops") == ("x", "malformed", 3)
        assert set().union(*told) == {1, 2} and intake.drops == {("x", "malformed"): 3}


def test_closing_writes_what_waits(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    intake = Intake(path)
    for number in range(20):
        intake.offer(call(f"call-{number}"))
    intake.close()
    assert one(path, "SELECT count(*) FROM calls") == (20,)
    assert not intake.offer(call("late"))


class Held:
    """Another process that holds the file's write lock, until it is let go."""

    def __init__(self, path: Path) -> None:
        self._store = Store.open(path)
        self._store.connection.execute("BEGIN IMMEDIATE")

    def let_go(self) -> None:
        self._store.connection.execute("COMMIT")
        self._store.close()


def test_a_full_queue_drops_whole_batches_and_says_whose(tmp_path: Path) -> None:
    path, batch = tmp_path / "traces.sqlite", call()
    with Intake(path, limits=Limits(spans=len(batch) + 1)) as intake:
        intake.flush()
        held = Held(path)
        taken = sum(intake.offer(batch) for _ in range(8))
        assert intake.full and taken < 8
        assert intake.drops == {(SENDER, FULL): (8 - taken) * len(batch)}
        held.let_go()
        assert intake.flush() and not intake.full and intake.offer(call("b")) and intake.flush()
        assert one(path, "SELECT count FROM drops") == ((8 - taken) * len(batch),)
        assert one(path, "SELECT count(*) FROM calls") == (2,)


def test_bytes_are_bounded_too(tmp_path: Path) -> None:
    path, batch = tmp_path / "traces.sqlite", call()
    with Intake(path, limits=Limits(bytes=sum(span.size for span in batch) + 1)) as intake:
        intake.flush()
        held = Held(path)
        assert sum(intake.offer(batch) for _ in range(8)) < 8
        held.let_go()


def test_a_file_that_stays_locked_costs_the_batch_not_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chains.records.store.BUSY_MS", 20)
    path, batch = tmp_path / "traces.sqlite", call()
    with Intake(path) as intake:
        held = Held(path)
        intake.offer(batch)
        assert intake.flush()
        assert intake.drops == {(SENDER, LOCKED): len(batch)}
        assert intake.untold == {(SENDER, LOCKED): len(batch)}  # the file could not be told
        held.let_go()
        assert intake.offer(call("b")) and intake.flush()
        assert one(path, "SELECT call FROM calls") == ("b",)
        assert one(path, "SELECT reason, count FROM drops") == (LOCKED, len(batch)) and intake.untold == {}


def test_a_file_that_is_taken_away_is_begun_anew(tmp_path: Path) -> None:
    path, wall = tmp_path / "traces.sqlite", Wall()
    looked = threading.Event()
    with Intake(path, wall=wall, changed=lambda calls: looked.set()) as intake:
        intake.offer(call("a"))
        assert looked.wait(10)
        for file in tmp_path.iterdir():
            file.unlink()
        for number in range(100):
            intake.offer(call(f"call-{number}"))
            assert intake.flush()
            if path.exists():
                break
        intake.offer(call("last"))
        assert intake.flush()
        assert one(path, "SELECT count(*) FROM calls WHERE call = 'last'") == (1,)


def test_a_file_that_is_damaged_while_it_is_open_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "traces.sqlite"
    with caplog.at_level(logging.WARNING), Intake(path) as intake:
        intake.offer(call("a", 40))
        assert intake.flush()
        with Store.open(path) as store:
            store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with path.open("r+b") as file:  # everything but the first page
            file.seek(4_096)
            file.write(b"\xa5" * (path.stat().st_size - 4_096))
        for number in range(3):
            intake.offer(call(f"b-{number}", 40))
            assert intake.flush()
    assert "damaged" in caplog.text
    assert [file for file in tmp_path.iterdir() if "damaged" in file.name]
    assert one(path, "SELECT count(*) > 0 FROM calls WHERE call LIKE 'b-%'") == (1,)


def test_what_cannot_be_written_is_counted_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, batch = tmp_path / "traces.sqlite", call()
    with caplog.at_level(logging.WARNING), Intake(path) as intake:
        intake.flush()
        with Store.open(path) as store:
            store.connection.execute("ALTER TABLE turns RENAME TO gone")
        for _ in range(3):
            intake.offer(batch)
            assert intake.flush()
        assert intake.drops == {(SENDER, UNWRITABLE): 3 * len(batch)}
        with Store.open(path) as store:
            store.connection.execute("ALTER TABLE gone RENAME TO turns")
        intake.offer(batch)
        assert intake.flush()
    assert caplog.text.count("spans are dropped") == 1
    assert one(path, "SELECT spans FROM calls") == (len(batch),)


def test_retention_works_beside_the_writing(tmp_path: Path) -> None:
    path, wall, told = tmp_path / "traces.sqlite", Wall(), threading.Event()
    with Intake(path, retention=Retention(max_age_days=0.01), wall=wall) as intake:
        intake.offer(call("old", 40))
        assert intake.flush()
        wall.now += 1_000 * SECOND
        for _ in range(1_000):
            intake.offer(call("new"))
            assert intake.flush()
            if one(path, "SELECT count(*) FROM calls WHERE call = 'old'") == (0,):
                break
            told.wait(0.01)
    assert one(path, "SELECT call FROM calls") == ("new",)


def test_a_file_that_cannot_be_opened_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingError):
        Intake(tmp_path / "file" / "traces.sqlite")


def test_no_connection_is_left_open(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    Intake(path).close()
    assert [file.name for file in tmp_path.iterdir()] == ["traces.sqlite"]  # the last to close removes the log
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
