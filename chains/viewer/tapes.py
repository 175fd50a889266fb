"""Takes in recordings: checks what a gateway posts, and keeps it in the store, in a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import queue
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from chains.errors import ChainsError, LimitExceeded, Overloaded, ProtocolError
from chains.messages import RATES
from chains.records.recorded import CALLER, KINDS, PATH, Row
from chains.records.recordings import Keeper
from chains.records.store import Store

log = logging.getLogger("chains.viewer")
MOST_BYTES = 32 << 20
MOST_ROWS = 200_000
_MOST_WAITING = 64
_WAITING_BYTES = 128 << 20
_MOST_MS = 31 * 86_400_000.0
_SETTLE_S = 0.5
_Name = Annotated[str, Meta(max_length=200)]


class _Text(msgspec.Struct):
    """What is read of a text, and how it has to be; so the others for events."""

    text: str
    role: _Name = ""
    final: bool = True
    spoken: bool = False
    start_ms: float = 0.0
    end_ms: float = 0.0


class _Event(msgspec.Struct):
    event: _Name


class _Open(msgspec.Struct):
    method: _Name = ""
    tenant: _Name = ""
    trace: Annotated[str, Meta(pattern="^([0-9a-f]{32})?$")] = ""
    started: Annotated[float, Meta(ge=0, lt=9.2e9)] = 0.0  # in nanoseconds it is 64 bits
    arguments: dict[str, Any] = {}
    streams: list[str] = []
    audio: dict[str, Any] | None = None
    replay_of: _Name = ""


class _Played(msgspec.Struct):
    ms: Annotated[float, Meta(ge=0, le=_MOST_MS)] = 0.0


class _Turn(msgspec.Struct):
    state: _Name = ""


class _Gap(msgspec.Struct):
    items: Annotated[int, Meta(ge=0, lt=2**53)] = 0


_EVENTS: dict[str, type[msgspec.Struct]] = {"open": _Open, "played": _Played, "turn": _Turn, "gap": _Gap}


class _Most(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A Batch of no more rows than are taken at once, which each are read by themselves."""

    version: int
    rows: Annotated[list[msgspec.Raw], Meta(max_length=MOST_ROWS)]


_DECODER = msgspec.msgpack.Decoder(_Most)
_ROW = msgspec.msgpack.Decoder(Row)


class Tapes:
    """`with Tapes(connect) as tapes: tapes.take(body)`: `connect()` opens the store for writing, in the thread."""

    def __init__(self, connect: Callable[[], Store]) -> None:
        self._connect = connect
        self._queue: queue.Queue[tuple[list[Row], int]] = queue.Queue(_MOST_WAITING)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chains-recordings", daemon=True)
        self._lost: Counter[str] = Counter()  # of each call, since the last that could be written
        self._counts = threading.Lock()
        self._waiting = 0  # bytes
        self._untold: Counter[str] = Counter()  # of `dropped`, by why: the store does not know of them yet
        self.dropped = 0
        """Rows that were refused, or that could not be written."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Write what waits. Blocks until that is done."""
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(([], 0))  # wakes it
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> Tapes:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, body: bytes) -> None:
        """One POST to /v1/recordings. Raises LimitExceeded, ProtocolError, or Overloaded: the sender tries again.

        A row that makes no sense costs itself alone: its recording has a gap there.
        """
        rows, wrong = decoded(body)
        with self._counts:
            room = self._waiting + len(body) <= _WAITING_BYTES
            self._waiting += len(body) if room else 0
        try:
            if not room:
                raise queue.Full
            self._queue.put_nowait((rows, len(body)))
        except queue.Full:
            with self._counts:
                self._waiting -= len(body) if room else 0
            raise Overloaded("recordings come faster than they can be written", mend="send them again") from None
        self._drop("made no sense", wrong)

    def _drop(self, why: str, count: int) -> None:
        if count:
            with self._counts:
                self.dropped += count
                self._untold[why] += count

    def _run(self) -> None:
        rows: list[Row] | None = []
        while rows is not None and (store := self._connected()) is not None:
            try:
                rows = self._written(store, rows)
            finally:
                store.close()

    def _written(self, store: Store, rows: list[Row]) -> list[Row] | None:
        """Write these and what comes; None when all is written, else the rows that came when another file lay at the
        path."""
        keeper = Keeper(store.connection)
        while rows or not (self._closing.is_set() and self._queue.empty()):
            self._keep(keeper, rows)
            rows = self._next()
            if store.replaced():
                self._lost.update(keeper.abandon())
                return rows
        self._guarded(keeper, [], keeper.close)
        return None

    def _next(self) -> list[Row]:
        try:
            rows, size = self._queue.get(timeout=0.05 if self._closing.is_set() else _SETTLE_S)
        except queue.Empty:
            return []
        with self._counts:
            self._waiting -= size
        return rows

    def _connected(self) -> Store | None:
        """The store, as soon as it can be opened; None when that was not until the end."""
        said = False
        while True:
            try:
                return self._connect()
            except (ChainsError, sqlite3.Error) as error:
                if not said:
                    log.error("recordings wait: %s", error)
                said = True
            if self._closing.wait(_SETTLE_S):
                self.dropped += sum(len(self._queue.get()[0]) for _ in range(self._queue.qsize()))
                return None

    def _keep(self, keeper: Keeper, rows: list[Row]) -> None:
        gaps = [_gap(call, count) for call, count in self._lost.items()]
        with self._counts:
            untold, self._untold = self._untold, Counter()

        def write() -> None:
            if rows or gaps or untold:
                keeper.keep([*rows, *gaps], dropped=untold)
            untold.clear()
            self._lost.clear()

        self._guarded(keeper, rows, write)
        self._guarded(keeper, [], keeper.settle)
        with self._counts:
            self._untold.update(untold)

    def _guarded(self, keeper: Keeper, rows: list[Row], write: Callable[[], None]) -> None:
        """Whatever goes wrong costs what came then, and is told; the thread goes on."""
        try:
            write()
        except Exception as error:  # a full disk, a file that is gone, a value that no check knew of
            self._lost.update(keeper.abandon())
            self._lost.update(row.call for row in rows)
            self._drop("could not be written", len(rows))
            why = str(error) if isinstance(error, sqlite3.Error) else type(error).__name__
            log.error("%d items of recordings were not written: %s", len(rows), why)
            self._closing.wait(_SETTLE_S)


