"""How the details of a span are kept: small, and read only when somebody looks at the span.

`rest` is msgpack of [attributes, waits, works, events], zlib'd where that pays; what is empty at its end is left out.
Keys that are known are numbers, times are whole microseconds, starts are counted from the entry before.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from chains.records.arrived import Millis, Segment, Small
from chains.records.schema import CALL, FOREIGN, HOP, KINDS

# The position of a key is what stands in files: append, never change.
KEYS = (
    "chains.node", "chains.method", "chains.outcome", "chains.attempts", "chains.items_in", "chains.items_out",
    "chains.first_item_ms", "chains.received_ms", "chains.accepted_ms", "chains.ended_ms", "error.type",
    "chains.latency_ms", "chains.latency_start_ms", "chains.spoken", "chains.cancelled", "chains.played_ms",
    "chains.state", "chains.tenant", "chains.priority", "chains.reason", "chains.turns", "chains.cached_tokens",
    "chains.ttft_ms", "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model",
    "gen_ai.request.max_tokens", "gen_ai.request.temperature", "gen_ai.request.top_p", "gen_ai.request.seed",
    "gen_ai.response.model", "gen_ai.response.finish_reasons", "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens", "gen_ai.usage.cache_read.input_tokens", "chains.audio_s", "chains.characters",
    "chains.texts", "status.message", "span.kind", "otel.links", "http.request.method", "http.response.status_code",
    "http.route", "url.full", "url.path", "url.scheme", "server.address", "server.port", "db.system.name",
    "db.query.text", "db.operation.name", "rpc.system", "rpc.method", "rpc.service", "messaging.system",
    "network.protocol.version", "user_agent.original", "thread.id", "thread.name", "code.function.name",
    "chains.guessed_tokens", "chains.right_guesses",
)  # fmt: skip
PARTS = ("serialise", "wire", "queue", "compute", "wait")
PART_KEYS = tuple(f"chains.{part}_ms" for part in PARTS)
WAIT_KINDS = ("hop", "input", "credit")
TOLD_APART = ("credit", "input")
Shares = tuple[tuple[str, str, str, float], ...]

_CODES = {key: code for code, key in enumerate(KEYS)}
_IN_MICROSECONDS = {code for code, key in enumerate(KEYS) if key.endswith("_ms")}
_FLOATING = {_CODES[f"gen_ai.request.{name}"] for name in ("temperature", "top_p")} | {_CODES["chains.audio_s"]}
_FROM_NAME = (_CODES["chains.node"], _CODES["chains.method"])
_KIND_CODES = {kind: code for code, kind in enumerate(WAIT_KINDS)}
_FLOATS = struct.Struct("<5f")
_ZLIB = 0x78  # the first byte of what zlib made; msgpack's array begins otherwise
_PAYS = 1_000
_LONGEST_MS = 1e12
LARGEST = 256 * 1024

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.decode


class Wait(NamedTuple):
    """A stretch in which a hop waited, in ms since its start; `on` is the span's id (0: not a hop of this call)."""

    start: float
    ms: float
    kind: str
    on: int
    turn: int


class Work(NamedTuple):
    """A named stretch of a hop's own work, in ms since its start."""

    start: float
    ms: float
    name: str
    turn: int


class Event(NamedTuple):
    """A moment in a span, `at` in ms since its start."""

    name: str
    at: float
    attributes: dict[str, Any]


class Rest(NamedTuple):
    """What `rest` holds."""

    attributes: dict[str, Any]
    waits: list[Wait]
    works: list[Work]
    events: list[Event]


_waits = msgspec.json.Decoder(list[tuple[Millis, Millis, str, str, Small]])
_works = msgspec.json.Decoder(list[tuple[Millis, Millis, str, Small]])


