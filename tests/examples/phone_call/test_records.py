"""The clinic's records: a real SQLite file, several writers, and files that cannot be written."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from chains.errors import SettingError, Unavailable
from examples.phone_call import records
from examples.phone_call.records import Booking, Taken

FILLING = Booking("filling", "James Carter", "Tuesday", "10:00", 45, "Ada Lane")


@pytest.fixture
async def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "clinic.sqlite"
    monkeypatch.setenv("CLINIC_DB", str(path))
    await records.check()
    return path


async def test_an_appointment_is_kept(file: Path) -> None:
    number = await records.book("call", FILLING)
    assert await records.bookings_of("call") == [FILLING]
    assert await records.bookings_of("other") == []
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("select id, call, name from bookings").fetchall() == [(number, "call", "Ada Lane")]


async def test_the_same_appointment_twice_is_one(file: Path) -> None:
    first = await records.book("call", FILLING)
    assert await records.free(FILLING)
    assert await records.book("call", FILLING) == first
    assert await records.bookings_of("call") == [FILLING]


async def test_a_doctor_has_one_patient_at_a_time(file: Path) -> None:
    await records.book("call", FILLING)
    other = replace(FILLING, name="Bob Hill")
    assert not await records.free(other)
    with pytest.raises(Taken, match="James Carter is taken on Tuesday at 10:00"):
        await records.book("other", other)
    assert await records.free(replace(other, doctor="Emily Chen"))
    assert await records.free(replace(other, day="Monday"))
    assert await records.bookings_of("other") == []


@pytest.mark.parametrize(
    ("time", "minutes", "free"),
    [("09:30", 30, True), ("09:30", 31, False), ("09:00", 180, False), ("10:15", 10, False), ("10:44", 5, False),
     ("10:45", 30, True), ("08:00", 10, True)],
)  # fmt: skip
async def test_appointments_do_not_overlap(file: Path, time: str, minutes: int, free: bool) -> None:
    await records.book("call", FILLING)
    other = replace(FILLING, name="Bob Hill", time=time, minutes=minutes)
    assert await records.free(other) is free
    if free:
        await records.book("other", other)
    else:
        with pytest.raises(Taken):
            await records.book("other", other)


async def test_of_many_callers_at_once_one_gets_the_time(file: Path) -> None:
    wishes = [replace(FILLING, name=f"Caller {n}") for n in range(8)]
    ends = await asyncio.gather(
        *(records.book(f"call {n}", wish) for n, wish in enumerate(wishes)), return_exceptions=True
    )
    assert sum(isinstance(end, int) for end in ends) == 1
    assert sum(isinstance(end, Taken) for end in ends) == 7


async def test_summaries_are_kept_by_call(file: Path) -> None:
    assert await records.summary_of("call") == ""
    await asyncio.gather(records.file_call("call", 3, "Asked for a price."), records.file_call("other", 0, ""))
    await records.file_call("call", 4, "Asked for two prices.")
    assert await records.summary_of("call") == "Asked for two prices."
    assert await records.summary_of("other") == ""


async def test_names_with_quotes_are_only_names(file: Path) -> None:
    odd = replace(FILLING, name="O'Hara\"); drop table bookings; --")
    await records.book("call", odd)
    assert await records.bookings_of("call") == [odd]


async def test_a_locked_file_is_told_with_its_mend(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_PATIENCE_S", 0.05)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("begin exclusive")
        for attempt in (
            records.book("call", FILLING),
            records.free(FILLING),
            records.file_call("call", 1, "x"),
            records.summary_of("call"),
        ):
            with pytest.raises(Unavailable, match=r"locked.*CLINIC_DB"):
                await attempt
        with pytest.raises(SettingError, match="locked"):
            await records.check()
        other.execute("rollback")
    await records.book("call", FILLING)  # nothing is left of the failures


async def test_a_short_lock_is_waited_for(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("begin immediate")
        booking = asyncio.ensure_future(records.book("call", FILLING))
        await asyncio.to_thread(other.execute, "commit")
        await booking
    assert await records.bookings_of("call") == [FILLING]


async def test_the_check_makes_folder_and_file_and_changes_nothing_there(file: Path) -> None:
    await records.book("call", FILLING)
    await records.check()
    assert await records.bookings_of("call") == [FILLING]


async def test_a_file_that_cannot_be_kept_is_told_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"no database at all, and long enough to be looked at" * 40)
    old = tmp_path / "old.sqlite"
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("create table bookings (id integer primary key, call text)")
    (tmp_path / "plain").write_text("a file where a folder should be")
    for path in (broken, old, tmp_path, tmp_path / "plain" / "clinic.sqlite"):
        monkeypatch.setenv("CLINIC_DB", str(path))
        with pytest.raises(SettingError, match=r"cannot be kept in .*; .*set CLINIC_DB"):
            await records.check()


def test_an_empty_setting_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLINIC_DB", "")
    assert records.database() == Path("clinic.sqlite")


async def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLINIC_DB", str(tmp_path / "fodler" / "clinic.sqlite"))
    with pytest.raises(SettingError, match=r"there is no folder .*fodler; mkdir -p .*fodler, or set CLINIC_DB"):
        await records.check()
    assert not (tmp_path / "fodler").exists()
