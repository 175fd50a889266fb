"""How the file is opened: rights, newer versions, damage, readers beside a writer."""

from __future__ import annotations

import logging
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from chains.errors import SettingError
from chains.records.schema import MIGRATIONS, version_of
from chains.records.store import Store


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_and_its_folder_are_its_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "chains" / "traces.sqlite"
    with Store.open(path) as store:
        store.connection.execute("INSERT INTO names (text) VALUES ('a')")
        assert rights(path.parent) == 0o700
        assert {rights(file) for file in path.parent.iterdir()} == {0o600}
        assert len(list(path.parent.iterdir())) == 3  # -wal and -shm too


def test_rights_that_are_too_wide_are_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    path.touch(0o644)
    with Store.open(path):
        assert rights(path) == 0o600


def test_how_it_is_kept(tmp_path: Path) -> None:
    with Store.open(tmp_path / "traces.sqlite") as store:
        pragma = {
            name: store.connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "busy_timeout", "auto_vacuum", "synchronous")
        }
    assert pragma == {"journal_mode": "wal", "busy_timeout": 5_000, "auto_vacuum": 2, "synchronous": 1}


def test_a_reader_sees_what_is_written_and_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    with Store.open(path) as store, Store.open(path, readonly=True) as reader:
        store.connection.execute("INSERT INTO names (text) VALUES ('a')")
        assert reader.connection.execute("SELECT text FROM names WHERE id > 0").fetchall() == [("a",)]
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.connection.execute("INSERT INTO names (text) VALUES ('b')")


def test_a_reader_of_an_empty_file_has_the_tables(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    path.touch()
    with Store.open(path, readonly=True) as reader:
        assert version_of(reader.connection) == len(MIGRATIONS)


@pytest.mark.parametrize("readonly", [False, True])
def test_a_newer_file_is_refused_and_left_alone(tmp_path: Path, readonly: bool) -> None:
    path = tmp_path / "traces.sqlite"
    with Store.open(path) as store:
        store.connection.execute("PRAGMA user_version = 99")
    with pytest.raises(SettingError, match=r"newer version .*99.*upgrade chains, or name another file"):
        Store.open(path, readonly=readonly)
    assert not [file.name for file in tmp_path.iterdir() if "damaged" in file.name]


@pytest.mark.parametrize("damage", [b"this was never a database" * 100, b"SQLite format 3\0" + b"\xff" * 5_000])
def test_a_damaged_file_is_set_aside(tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "traces.sqlite"
    path.write_bytes(damage)
    with caplog.at_level(logging.WARNING), Store.open(path) as store:
        assert store.connection.execute("SELECT count(*) FROM calls").fetchone() == (0,)
    aside = [file for file in tmp_path.iterdir() if "damaged" in file.name]
    assert len(aside) == 1 and aside[0].read_bytes() == damage
    assert aside[0].name in caplog.text and "a new file is begun" in caplog.text


def test_a_reader_leaves_a_damaged_file_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    path.write_bytes(b"this was never a database" * 100)
    with pytest.raises(SettingError, match="no file of calls, or damaged"):
        Store.open(path, readonly=True)
    assert [file.name for file in tmp_path.iterdir()] == ["traces.sqlite"]


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"is not there; name the file with --traces"):
        Store.open(tmp_path / "none.sqlite", readonly=True)
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match=r"cannot be opened: .*check its folder and rights"):
        Store.open(tmp_path / "file" / "traces.sqlite")
    with pytest.raises(SettingError, match="cannot be opened: Is a directory"):
        Store.open(tmp_path)


def test_it_knows_when_another_file_lies_at_its_path(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    with Store.open(path) as store:
        assert not store.replaced()
        path.unlink()
        assert store.replaced()
        with Store.open(path) as second:
            assert store.replaced() and not second.replaced()


def test_bytes_are_those_in_use(tmp_path: Path) -> None:
    with Store.open(tmp_path / "traces.sqlite") as store:
        empty = store.bytes()
        with_blob = "INSERT INTO recordings VALUES (1, 1, 0, 0, 0, 'audio', 1, 20, 8000, NULL, zeroblob(1000000))"
        store.connection.execute(with_blob)
        assert store.bytes() - empty > 900_000
        store.connection.execute("DELETE FROM recordings")
        assert store.bytes() - empty < 20_000


def test_opened_twice_here_and_closed_elsewhere_the_log_stays(tmp_path: Path) -> None:
    """Whoever closes last takes the log away: the locks of a process that is not done must hold."""
    path = tmp_path / "traces.sqlite"
    elsewhere = f"from chains.records.store import Store; Store.open({str(path)!r}).close()"
    with Store.open(path) as store:
        Store.open(path).close()
        store.connection.execute("INSERT INTO names (text) VALUES ('a')")
        subprocess.run([sys.executable, "-c", elsewhere], check=True)
        assert path.with_name("traces.sqlite-wal").exists()