def pack(attributes: dict[str, Any], events: Sequence[tuple[str, int, dict[str, Any]]], name: str) -> bytes | None:
    """The details of the span `name`; events are (name, us since its start, attributes). None when there are none.

    `chains.waits` and `chains.works` that are not as they should be are kept as the texts that they are. ValueError,
    OverflowError or TypeError when there is more than 256 KiB, or a value that msgpack does not know.
    """
    waits = _packed_waits(attributes)
    works = _packed_works(attributes)
    coded: dict[int | str, Any] = {_CODES.get(key, key): value for key, value in attributes.items()}
    for code in coded.keys() & _IN_MICROSECONDS:
        value = coded[code]
        if type(value) is float or type(value) is int:
            coded[code] = round(value * 1e3) if abs(value) < _LONGEST_MS else float(value)
    for code in coded.keys() & _FLOATING:
        value = coded[code]
        if type(value) is float and value.is_integer() and abs(value) < _LONGEST_MS:
            coded[code] = int(value)  # a byte in place of nine
    node, method = _FROM_NAME
    if node in coded and name.count(".") == 1 and f"{coded[node]}.{coded.get(method)}" == name:
        coded[node] = None
        del coded[method]
    parts = [coded, waits, works, events]
    while parts and not parts[-1]:
        parts.pop()
    if not parts:
        return None
    raw = _encode(parts)
    if len(raw) > LARGEST:
        raise ValueError("too large")
    return raw if len(raw) < _PAYS else zlib.compress(raw, 1)


def unpack(rest: bytes | None, name: str = "") -> Rest:
    """What `pack` made of the span `name`."""
    if rest is None:
        return Rest({}, [], [], [])
    parts = _decode(_expanded(rest))
    coded, waits, works, events = parts + [{}, [], [], []][len(parts) :]
    attributes: dict[str, Any] = {}
    for key, value in coded.items():
        if key == _FROM_NAME[0] and value is None:
            attributes["chains.node"], _, attributes["chains.method"] = name.partition(".")
        elif isinstance(key, int):
            if type(value) is int and (key in _IN_MICROSECONDS or key in _FLOATING):
                value = value / 1e3 if key in _IN_MICROSECONDS else float(value)
            attributes[KEYS[key]] = value
        else:
            attributes[key] = value
    moments = [Event(event, at / 1e3, notes) for event, at, notes in events]
    return Rest(attributes, _unpacked_waits(waits), _unpacked_works(works), moments)


def attributes_of(rest: Rest, *, kind: int, call: str, turn: int, replica: str, parts: bytes | None) -> dict[str, Any]:
    """The attributes as they were sent, those included that stand in columns."""
    found: dict[str, Any] = {}
    if kind != FOREIGN:
        found = {"chains.kind": KINDS[kind], "chains.call": call}
        found |= {"chains.turn": turn} if kind != CALL and turn else {}
        found |= {"chains.replica": replica} if replica else {}
    found |= rest.attributes
    if kind == HOP:
        found |= {key: ms for key, ms in zip(PART_KEYS, unpack_parts(parts), strict=True) if ms}
    return found


def pack_parts(values: Sequence[float]) -> bytes:
    """Five times in ms, in the order of PARTS."""
    return _FLOATS.pack(*values)


def unpack_parts(parts: bytes | None) -> tuple[float, ...]:
    """In the order of PARTS, in ms."""
    return _FLOATS.unpack(parts) if parts else (0.0,) * 5


def pack_path(path: Sequence[tuple[str, str, str, str, float, float]]) -> tuple[bytes | None, Shares]:
    """A turn's critical path (rows as Segment) as it is stored, None when it is empty; and the shares of it.

    A wait for credit or for input has a share of its own, under that name.
    """
    places: dict[tuple[str, str, str, str], int] = {}
    lengths: list[float] = []
    flat: list[int] = []
    at = 0
    for hop, part, name, replica, begun, lasted in path:
        place = places.setdefault((hop, part, name, replica), len(places))
        if place == len(lengths):
            lengths.append(0.0)
        lengths[place] += lasted
        start, ms = round(begun * 1e3), round(lasted * 1e3)
        flat += (place, start - at, ms)
        at = start + ms
    shares = tuple(
        (hop, replica, name if part == "wait" and name in TOLD_APART else part, ms)
        for (hop, part, name, replica), ms in zip(places, lengths, strict=True)
    )
    texts: dict[str, int] = {}
    codes = [texts.setdefault(text, len(texts)) for place in places for text in place]
    raw = _encode([list(texts), codes, flat])
    return (None if not flat else raw if len(raw) < _PAYS else zlib.compress(raw, 1)), shares


