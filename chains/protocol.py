"""The frames of the native websocket, shared by client and gateway: bytes and text in, values out, no I/O.

Text frames are JSON objects with a `type`; binary frames carry audio, tensors, arrays and bytes behind a
header of 16 bytes. docs/protocol.md is the page from which a client in another language can be written.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from chains.errors import ChainsError, ErrorDetail, ProtocolError, RemoteError, describe, revive
from chains.messages import Audio, Control, Tensor, Text, Tokens

VERSION: Final = 1
DEFAULT_WINDOW: Final = 262_144
Encoding = Literal["pcm16", "mulaw"]
Value = Any
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Turn = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Seconds = Annotated[float, msgspec.Meta(gt=0)]
_Rate = Annotated[int, msgspec.Meta(ge=4_000, le=192_000)]


class AudioFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the client wants to get audio: samples per second (None: as the chain makes it) and encoding."""

    rate: _Rate | None = None
    encoding: Encoding = "pcm16"


class _FromClient(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type"):
    pass


class Open(_FromClient, frozen=True, tag="open"):
    """The first frame. `window`: bytes of items the client takes before it gives credit (None: no limit)."""

    method: str = ""
    arguments: dict[str, Any] = {}
    audio: AudioFormat = AudioFormat()
    window: _Count | None = None
    key: str = ""
    priority: Literal["interactive", "batch"] = "interactive"
    deadline_s: _Seconds | None = None


class Item(_FromClient, frozen=True, tag="item"):
    """An item of a stream parameter (name or index). `kind` names a message type; without it: plain JSON."""

    value: Any
    stream: str | int = 0
    kind: str = ""


class End(_FromClient, frozen=True, tag="end"):
    """No more items of this stream parameter."""

    stream: str | int = 0


class Credit(_FromClient, frozen=True, tag="credit"):
    """The client took items of so many bytes (frames counted whole)."""

    bytes: _Count


class Played(_FromClient, frozen=True, tag="played"):
    """So many milliseconds of the turn's audio have been heard so far."""

    turn: _Turn
    ms: Annotated[float, msgspec.Meta(ge=0, le=86_400_000)]


class Hold(_FromClient, frozen=True, tag="hold"):
    """Pause: producers stop, nothing is lost."""


class Resume(_FromClient, frozen=True, tag="resume"):
    """Go on after a hold."""


class Cancel(_FromClient, frozen=True, tag="cancel"):
    """End the call; the answer is a `cancelled` frame."""

    reason: str = "cancelled by the client"


class Ping(_FromClient, frozen=True, tag="ping"):
    """Answered by a pong with the same `id`; counts against the idle limit."""

    id: int = 0


ClientFrame = Open | Item | End | Credit | Played | Hold | Resume | Cancel | Ping
CLIENT_TYPES: Final = ("open", "item", "end", "credit", "played", "hold", "resume", "cancel", "ping")

_decoder = msgspec.json.Decoder(ClientFrame)
_encoder = msgspec.json.Encoder()


def decode_client(text: str) -> ClientFrame:
    """A text frame of a client. Raises ProtocolError that says what is wrong with it."""
    try:
        return _decoder.decode(text)
    except msgspec.ValidationError as error:
        known = ", ".join(CLIENT_TYPES)
        raise ProtocolError(
            f"frame not understood: {_short(error)}",
            mend=f'send a JSON object whose "type" is one of {known} with the fields of docs/protocol.md',
        ) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ProtocolError(
            f"text frame is not JSON: {_short(error)}", mend='send one JSON object, e.g. {"type":"end","stream":0}'
        ) from None


def _short(found: object) -> str:
    """What a peer sent is not sent back whole."""
    text = str(found)
    return text if len(text) <= 160 else f"{text[:160]}..."


def encode_client(frame: ClientFrame) -> str:
    return _encoder.encode(frame).decode()


def encode_server(kind: str, /, **fields: Any) -> str:
    """A text frame of the server: `encode_server("clear", turn=3)`."""
    return _encoder.encode({"type": kind, **fields}).decode()


def decode_server(text: str | bytes) -> dict[str, Any]:
    """A text frame of the server, as a dict with a `type`. Raises ProtocolError when it is none."""
    try:
        frame = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ProtocolError(
            f"the server sent text that is not JSON: {error}", mend="is this a Chains gateway?"
        ) from None
    if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
        raise ProtocolError("the server sent a frame without a type", mend="is this a Chains gateway?")
    return frame


def size(frame: str | bytes) -> int:
    """What a frame counts against a window: its bytes, header included."""
    if isinstance(frame, bytes) or frame.isascii():
        return len(frame)
    return len(frame.encode())


# -- binary frames

HEADER: Final = struct.Struct("<BBBBIII")  # kind, stream, code, dims, turn, rate, bytes of text
AUDIO, TENSOR, BYTES, ARRAY = 1, 2, 3, 4
_KINDS: Final = (AUDIO, TENSOR, BYTES, ARRAY)
PCM16, MULAW = 0, 1
DTYPES: Final = ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "|b1")
_DTYPE_CODES: Final = {np.dtype(name): code for code, name in enumerate(DTYPES)}
_MAX_DIMS: Final = 8


