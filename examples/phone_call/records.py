"""What outlives a call: appointments and summaries, in SQLite. Each function opens, does one thing, and closes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from chains.errors import SettingError, Unavailable

_PATIENCE_S = 2.0  # for another caller's write; somebody is waiting on the telephone
_SCHEMA = """
create table if not exists bookings (
  id integer primary key, call text not null, service text not null, doctor text not null, day text not null,
  time text not null, minutes integer not null, name text not null, made text not null default current_timestamp);
create table if not exists calls (
  call text primary key, lines integer not null, summary text not null, ended text not null default current_timestamp);
"""
_SAME = "select id from bookings where doctor = ? and day = ? and time = ? and name = ?"
_OVERLAP = """
select id from bookings where doctor = :doctor and day = :day and :start < substr(time, 1, 2) * 60 + substr(time, 4)
  + minutes and substr(time, 1, 2) * 60 + substr(time, 4) < :start + :minutes
"""


@dataclass(frozen=True)
class Booking:
    """An appointment: `time` as "10:00", `day` as "Tuesday"."""

    service: str
    doctor: str
    day: str
    time: str
    minutes: int
    name: str


class Taken(Exception):
    """The doctor has another appointment then."""


def database() -> Path:
    """Where the clinic's records are: CLINIC_DB, or clinic.sqlite in the working directory."""
    return Path(os.environ.get("CLINIC_DB") or "clinic.sqlite")


@contextmanager
def _opened(*, write: bool = False) -> Iterator[sqlite3.Connection]:
    """The records, in one transaction. Raises Unavailable when somebody else has them locked, or they are broken."""
    try:
        with closing(sqlite3.connect(database(), timeout=_PATIENCE_S, isolation_level=None)) as connection:
            connection.execute("begin immediate" if write else "begin")
            yield connection
            connection.execute("commit")
    except sqlite3.Error as error:
        raise Unavailable(
            f"the clinic's records in {database()} cannot be used: {error}",
            mend="end what keeps the file locked, or set CLINIC_DB to a file that can be written",
        ) from None


def _check() -> None:
    path = database()
    if not path.parent.is_dir():
        raise SettingError(
            f"the clinic's records cannot be kept in {path}: there is no folder {path.parent}",
            mend=f"mkdir -p {path.parent}, or set CLINIC_DB to another file",
        )
    try:
        with closing(sqlite3.connect(path, timeout=_PATIENCE_S)) as connection:
            connection.executescript(_SCHEMA)
            connection.execute("begin immediate")  # whether it can be written
            connection.execute("select minutes from bookings limit 1")
            connection.execute("select summary from calls limit 1")
    except (sqlite3.Error, OSError) as error:
        raise SettingError(
            f"the clinic's records cannot be kept in {path}: {error}",
            mend="set CLINIC_DB to a file that can be written, or move this one away",
        ) from None


def _free(booking: Booking) -> bool:
    with _opened() as connection:
        return _same(connection, booking) is not None or not _overlaps(connection, booking)


def _same(connection: sqlite3.Connection, booking: Booking) -> int | None:
    row = connection.execute(_SAME, (booking.doctor, booking.day, booking.time, booking.name)).fetchone()
    return None if row is None else int(row[0])


def _overlaps(connection: sqlite3.Connection, booking: Booking) -> bool:
    start = int(booking.time[:2]) * 60 + int(booking.time[3:])
    asked = {"doctor": booking.doctor, "day": booking.day, "start": start, "minutes": booking.minutes}
    return connection.execute(_OVERLAP, asked).fetchone() is not None


def _book(call: str, booking: Booking) -> int:
    with _opened(write=True) as connection:
        same = _same(connection, booking)
        if same is not None:
            return same
        if _overlaps(connection, booking):
            raise Taken(f"{booking.doctor} is taken on {booking.day} at {booking.time}")
        cursor = connection.execute(
            "insert into bookings (call, service, doctor, day, time, minutes, name) values (?, ?, ?, ?, ?, ?, ?)",
            (call, booking.service, booking.doctor, booking.day, booking.time, booking.minutes, booking.name),
        )
        return int(cursor.lastrowid or 0)


def _file(call: str, lines: int, summary: str) -> None:
    with _opened(write=True) as connection:
        connection.execute(
            "insert or replace into calls (call, lines, summary) values (?, ?, ?)", (call, lines, summary)
        )


def _summary(call: str) -> str:
    with _opened() as connection:
        row = connection.execute("select summary from calls where call = ?", (call,)).fetchone()
    return str(row[0]) if row else ""


def _bookings(call: str) -> list[Booking]:
    with _opened() as connection:
        rows = connection.execute(
            "select service, doctor, day, time, minutes, name from bookings where call = ? order by id", (call,)
        ).fetchall()
    return [Booking(*row) for row in rows]


async def check() -> None:
    """Make the file ready before the first call. Raises SettingError when it cannot be written, or is no such file."""
    await asyncio.to_thread(_check)


async def free(booking: Booking) -> bool:
    """Whether the doctor has time then; also if this very appointment is made already."""
    return await asyncio.to_thread(_free, booking)


async def book(call: str, booking: Booking) -> int:
    """Write the appointment down; its number. The same one twice is one. Raises Taken when the doctor is not free."""
    return await asyncio.to_thread(_book, call, booking)


async def file_call(call: str, lines: int, summary: str) -> None:
    """Keep the summary of a call that is over."""
    await asyncio.to_thread(_file, call, lines, summary)


async def summary_of(call: str) -> str:
    """The summary of a call, "" when there is none (yet)."""
    return await asyncio.to_thread(_summary, call)


async def bookings_of(call: str) -> list[Booking]:
    """The appointments that were made in a call."""
    return await asyncio.to_thread(_bookings, call)