def unpack_path(path: bytes | None) -> list[Segment]:
    """What `pack_path` made."""
    if path is None:
        return []
    texts, codes, flat = _decode(_expanded(path))
    places = [[texts[code] for code in codes[i : i + 4]] for i in range(0, len(codes), 4)]
    found: list[Segment] = []
    at = 0
    for i in range(0, len(flat), 3):
        start = at + flat[i + 1]
        hop, part, name, replica = places[flat[i]]
        found.append(Segment(hop, part, name, replica, start / 1e3, flat[i + 2] / 1e3))
        at = start + flat[i + 2]
    return found


def signed(span: bytes) -> int:
    """An OpenTelemetry span id as SQLite keeps it."""
    return int.from_bytes(span, "big", signed=True)


def hex_id(span: int) -> str:
    """The id in hex, as OpenTelemetry writes it; empty for 0."""
    return f"{span & 0xFFFFFFFFFFFFFFFF:016x}" if span else ""


def _expanded(blob: bytes) -> bytes:
    return zlib.decompress(blob) if blob[0] == _ZLIB else blob


def _packed_waits(attributes: dict[str, Any]) -> list[Any]:
    """Runs of [kind, on, turn, [start, length, start, length, ...]]."""
    text = attributes.get("chains.waits")
    if text is None:
        return []
    runs: list[Any] = []
    last: tuple[Any, ...] = ()
    flat: list[int] = []
    before = 0
    try:
        for start, ms, kind, on, turn in _waits.decode(text):
            if (kind, on, turn) != last:
                last, flat = (kind, on, turn), []
                target = int.from_bytes(bytes.fromhex(on), "big", signed=True) if on else 0
                runs.append([_KIND_CODES.get(kind, kind), target, turn, flat])
            at = round(start * 1e3)
            flat += (at - before, round(ms * 1e3))
            before = at
    except (msgspec.MsgspecError, ValueError, TypeError):
        return []
    if any(not -(2**63) <= run[1] < 2**63 for run in runs):  # ids that are too long
        return []
    del attributes["chains.waits"]
    return runs


def _packed_works(attributes: dict[str, Any]) -> list[Any]:
    """Runs of [name, turn, [start, length, ...]]; a name that was there before is the number of its first run."""
    text = attributes.get("chains.works")
    if text is None:
        return []
    runs: list[Any] = []
    last: tuple[Any, ...] = ()
    flat: list[int] = []
    known: dict[str, int] = {}
    before = 0
    try:
        for start, ms, name, turn in _works.decode(text):
            if (name, turn) != last:
                last, flat = (name, turn), []
                runs.append([known.get(name, name), turn, flat])
                known.setdefault(name, len(runs) - 1)
            at = round(start * 1e3)
            flat += (at - before, round(ms * 1e3))
            before = at
    except (msgspec.MsgspecError, TypeError):
        return []
    del attributes["chains.works"]
    return runs


def _unpacked_waits(runs: list[Any]) -> list[Wait]:
    found: list[Wait] = []
    at = 0
    for kind, on, turn, flat in runs:
        known = WAIT_KINDS[kind] if isinstance(kind, int) else kind
        for i in range(0, len(flat), 2):
            at += flat[i]
            found.append(Wait(at / 1e3, flat[i + 1] / 1e3, known, on, turn))
    return found


def _unpacked_works(runs: list[Any]) -> list[Work]:
    found: list[Work] = []
    at = 0
    for name, turn, flat in runs:
        known = runs[name][0] if isinstance(name, int) else name
        for i in range(0, len(flat), 2):
            at += flat[i]
            found.append(Work(at / 1e3, flat[i + 1] / 1e3, known, turn))
    return found