def is_binary(value: Value) -> bool:
    """Whether a value travels in a binary frame (the others travel as JSON)."""
    return isinstance(value, Audio | Tensor | bytes | bytearray | memoryview | np.ndarray)


def encode_binary(value: Value, stream: int = 0, encoding: Encoding = "pcm16") -> bytes:
    """Audio, Tensor, numpy array or bytes as one binary frame. Raises ProtocolError for another dtype."""
    if isinstance(value, Audio):
        text = value.text.encode()
        code, payload = (MULAW, mulaw_encode(value.pcm).tobytes()) if encoding == "mulaw" else (PCM16, value.to_bytes())
        head = HEADER.pack(AUDIO, stream, code, 0, value.turn, value.rate, len(text))
        return b"".join((head, _padded(text), payload))
    if isinstance(value, Tensor):
        return _encode_array(TENSOR, stream, value.data, value.turn, value.name.encode())
    if isinstance(value, np.ndarray):
        return _encode_array(ARRAY, stream, value, 0, b"")
    return HEADER.pack(BYTES, stream, 0, 0, 0, 0, 0) + bytes(value)


def _encode_array(kind: int, stream: int, array: NDArray[Any], turn: int, name: bytes) -> bytes:
    code = _DTYPE_CODES.get(array.dtype.newbyteorder("<"))
    if code is None or array.ndim > _MAX_DIMS:
        names = ", ".join(np.dtype(name).name for name in DTYPES)
        raise ProtocolError(
            f"an array of {array.dtype} with {array.ndim} dimensions cannot be framed",
            mend=f"use at most {_MAX_DIMS} dimensions and one of {names}",
        )
    head = HEADER.pack(kind, stream, code, array.ndim, turn, 0, len(name))
    dims = struct.pack(f"<{array.ndim}Q", *array.shape)
    return b"".join((head, _padded(name), dims, np.ascontiguousarray(array, DTYPES[code]).tobytes()))


def decode_binary(frame: bytes) -> tuple[int, Value]:
    """(stream index, value) of a binary frame; arrays are read-only views of it.

    Raises ProtocolError that says what is wrong with the frame.
    """
    if len(frame) < HEADER.size:
        raise _broken(f"{len(frame)} bytes are shorter than the header of {HEADER.size}")
    kind, stream, code, dims, turn, rate, text_length = HEADER.unpack_from(frame)
    body = HEADER.size + _pad(text_length)
    if kind not in _KINDS:
        raise _broken(f"kind {kind} is none of 1 audio, 2 tensor, 3 bytes, 4 array")
    if body > len(frame):
        raise _broken(f"the text of {text_length} bytes reaches past the frame's end")
    try:
        text = frame[HEADER.size : HEADER.size + text_length].decode()
    except UnicodeDecodeError:
        raise _broken("its text is not UTF-8") from None
    if kind == AUDIO:
        return stream, _decode_audio(memoryview(frame)[body:], code, rate, turn, text)
    if kind == BYTES:
        return stream, frame[body:]
    data = _decode_array(frame, body, code, dims)
    return stream, Tensor(data, text, turn) if kind == TENSOR else data


def _decode_audio(payload: memoryview, code: int, rate: int, turn: int, text: str) -> Audio:
    try:
        if code == PCM16:
            audio = Audio.from_bytes(payload, rate, turn=turn)
            return Audio(audio.pcm, rate, turn, text) if text else audio
        if code == MULAW:
            return Audio(mulaw_decode(np.frombuffer(payload, np.uint8)), rate, turn, text)
    except ChainsError as error:
        raise _broken(error.message) from None
    raise _broken(f"audio code {code} is none of 0 pcm16, 1 mulaw")


