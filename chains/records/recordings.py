"""Recordings in the store: how rows are kept, and what is read of them beside the sound.

`call` is the rowid of the call in `calls`; `conn` is any connection to the store.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from chains.records.heard import lane
from chains.records.recorded import CALLER, REPLY, Row
from chains.records.render import Wav, peaks, wav, wav_size
from chains.records.sound import Chunk

__all__ = ["Keeper", "Wav", "forget", "peaks", "summary", "transcript", "wav", "wav_size"]

RECORDED, INCOMPLETE = 1, 2
_IDLE_S = 1.5
_MOST_CALLS = 1_000
_MOST_FORGOTTEN = 10_000
_DROP = "INSERT INTO drops VALUES ('recordings', ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count"
_INSERT = (
    "INSERT INTO recordings (call, seq, side, stream, at_ms, kind, turn, ms, rate, pieces, data)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass
class _Open:
    """A call whose recording still comes in."""

    row: int
    seq: int
    chunks: dict[tuple[int, int], Chunk] = field(default_factory=dict)
    last: float = 0.0

    def late(self, now: float) -> bool:
        return bool(self.chunks) and now - self.last > _IDLE_S


class Keeper:
    """Writes what gateways send: sound gathered to chunks of a second, everything else as it comes.

    One thread uses it, in transactions of its own on `conn`. `now` is monotonic seconds. A call whose recording is
    forgotten while it goes on is not recorded any further.
    """

    def __init__(self, conn: sqlite3.Connection) -> None:
        self._conn = conn
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._forgotten: OrderedDict[str, None] = OrderedDict()

    def keep(self, rows: Iterable[Row], now: float | None = None, dropped: Mapping[str, int] | None = None) -> None:
        """All of these, or none; `dropped` counts rows that were not kept, by why. After an error, `abandon`."""
        now = time.monotonic() if now is None else now
        with transaction(self._conn):
            self._forget_deleted()
            for row in rows:
                if row.call in self._forgotten:
                    continue
                opened = self._opened(row)
                opened.last = now
                self._keep(opened, row)
            for number in {opened.row for opened in self._open.values() if opened.last == now}:
                self._conn.execute("UPDATE calls SET seen = ? WHERE id = ?", (time.time_ns(), number))
            while len(self._open) > _MOST_CALLS:
                self._flush(next(iter(self._open.values())))
                self._open.popitem(last=False)
            self._conn.executemany(_DROP, (dropped or {}).items())

    def settle(self, now: float | None = None) -> None:
        """Write the chunks that nothing was added to for a while, so that a call can be heard while it goes on."""
        now = time.monotonic() if now is None else now
        if any(opened.late(now) for opened in self._open.values()):
            with transaction(self._conn):
                self._forget_deleted()
                for opened in self._open.values():
                    if opened.late(now):
                        self._flush(opened)

    def close(self) -> None:
        with transaction(self._conn):
            self._forget_deleted()
            for opened in self._open.values():
                self._flush(opened)
        self._open.clear()

    def abandon(self) -> Counter[str]:
        """Know nothing of the calls any more: what stands in the store is not what was thought. Gives how many pieces
        of sound that were gathered are lost, by call."""
        lost = Counter[str]()
        for call, opened in self._open.items():
            lost[call] += sum(len(chunk.pieces) for chunk in opened.chunks.values())
        self._open.clear()
        return +lost

    def _forget_deleted(self) -> None:
        """Of calls that are gone from the store, or whose recording is, nothing more is kept."""
        for call, opened in list(self._open.items()):
            found = self._conn.execute("SELECT recorded FROM calls WHERE id = ?", (opened.row,)).fetchone()
            if found is None or not found[0]:
                del self._open[call]
                self._forgotten[call] = None
        while len(self._forgotten) > _MOST_FORGOTTEN:
            self._forgotten.popitem(last=False)

    def _keep(self, opened: _Open, row: Row) -> None:
        if row.kind == "audio":
            self._sound(opened, row)
            return
        what = msgspec.json.decode(row.data)["event"] if row.kind == "event" else ""
        if what in ("closed", "clear"):
            self._flush(opened)
        self._insert(opened, row.side, row.stream, row.at_ms, row.kind, row.turn, data=row.data)
        if what == "gap":
            self._conn.execute("UPDATE calls SET recorded = ? WHERE id = ?", (INCOMPLETE, opened.row))
        elif what == "closed":
            self._open.pop(row.call, None)

    def _sound(self, opened: _Open, row: Row) -> None:
        pcm = np.frombuffer(row.data, "<i2")
        key = (row.side, row.stream)
        while len(pcm):
            chunk = opened.chunks.get(key)
            if chunk is not None and not chunk.fits(row.at_ms, row.rate, row.turn):
                self._write(opened, key)
                chunk = None
            if chunk is None:
                chunk = opened.chunks[key] = Chunk(row.at_ms, row.rate, row.turn)
            part, pcm = pcm[: chunk.room()], pcm[chunk.room() :]
            chunk.add(row.at_ms, part)
            if chunk.full:
                self._write(opened, key)

    def _flush(self, opened: _Open) -> None:
        for key in list(opened.chunks):
            self._write(opened, key)

    def _write(self, opened: _Open, key: tuple[int, int]) -> None:
        chunk = opened.chunks.pop(key)
        side, stream = key
        self._insert(
            opened, side, stream, chunk.at_ms, "audio", chunk.turn, chunk.ms, chunk.rate, chunk.index(), chunk.flac()
        )

    def _insert(
        self,
        opened: _Open,
        side: int,
        stream: int,
        at_ms: float,
        kind: str,
        turn: int,
        ms: float = 0.0,
        rate: int = 0,
        pieces: bytes | None = None,
        data: bytes = b"",
    ) -> None:
        values = (opened.row, opened.seq, side, stream, at_ms, kind, turn, ms, rate, pieces, data)
        self._conn.execute(_INSERT, values)
        opened.seq += 1

    def _opened(self, row: Row) -> _Open:
        opened = self._open.get(row.call)
        if opened is None:
            number = self._call(row)
            query = "SELECT coalesce(max(seq), -1) + 1 FROM recordings WHERE call = ?"
            opened = self._open[row.call] = _Open(number, self._conn.execute(query, (number,)).fetchone()[0])
        self._open.move_to_end(row.call)
        return opened

    def _call(self, row: Row) -> int:
        """The call's row: it may stand already, if spans came first."""
        about = msgspec.json.decode(row.data) if row.kind == "event" else {}
        about = about if about.get("event") == "open" else {}
        started = round(float(about.get("started") or time.time()) * 1e9)
        trace = bytes.fromhex(str(about.get("trace", "")))
        self._conn.execute(
            "INSERT INTO calls (call, trace, source, started, latest, seen, method, tenant, outcome, recorded)"
            " VALUES (?, ?, 0, ?, ?, ?, ?, ?, 'live', ?) ON CONFLICT (call) DO NOTHING",
            (
                row.call,
                trace,
                started,
                started,
                time.time_ns(),
                about.get("method", ""),
                about.get("tenant", ""),
                RECORDED,
            ),
        )
        self._conn.execute("UPDATE calls SET recorded = ? WHERE call = ? AND recorded = 0", (RECORDED, row.call))
        return int(self._conn.execute("SELECT id FROM calls WHERE call = ?", (row.call,)).fetchone()[0])


