"""Questions to the store in threads: bounded in number and time."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from chains.errors import DeadlineExceeded, Overloaded, SettingError, Unavailable
from chains.viewer import reading
from chains.viewer.reading import Reader
from tests.chains.records import made

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made.stored(tmp_path / "t.sqlite", made.phone_call("call-0", 1))
    return tmp_path / "t.sqlite"


async def test_a_store_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="is not there"):
        Reader(tmp_path / "nothing.sqlite")


async def test_all_statements_of_a_question_see_one_state(path: Path) -> None:
    reader = Reader(path)
    began, go_on = threading.Event(), threading.Event()

    def twice(connection: sqlite3.Connection) -> tuple[int, int]:
        first = connection.execute("SELECT count(*) FROM calls").fetchone()[0]
        began.set()
        go_on.wait(10)
        return first, connection.execute("SELECT count(*) FROM calls").fetchone()[0]

    asked = asyncio.ensure_future(reader.ask(twice))
    await asyncio.to_thread(began.wait, 10)
    await asyncio.to_thread(made.stored, path, made.phone_call("call-1", 1))
    go_on.set()
    assert await asked == (1, 1)
    assert await reader.ask(twice) == (2, 2)
    reader.close()


async def test_a_file_that_is_replaced_is_followed(path: Path) -> None:
    def ids(connection: sqlite3.Connection) -> list[str]:
        return [call for (call,) in connection.execute("SELECT call FROM calls")]

    reader = Reader(path)
    assert await reader.ask(ids) == ["call-0"]
    for file in list(path.parent.iterdir()):
        file.unlink()
    with pytest.raises(Unavailable):
        await reader.ask(ids)
    made.stored(path, made.phone_call("call-1", 1))
    assert await asyncio.gather(*(reader.ask(ids) for _ in range(5))) == [["call-1"]] * 5
    reader.close()


async def test_nothing_can_be_written(path: Path) -> None:
    reader = Reader(path)
    with pytest.raises(Unavailable, match="the store could not be read"):
        await reader.ask(lambda connection: connection.execute("DELETE FROM calls"))
    assert await reader.ask(lambda connection: connection.execute("SELECT count(*) FROM calls").fetchone()[0]) == 1
    reader.close()


async def test_a_question_that_takes_too_long_is_ended(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SECONDS", 0.05)
    reader = Reader(path)
    with pytest.raises(DeadlineExceeded, match="ask for a shorter range of time"):
        await reader.ask(lambda connection: connection.execute(ENDLESS).fetchone())
    assert await reader.ask(lambda connection: connection.execute("SELECT 1").fetchone()[0]) == 1
    reader.close()


async def test_more_questions_than_can_wait_are_refused(path: Path) -> None:
    reader = Reader(path)
    go_on = threading.Event()
    asked = [asyncio.ensure_future(reader.ask(lambda connection: go_on.wait(10))) for _ in range(reading.WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="64 questions are waiting already"):
        await reader.ask(lambda connection: 1)
    go_on.set()
    assert all(await asyncio.gather(*asked))
    reader.close()