def _decode_array(frame: bytes, start: int, code: int, dims: int) -> NDArray[Any]:
    if code >= len(DTYPES) or dims > _MAX_DIMS:
        raise _broken(f"dtype code {code} or {dims} dimensions are not known")
    data = start + 8 * dims
    if data > len(frame):
        raise _broken(f"its {dims} dimensions reach past the frame's end")
    shape = struct.unpack_from(f"<{dims}Q", frame, start)
    dtype = np.dtype(DTYPES[code])
    count = 1
    for length in shape:
        count *= length
    if count * dtype.itemsize != len(frame) - data:
        raise _broken(f"shape {shape} of {dtype.name} is {count * dtype.itemsize} bytes, {len(frame) - data} are there")
    return np.frombuffer(frame, dtype, count, data).reshape(shape)


def _broken(found: str) -> ProtocolError:
    return ProtocolError(
        f"binary frame not understood: {found}", mend="lay it out as docs/protocol.md says, byte by byte"
    )


def _pad(length: int) -> int:
    return -(-length // 8) * 8


def _padded(text: bytes) -> bytes:
    return text.ljust(_pad(len(text)), b"\0")


# -- values as JSON

_MESSAGES: Final[dict[str, type[Any]]] = {"text": Text, "tokens": Tokens, "control": Control}


def kind_of(value: Value) -> str:
    """The `kind` of a JSON item: "text", "tokens", "control", or "value" for anything that is no message."""
    for kind, cls in _MESSAGES.items():
        if type(value) is cls:
            return kind
    return "value"


def from_kind(kind: str, value: Any) -> Value:
    """The message that an item of this kind holds; "value" and "" give the JSON as it is."""
    cls = _MESSAGES.get(kind)
    if cls is not None:
        try:
            return msgspec.convert(value, cls)
        except msgspec.ValidationError as error:
            raise ProtocolError(
                f"this is no {kind} item: {_short(error)}", mend="see the kinds in docs/protocol.md"
            ) from None
    if kind in ("", "value"):
        return value
    known = ", ".join((*_MESSAGES, "value"))
    raise ProtocolError(f"item kind {_short(kind)!r} is not known", mend=f"use one of {known}, or leave it out")


# -- errors


def error_fields(error: BaseException, *, debug: bool = False) -> dict[str, Any]:
    """What a client is told of an error: type, message, mend; with `debug` the user's frames as well."""
    if isinstance(error, RemoteError):
        fields: dict[str, Any] = {"type": error.type_name, "message": error.text, "mend": ""}
        frames = error.frames
    else:
        detail = describe(error, "gateway")
        fields = {"type": detail.type_name, "message": detail.message, "mend": detail.mend}
        frames = detail.frames
    if debug:
        fields["frames"] = [str(frame) for frame in frames]
    return fields


def error_from(fields: Mapping[str, Any]) -> BaseException:
    """The error that a server told of: one of ours, a builtin, or RemoteError."""
    message = str(fields.get("message", ""))
    frames = fields.get("frames") or []
    if frames:
        message = "\n".join((message, *map(str, frames)))
    return revive(ErrorDetail(str(fields.get("type", "RemoteError")), message, str(fields.get("mend", ""))))


# -- mu-law (G.711)


def _mulaw_tables() -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    code = ~np.arange(256, dtype=np.int32) & 0xFF
    magnitude = (((code & 0x0F) << 3) + 0x84 << (code >> 4 & 7)) - 0x84
    decoded = np.where(code & 0x80, -magnitude, magnitude).astype(np.int16)
    samples = np.arange(-32768, 32768, dtype=np.int32)
    loud = np.minimum(np.abs(samples), 32635) + 0x84
    exponent = np.floor(np.log2(loud)).astype(np.int32) - 7
    encoded = ~(np.where(samples < 0, 0x80, 0) | exponent << 4 | loud >> exponent + 3 & 0x0F) & 0xFF
    return decoded, encoded.astype(np.uint8)


_DECODED, _ENCODED = _mulaw_tables()


def mulaw_decode(data: NDArray[np.uint8]) -> NDArray[np.int16]:
    """G.711 mu-law bytes -> int16 samples, same shape."""
    return _DECODED[data]


def mulaw_encode(pcm: NDArray[np.int16]) -> NDArray[np.uint8]:
    """int16 samples -> G.711 mu-law bytes, same shape."""
    return _ENCODED[pcm.astype(np.int32) + 32768]
