"""What outlives a call: appointments and summaries, in SQLite. Each function opens, does one thing, and closes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
create table if not exists bookings (
  id integer primary key, call text not null, service text not null, doctor text not null,
  day text not null, time text not null, name text not null,
  made text not null default current_timestamp, unique (doctor, day, time));
create table if not exists calls (
  call text primary key, lines integer not null, summary text not null, ended text not null default current_timestamp);
"""


@dataclass(frozen=True)
class Booking:
    """An appointment: `time` as "10:00", `day` as "Tuesday"."""

    service: str
    doctor: str
    day: str
    time: str
    name: str


class Taken(Exception):
    """The doctor has another appointment then."""


def database() -> Path:
    """Where the clinic's records are: CLINIC_DB, or clinic.sqlite in the working directory."""
    return Path(os.environ.get("CLINIC_DB", "clinic.sqlite"))


def _connect() -> sqlite3.Connection:
    connection = sqlite3.connect(database(), timeout=5.0)
    connection.executescript(_SCHEMA)
    return connection


def _book(call: str, booking: Booking) -> int:
    with closing(_connect()) as connection, connection:
        same = connection.execute(
            "select id from bookings where doctor = ? and day = ? and time = ? and name = ?",
            (booking.doctor, booking.day, booking.time, booking.name),
        ).fetchone()
        if same is not None:
            return int(same[0])
        try:
            cursor = connection.execute(
                "insert into bookings (call, service, doctor, day, time, name) values (?, ?, ?, ?, ?, ?)",
                (call, booking.service, booking.doctor, booking.day, booking.time, booking.name),
            )
        except sqlite3.IntegrityError:
            raise Taken(f"{booking.doctor} is taken on {booking.day} at {booking.time}") from None
        return int(cursor.lastrowid or 0)


def _file(call: str, lines: int, summary: str) -> None:
    with closing(_connect()) as connection, connection:
        connection.execute(
            "insert or replace into calls (call, lines, summary) values (?, ?, ?)", (call, lines, summary)
        )


def _summary(call: str) -> str:
    with closing(_connect()) as connection:
        row = connection.execute("select summary from calls where call = ?", (call,)).fetchone()
    return str(row[0]) if row else ""


def _bookings(call: str) -> list[Booking]:
    with closing(_connect()) as connection:
        rows = connection.execute("select service, doctor, day, time, name from bookings where call = ?", (call,))
        return [Booking(*row) for row in rows]


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
