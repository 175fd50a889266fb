"""Recording: what goes in and out of the calls of one gateway, on its way to the viewer.

A call pays for one append to a bounded queue; a thread decodes, redacts and ships. Nothing here runs when recording is
off, and keys and headers never come here.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import msgspec

from chains import protocol
from chains.call import Call
from chains.dsl.loading import module_of
from chains.dsl.signature import Method
from chains.errors import ChainsError, SettingError
from chains.gateway.shipping import Shipper
from chains.messages import Audio, Text
from chains.records.recorded import CALLER, REPLY, SIDES, Kind, Recorded, Row, rows

log = logging.getLogger("chains.gateway")
Redact = Callable[[Recorded], Recorded | None]
LIMIT = 32 << 20
EVERY_S = 1.0
_BATCH = 2 << 20
_NOT_KEPT = ('{"type":"credit"', '{"type":"opened"', '{"type":"pong"')  # told without reading them


class Loose(msgspec.Struct, frozen=True):
    """An item that did not come or go as a frame of the native websocket."""

    kind: Kind
    value: Any
    turn: int = 0

    def __len__(self) -> int:
        return self.value.pcm.nbytes if self.kind == "audio" else 256


_CLOSED: Final = Loose("event", {"event": "closed"})


class Tape:
    """The recording of one call. Its methods are called in the event loop and never wait."""

    __slots__ = ("_deck", "call", "lost", "opened", "told", "unsent")

    def __init__(self, deck: Deck, call: str, opened: float) -> None:
        self._deck, self.call, self.opened = deck, call, opened
        self.lost = self.unsent = self.told = 0

    def received(self, frame: bytes | str | Loose, stream: int = 0) -> None:
        """What the caller sent and the gateway took, for the stream of this index."""
        self._deck.put(self, CALLER, frame, stream)

    def sent(self, frame: bytes | str | Loose) -> None:
        """What has gone out to the caller."""
        self._deck.put(self, REPLY, frame)

    def hung_up(self) -> None:
        self._deck.put(self, CALLER, Loose("event", {"event": "hang-up"}))

    def close(self) -> None:
        """Nothing more will come or go."""
        self._deck.put(self, REPLY, _CLOSED, always=True)

    async def given(self, items: AsyncIterator[Any], method: Method) -> AsyncIterator[Any]:
        """The items of a reply that goes out over plain HTTP, each one kept."""
        async for value in items:
            self.sent(loose(value, method.result.dump))
            yield value


def loose(value: Any, dump: Callable[[Any], Any]) -> Loose:
    """A value of a chain as an item; what is no message is written down as `dump` gives it."""
    turn = getattr(value, "turn", 0)
    if isinstance(value, Audio):
        return Loose("audio", value, turn)
    if protocol.is_binary(value):
        return Loose("tensor", value, turn)
    kind = protocol.kind_of(value)
    if kind in ("text", "control"):
        return Loose("text" if kind == "text" else "control", value, turn)
    return Loose("value", dump(value), turn)


class Deck:
    """Takes the items of all tapes of a gateway, and hands them to the viewer at `viewer`, redacted, in the order in
    which they came. Past `limit` bytes that wait, items are dropped and counted, and their recordings have a gap.
    """

    def __init__(self, viewer: str, key: str = "", redact: str | Redact = "", *, limit: int = LIMIT) -> None:
        self._redact = hook(redact)
        self._shipper = Shipper(_given(viewer), key)
        self._limit = limit
        self._queue: deque[tuple[Tape, float, int, bytes | str | Loose, int]] = deque()
        self._put = self._taken = 0  # bytes; each is written by one thread alone
        self._tapes: dict[str, Tape] = {}
        self._wake = threading.Event()
        self._closing = False
        self._warned = False
        self._gone = 0  # items of calls that are over
        self._thread: threading.Thread | None = None

    @property
    def dropped(self) -> int:
        """Items that no viewer got."""
        return self._gone + sum(tape.lost + tape.unsent for tape in list(self._tapes.values()))

    # in the event loop

    def open(self, call: Call, method: Method, arguments: dict[str, Any], **about: Any) -> Tape:
        """The tape of a call that has been opened with these arguments (as plain JSON)."""
        streams = [param.name for param in method.params if param.stream]
        tape = Tape(self, call.id, call.opened)
        self._tapes[call.id] = tape
        event = {
            "event": "open",
            "method": method.name,
            "arguments": arguments,
            "streams": streams,
            "streams_out": method.streams_out,
            "started": call.opened_wall,
            "trace": call.trace_id,
            "tenant": call.tenant,
            **about,
        }
        self.put(tape, CALLER, Loose("event", event), always=True)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="chains-tape", daemon=True)
            self._thread.start()
        self._wake.set()
        return tape

    def put(self, tape: Tape, side: int, frame: bytes | str | Loose, stream: int = 0, *, always: bool = False) -> None:
        """Keep an item, if there is room."""
        size = len(frame)
        if self._put - self._taken + size > self._limit and not always:
            tape.lost += 1
            return
        self._put += size
        self._queue.append((tape, time.monotonic(), side, frame, stream))

    def close(self, seconds: float = 2.0) -> None:
        """Ship what is left, for at most so long; then the viewer is not waited for. Blocks."""
        self._closing = True
        self._shipper.give_up(time.monotonic() + seconds)
        self._wake.set()
        if self._thread is not None:
            self._thread.join(seconds + 1.0)

    # in the thread

    def _run(self) -> None:
        while True:
            if not self._tapes and not self._queue:
                if self._closing:
                    break
                self._wake.wait()
            self._wake.clear()
            self._ship()
            if self._closing:
                if not self._queue:
                    break
            elif self._tapes:
                self._wake.wait(EVERY_S)
        self._shipper.close()

    def _ship(self) -> None:
        """One batch after the other until the queue is empty, then what has been lost of each call."""
        over: list[Tape] = []
        while self._queue:
            for part in _parts(self._next_batch(over)):
                if not self._shipped(part):
                    for row in part:
                        if row.call in self._tapes:
                            self._tapes[row.call].unsent += 1
        lost = [(tape, tape.lost + tape.unsent) for tape in list(self._tapes.values())]
        news = [(tape, items, items - tape.told) for tape, items in lost if items > tape.told]
        gaps = [Recorded(tape.call, "caller", "event", 0.0, {"event": "gap", "items": new}) for tape, _, new in news]
        if gaps and self._shipped([row for gap in gaps for row in rows(gap)]):
            for tape, items, _ in news:
                tape.told = items
        for tape in over:
            self._tapes.pop(tape.call, None)
            self._gone += tape.lost + tape.unsent

    def _shipped(self, part: list[Row]) -> bool:
        """Whether the viewer has it. Whatever goes wrong with one part must not end the recording of all others."""
        try:
            return self._shipper.ship(part)
        except Exception as error:
            self._warn(f"a batch of recordings failed with {type(error).__name__} and is lost")
            return False

    def _next_batch(self, over: list[Tape]) -> list[Row]:
        """Rows of what has waited longest; tapes that were closed meanwhile are added to `over`."""
        batch: list[Row] = []
        size = 0
        while self._queue and size < _BATCH:
            tape, at, side, frame, stream = self._queue.popleft()
            self._taken += len(frame)
            size += len(frame)
            batch += self._rows(tape, at, side, frame, stream)
            if frame is _CLOSED:
                over.append(tape)
        return batch

    def _rows(self, tape: Tape, at: float, side: int, frame: bytes | str | Loose, stream: int) -> list[Row]:
        """What becomes of an item after redaction; nothing if it is not to be kept."""
        at_ms = max(0.0, round((at - tape.opened) * 1e3, 2))
        if self._redact is None and isinstance(frame, bytes) and (plain := _plain_sound(tape, side, at_ms, frame)):
            return [plain]
        try:
            item = _recorded(tape, side, at_ms, frame, stream)
            if item is not None and frame is not _CLOSED:
                item = self._redacted(tape, item)
            made = [] if item is None else rows(item)
        except Exception as error:  # a caller's own numbers may be such that nothing can write them down
            tape.unsent += 1
            self._warn(f"an item of a recording cannot be kept ({type(error).__name__})")
            return []
        for row in made:
            row.call, row.turn = tape.call, row.turn if 0 <= row.turn < 1 << 32 else 0
        return made

    def _redacted(self, tape: Tape, item: Recorded) -> Recorded | None:
        """What the hook leaves of it. That a call began is always kept, without its arguments if need be."""
        if self._redact is None:
            return item
        left: Recorded | None = None
        try:
            left = self._redact(item)
            if left is not None and not isinstance(left, Recorded):
                raise TypeError
        except BaseException as error:  # a hook that exits must not end the recording of all calls
            left = None
            tape.unsent += 1
            self._warn(f"the redaction hook failed with {type(error).__name__}; what it fails on is not kept")
        if left is None and item.kind == "event" and item.value["event"] == "open":
            return replace(item, value={**item.value, "arguments": {}})
        return left

    def _warn(self, what: str) -> None:
        """Once: what is lost is counted, and told with the call."""
        if not self._warned:
            self._warned = True
            log.warning("%s", what)


def _parts(batch: list[Row]) -> Iterator[list[Row]]:
    """The rows in order, so many at a time as one request may hold."""
    part: list[Row] = []
    size = 0
    for row in batch:
        if part and size + len(row.data) > 2 * _BATCH:
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row.data)
    if part:
        yield part


def _plain_sound(tape: Tape, side: int, at_ms: float, frame: bytes) -> Row | None:
    """The row of a frame of 16-bit sound that says nothing else: most frames are, and they need not be decoded."""
    kind, stream, code, _, turn, rate, text = protocol.HEADER.unpack_from(frame)
    if kind != protocol.AUDIO or code != protocol.PCM16 or text:
        return None
    return Row(tape.call, side, stream, at_ms, "audio", turn, rate, frame[protocol.HEADER.size :])


def _recorded(tape: Tape, side: int, at_ms: float, frame: bytes | str | Loose, stream: int) -> Recorded | None:
    """An item as it is kept; None for frames that say nothing of the conversation."""
    name = SIDES[side]
    if isinstance(frame, bytes):
        stream, value = protocol.decode_binary(frame)
        turn = getattr(value, "turn", 0)
        return Recorded(tape.call, name, "audio" if isinstance(value, Audio) else "tensor", at_ms, value, turn, stream)
    if isinstance(frame, Loose):
        return Recorded(tape.call, name, frame.kind, at_ms, frame.value, frame.turn, stream)
    if frame.startswith(_NOT_KEPT):
        return None
    fields = msgspec.json.decode(frame)
    what = fields.pop("type")
    if what in ("credit", "ping"):
        return None
    if what == "end":
        return Recorded(tape.call, name, "end", at_ms, None, 0, stream)
    if what != "item":
        if what == "error":  # its message may hold what nobody has redacted
            fields = {"error": fields.get("error", {}).get("type", "")}
        return Recorded(tape.call, name, "event", at_ms, {"event": what, **fields}, fields.get("turn", 0))
    value = protocol.from_kind(fields.get("kind", ""), fields["value"])
    turn = fields.get("turn", 0) or getattr(value, "turn", 0)
    kind: Kind = "text" if isinstance(value, Text) else "value"
    if fields.get("kind") == "control":
        kind = "control"
    elif fields.get("kind") == "tokens":
        value = fields["value"]
    return Recorded(tape.call, name, kind, at_ms, value, turn, stream)


def _given(viewer: str) -> str:
    if not viewer:
        raise SettingError(
            "recording is on, and there is no viewer to keep what is recorded",
            mend="start it with `chains run --record`, or set GatewaySettings.viewer to the viewer's URL",
        )
    return viewer


def hook(redact: str | Redact) -> Redact | None:
    """The redaction hook that "module:function" or "file.py:function" names. Raises SettingError if there is none."""
    if not isinstance(redact, str):
        return _plain(redact, getattr(redact, "__name__", "redact"))
    if not redact:
        return None
    _, colon, name = redact.rpartition(":")
    if not colon or not name:
        raise SettingError(f"redact is {redact!r}", mend='write "module:function", e.g. privacy:no_digits')
    try:
        module, wanted = module_of(redact)
    except ChainsError as error:
        raise SettingError(f"the redaction hook {redact} cannot be loaded: {error.message}", mend=error.mend) from None
    found = getattr(module, wanted, None)
    return _plain(found, redact)


def _plain(found: Any, name: str) -> Redact:
    if not callable(found):
        raise SettingError(f"{name} is no function", mend="define one that takes an item, or name another")
    if inspect.iscoroutinefunction(found):
        raise SettingError(f"{name} is an async function", mend="write it as a plain `def`: it runs in a thread")
    call: Redact = found
    return call
