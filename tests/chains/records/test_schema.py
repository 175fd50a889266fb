"""Migrations: an older file is brought up to date, whole or not at all."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from chains.records.schema import MIGRATIONS, migrate, version_of

OLD = ("CREATE TABLE calls (id INTEGER PRIMARY KEY, call TEXT);\nINSERT INTO calls (call) VALUES ('a');",)
NEW = (*OLD, "ALTER TABLE calls ADD COLUMN tenant TEXT NOT NULL DEFAULT '';\nCREATE INDEX by_call ON calls (call);")


def opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def test_an_older_file_keeps_its_rows_and_gains_what_is_new(tmp_path: Path) -> None:
    connection = opened(tmp_path / "old.sqlite")
    migrate(connection, OLD)
    assert version_of(connection) == 1
    connection.execute("INSERT INTO calls (call) VALUES ('b')")
    migrate(connection, NEW)
    assert version_of(connection) == 2
    assert connection.execute("SELECT call, tenant FROM calls").fetchall() == [("a", ""), ("b", "")]
    connection.close()


def test_running_again_changes_nothing(tmp_path: Path) -> None:
    connection = opened(tmp_path / "file.sqlite")
    migrate(connection)
    migrate(connection)
    assert version_of(connection) == len(MIGRATIONS)
    assert connection.execute("SELECT * FROM names").fetchall() == [(0, "")]
    connection.close()


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    connection = opened(tmp_path / "file.sqlite")
    migrate(connection, OLD)
    with pytest.raises(sqlite3.Error):
        migrate(connection, (*OLD, "ALTER TABLE calls ADD COLUMN x;\nALTER TABLE nothing ADD COLUMN x;"))
    assert version_of(connection) == 1
    assert [row[1] for row in connection.execute("PRAGMA table_info(calls)")] == ["id", "call"]
    migrate(connection, NEW)
    assert version_of(connection) == 2
    connection.close()


def test_two_that_open_an_old_file_migrate_it_once(tmp_path: Path) -> None:
    first, second = opened(tmp_path / "file.sqlite"), opened(tmp_path / "file.sqlite")
    migrate(first, OLD)
    migrate(second, OLD)
    assert first.execute("SELECT call FROM calls").fetchall() == [("a",)]
    first.close()
    second.close()
