"""Recordings for tests: rows as a gateway sends them, kept in a real store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from chains.records.recorded import CALLER, REPLY, Row
from chains.records.recordings import Keeper
from chains.records.store import Store

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def tone(ms: float, rate: int = 16000, hertz: float = 220.0, loud: int = 9000) -> NDArray[np.int16]:
    samples = round(rate * ms / 1000)
    return (np.sin(np.arange(samples) * 2 * np.pi * hertz / rate) * loud).astype(np.int16)


def sound(
    at: float, pcm: NDArray[np.int16], rate: int = 16000, side: int = CALLER, turn: int = 0, call: str = "c1"
) -> Row:
    return Row(call, side, 0, at, "audio", turn, rate, pcm.tobytes())


def spoken(at: float, pcm: NDArray[np.int16], rate: int = 16000, side: int = CALLER, turn: int = 0) -> Iterator[Row]:
    """The sound in frames of 20 ms, each at its time."""
    step = rate // 50
    for start in range(0, len(pcm), step):
        yield sound(at + start * 1e3 / rate, pcm[start : start + step], rate, side, turn)


def event(at: float, what: str, side: int = REPLY, turn: int = 0, call: str = "c1", **fields: Any) -> Row:
    return Row(call, side, 0, at, "event", turn, 0, msgspec.json.encode({"event": what, "turn": turn, **fields}))


def opened(call: str = "c1", **fields: Any) -> Row:
    about = {"method": "run", "arguments": {}, "streams": ["audio"], "started": 1.8e9, "trace": TRACE, **fields}
    return event(0.0, "open", CALLER, call=call, **about)


def closed(at: float, call: str = "c1") -> Row:
    return event(at, "closed", call=call)


def text(at: float, words: str, side: int = REPLY, turn: int = 1, **fields: Any) -> Row:
    return Row("c1", side, 0, at, "text", turn, 0, msgspec.json.encode({"text": words, **fields}))


def kept(path: Path, rows: Iterable[Row]) -> tuple[sqlite3.Connection, int]:
    """A store at `path` with these rows, and the rowid of the call c1."""
    store = Store.open(path)
    keeper = Keeper(store.connection)
    keeper.keep(list(rows), now=0.0)
    keeper.close()
    return store.connection, store.connection.execute("SELECT id FROM calls WHERE call = 'c1'").fetchone()[0]