@contextmanager
def transaction(conn: sqlite3.Connection) -> Iterator[None]:
    """All of the block, or nothing of it."""
    conn.execute("BEGIN IMMEDIATE")
    try:
        yield
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise


def summary(conn: sqlite3.Connection, call: int) -> dict[str, Any]:
    """What is kept of a call: {"caller", "reply" (whether there is sound), "ms", "incomplete" (why, or ""),
    "replay_of", "unheard": [[turn, start, ms]]}."""
    query = "SELECT DISTINCT side FROM recordings WHERE call = ? AND kind = 'audio'"
    sides = {side for (side,) in conn.execute(query, (call,))}
    lanes = {side: lane(conn, call, side) for side in sides}
    reply = lanes.get(REPLY)
    return {
        "caller": CALLER in sides,
        "reply": REPLY in sides,
        "ms": round(max((run.end for one in lanes.values() for run in one.runs), default=0.0), 1),
        "incomplete": incomplete(conn, call),
        "replay_of": opening(conn, call).get("replay_of", ""),
        "unheard": [[turn, round(start, 1), round(ms, 1)] for turn, start, ms in (reply.unheard if reply else ())],
    }


def opening(conn: sqlite3.Connection, call: int) -> dict[str, Any]:
    """How the recorded call was opened: method, arguments, streams, audio, ...; {} if that is not known."""
    return next((event for event in _events(conn, call) if event.get("event") == "open"), {})


