"""One thing that went into a call or came out of it, as it is kept, and how it travels to the viewer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import numpy as np

from chains import protocol
from chains.errors import InvalidValue
from chains.messages import Audio, Control, Tensor, Text

Side = Literal["caller", "reply"]
Kind = Literal["audio", "text", "control", "value", "tensor", "end", "event"]
CALLER, REPLY = 0, 1
SIDES: Final[tuple[Side, Side]] = ("caller", "reply")
KINDS: Final = ("audio", "text", "control", "value", "tensor", "end", "event")
PATH: Final = "/v1/recordings"
_MOST: Final = 1 << 20  # bytes of sound in one row; a body of audio is one long item


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a redaction hook is given, and what it gives back: one item of a call.

    `value` by `kind`: Audio, Text, Control, plain JSON ("value"), Tensor, array or bytes ("tensor"), None ("end" of an
    input stream), or a dict ("event": `open` with the call's `arguments`, `played`, `clear`, ...). `at_ms` counts
    from the call's opening; `stream` is the index of the method's stream parameter.
    """

    call: str
    side: Side
    kind: Kind
    at_ms: float
    value: Any
    turn: int = 0
    stream: int = 0


class Row(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A Recorded on its way: `data` is 16-bit PCM at `rate`, a binary frame of a tensor, or JSON."""

    call: str
    side: int
    stream: int
    at_ms: float
    kind: str
    turn: int
    rate: int
    data: bytes


class Batch(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What a gateway posts to the viewer, in msgpack. An event `gap` says how many items of a call were lost."""

    version: int
    rows: list[Row]


def rows(item: Recorded) -> list[Row]:
    """The rows of one item: sound that says what is spoken in it becomes two. Raises InvalidValue for a value that is
    not of the item's kind."""
    side = SIDES.index(item.side)

    def row(kind: str, data: bytes, rate: int = 0) -> Row:
        return Row(item.call, side, item.stream, item.at_ms, kind, item.turn, rate, data)

    value = item.value
    match item.kind:
        case "audio" if isinstance(value, Audio):
            pcm = value.to_bytes()
            sound = [row("audio", pcm[at : at + _MOST], value.rate) for at in range(0, len(pcm), _MOST)]
            spoken = {"text": value.text, "role": ("user", "assistant")[side], "spoken": True}
            return [row("text", msgspec.json.encode(spoken)), *sound] if value.text else sound
        case "tensor" if isinstance(value, Tensor | np.ndarray | bytes):
            return [row("tensor", protocol.encode_binary(value))]
        case "text" if isinstance(value, Text):
            return [row("text", msgspec.json.encode(value))]
        case "control" if isinstance(value, Control):
            return [row("control", msgspec.json.encode(value))]
        case "event" if isinstance(value, dict):
            return [row("event", msgspec.json.encode(value))]
        case "value":
            return [row("value", msgspec.json.encode(value))]
        case "end":
            return [row("end", b"")]
    raise InvalidValue(f"a recorded {item.kind} is {type(value).__name__}", mend="see chains.records.recorded.Recorded")