def _gap(call: str, items: int) -> Row:
    return Row(call, CALLER, 0, 0.0, "event", 0, 0, msgspec.json.encode({"event": "gap", "items": items}))


def decoded(body: bytes) -> tuple[list[Row], int]:
    """The rows of a batch, each checked, and how many of them make no sense: a gap of their call stands for them.
    Raises LimitExceeded or ProtocolError."""
    if len(body) > MOST_BYTES:
        raise LimitExceeded(f"{len(body)} bytes are over the limit of {MOST_BYTES}", mend="send smaller batches")
    try:
        batch = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        found = f"this is no batch of recordings: {str(error)[:160]}"
        raise ProtocolError(found, mend=f"POST {PATH} as gateways do") from None
    if batch.version != 1:
        raise ProtocolError(f"recordings of version {batch.version}", mend="run a viewer of the gateway's version")
    return _checked(batch.rows)


def _checked(raws: Iterable[msgspec.Raw]) -> tuple[list[Row], int]:
    rows: list[Row] = []
    gaps: Counter[str] = Counter()
    nameless = 0
    for raw in raws:
        try:
            row = _ROW.decode(raw)
        except (msgspec.DecodeError, UnicodeError):
            nameless += 1
            continue
        if not 0 < len(row.call) <= 128 or not row.call.isprintable() or "/" in row.call:
            nameless += 1
        elif wrong(row):
            gaps[row.call] += 1
        else:
            rows.append(row)
    return rows + [_gap(call, count) for call, count in gaps.items()], nameless + gaps.total()


def wrong(row: Row) -> str:
    """What is wrong with a row; "" when nothing is. What is read of it later never fails on what passed here."""
    return (
        f"side {row.side}" if row.side not in (0, 1)
        else f"stream {row.stream}" if not 0 <= row.stream < 256
        else f"at {row.at_ms} ms" if not 0 <= row.at_ms <= _MOST_MS
        else f"turn {row.turn}" if not 0 <= row.turn < 1 << 32
        else f"kind {row.kind[:40]!r}" if row.kind not in KINDS
        else _wrong_data(row)
    )  # fmt: skip


def _wrong_data(row: Row) -> str:
    if row.kind == "audio":
        if row.rate not in RATES:
            return f"{row.rate} samples a second"
        return "half a sample" if len(row.data) % 2 else ""
    if row.kind in ("tensor", "end"):
        return ""
    try:
        if row.kind == "text":
            msgspec.json.decode(row.data, type=_Text)
        elif row.kind == "event":
            what = msgspec.json.decode(row.data, type=_Event).event
            msgspec.json.decode(row.data, type=_EVENTS.get(what, _Event))
        else:
            msgspec.json.decode(row.data)
    except msgspec.ValidationError as error:
        return f"{row.kind}: {error}"
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return "data that is not JSON"
    return ""