def incomplete(conn: sqlite3.Connection, call: int) -> str:
    """Why the recording is not whole; "" if it is, or if there is none."""
    row = conn.execute("SELECT recorded, outcome FROM calls WHERE id = ?", (call,)).fetchone()
    if row is None or not row[0]:
        return ""
    events = _events(conn, call)
    lost = sum(int(event.get("items", 0)) for event in events if event.get("event") == "gap")
    if lost:
        return f"{lost} item{'s' * (lost != 1)} could not be kept: the viewer was too slow, away, or redaction failed"
    names = {event.get("event") for event in events}
    if "open" not in names:
        return "its beginning is missing"
    if "closed" not in names:
        return "the call goes on" if row[1] == "live" else "its end is missing"
    return ""


def _events(conn: sqlite3.Connection, call: int) -> list[dict[str, Any]]:
    query = "SELECT data FROM recordings WHERE call = ? AND kind = 'event' ORDER BY seq"
    return [msgspec.json.decode(data) for (data,) in conn.execute(query, (call,))]


def transcript(conn: sqlite3.Connection, call: int) -> list[dict[str, Any]]:
    """What was said, in order: {"at" (ms), "role", "text", "turn", "final"}.

    Of text that a recogniser changed, the last stands. A caller's words stand where they were heard, if their text says
    where in the caller's sound that was. What a synthesiser says that it spoke counts where the chain sent no text of
    that turn.
    """
    query = "SELECT min(at_ms) FROM recordings WHERE call = ? AND kind = 'audio' AND side = 0"
    (began,) = conn.execute(query, (call,)).fetchone()
    query = "SELECT at_ms, side, turn, data FROM recordings WHERE call = ? AND kind = 'text' ORDER BY at_ms, seq"
    lines: list[dict[str, Any]] = []
    spoken: list[dict[str, Any]] = []
    for at, side, turn, data in conn.execute(query, (call,)):
        item = msgspec.json.decode(data)
        role = item.get("role") or ("user", "assistant")[side]
        if role == "user" and began is not None and item.get("end_ms", 0.0) > 0.0:
            at = min(at, began + max(0.0, item.get("start_ms", 0.0)))
        line = {"at": at, "role": role, "text": item["text"], "turn": turn, "final": item.get("final", True)}
        if item.get("spoken"):
            if not spoken or (spoken[-1]["turn"], spoken[-1]["text"]) != (turn, item["text"]):
                spoken.append(line)
        elif lines and not lines[-1]["final"] and (lines[-1]["role"], lines[-1]["turn"]) == (role, turn):
            words = _continued(lines[-1]["text"], item["text"], role)
            lines[-1] = {**line, "at": lines[-1]["at"], "text": words}
        else:
            lines.append(line)
    lines = [line for line in lines if line["text"]]
    told = {(line["role"], line["turn"]) for line in lines}
    lines += [line for line in spoken if (line["role"], line["turn"]) not in told]
    return sorted(lines, key=lambda line: float(line["at"]))


def _continued(before: str, text: str, role: str) -> str:
    """What stands after another text that is not final: a recogniser tells all anew, a model goes on writing."""
    if not text:
        return before
    return before + text if role == "assistant" and not text.startswith(before) else text


def forget(conn: sqlite3.Connection, call: int, all: bool = False) -> None:
    """Delete a call's recording; with `all` also its spans, turns and the call itself. Space on disk is overwritten
    before it is used again (secure_delete).
    """
    conn.execute("PRAGMA secure_delete = ON")
    with transaction(conn):
        conn.execute("DELETE FROM recordings WHERE call = ?", (call,))
        conn.execute("UPDATE calls SET recorded = 0 WHERE id = ?", (call,))
        if all:
            for table in ("spans", "turns"):
                conn.execute(f"DELETE FROM {table} WHERE call = ?", (call,))  # noqa: S608 - two names of ours
            conn.execute("DELETE FROM calls WHERE id = ?", (call,))
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
