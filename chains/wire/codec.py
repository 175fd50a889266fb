"""Values to bytes and back: a small msgpack header, and beside it the raw buffers of arrays, tensors and long
bytes.

The header holds [number of buffers, tree]. What msgpack has no word for stands in the tree as an extension,
see Ext below. The type of what arrives comes from the receiver's annotation alone: nothing is imported, no
code runs because a peer named it. Whatever a peer sends, decoding raises ProtocolError or InvalidValue and
nothing else.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import importlib
import math
import re
import sys
import uuid
import warnings
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any, cast

import msgspec
import numpy as np

from chains.dsl.kind import DEPTH, Fields
from chains.dsl.signature import Checker
from chains.errors import ChainsError, InvalidValue, ProtocolError

Buffer = bytes | bytearray | memoryview

INLINE = 1024
"""Bytes up to this length travel in the header."""
INT_BYTES = 4096
"""The longest integer that is read, in bytes."""


class Ext:
    """Extensions of the header's msgpack, with what their payload is."""

    ARRAY = 1  # [buffer, dtype, shape]
    TENSOR = 2  # [buffer, dtype's name, shape]
    BYTES = 3  # buffer
    INT = 4  # little-endian two's complement, beyond 64 bits
    TEXT = 5  # UTF-8 with lone surrogates
    TUPLE = 6  # [items]
    STRUCTURE = 7  # [class name, {field: value}]
    KEYED = 8  # [[key, value]], a dict with a key that is an extension itself


@dataclasses.dataclass(slots=True, eq=False)
class Encoded:
    """A value on its way: the header, and buffers that share memory with the value's own arrays."""

    header: bytes
    buffers: list[memoryview]

    @property
    def nbytes(self) -> int:
        size = len(self.header)
        for buffer in self.buffers:
            size += buffer.nbytes
        return size


def encode(value: Any, checker: Checker | None = None, where: str = "the value") -> Encoded:
    """A value as header and buffers; contiguous arrays are not copied, big-endian ones are turned.

    With a checker the value is checked first. Raises InvalidValue for what cannot travel.
    """
    if checker is not None:
        value = checker.check(value, where)
    try:
        return _written(value, exact=False)
    except (
        OverflowError,
        UnicodeEncodeError,
    ):  # a huge int or a lone surrogate somewhere: look at each of them
        return _written(value, exact=True)
    except RecursionError:
        raise _too_deep() from None


def decode(header: Buffer, buffers: Sequence[Buffer], checker: Checker, where: str = "the value") -> Any:
    """The value that a peer sent, as the receiver's checker wants it; arrays are read-only views of the
    buffers.

    Raises ProtocolError for bytes that are no value at all, InvalidValue for a value that the checker
    refuses.
    """
    try:
        tree = _Reader(buffers).read(header)
    except ChainsError:
        raise
    except Exception as error:  # msgpack, numpy and torch on hostile bytes
        raise ProtocolError(f"{where} cannot be decoded ({type(error).__name__})", mend=_PEER) from None
    return checker.revive(tree, where)


_PEER = "both sides must run the same version of the chain"
_ENCODER = msgspec.msgpack.Encoder()
_PLAIN = frozenset({str, int, float, bool, type(None)})
_SCALARS = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, uuid.UUID, decimal.Decimal)


def _written(value: Any, *, exact: bool) -> Encoded:
    writer = _Writer(exact)
    tree = writer.tree(value, 0)
    return Encoded(_ENCODER.encode([len(writer.buffers), tree]), writer.buffers)


def _too_deep() -> InvalidValue:
    return InvalidValue(f"the value is nested more than {DEPTH} levels deep", mend="send less deeply nested data")


class _Writer:
    """Turns a value into what msgpack can write. `exact`: each int and str is looked at for what msgpack
    cannot hold.
    """

    def __init__(self, exact: bool) -> None:
        self.buffers: list[memoryview] = []
        self.plain = frozenset({float, bool, type(None)}) if exact else _PLAIN

    def tree(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in self.plain:
            return value
        if depth > DEPTH:
            raise _too_deep()
        if kind is list:
            return value if set(map(type, value)) <= self.plain else [self.tree(item, depth + 1) for item in value]
        if kind is dict:
            return self._dict({self._key(key): self.tree(item, depth + 1) for key, item in value.items()})
        if kind is tuple:
            return self._nested(Ext.TUPLE, [self.tree(item, depth + 1) for item in value])
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, enum.Enum):
            return self.tree(value.value, depth)
        if kind is bytes:
            return value if len(value) <= INLINE else self._nested(Ext.BYTES, self._buffer(memoryview(value)))
        return self._other(value, depth)

    def _other(self, value: Any, depth: int) -> Any:
        names = _fields(cast(Hashable, type(value)))
        if names is not None:
            return self._structure(value, {name: getattr(value, name) for name in names}, depth)
        if hasattr(type(value), "model_fields") and hasattr(value, "__pydantic_fields_set__"):
            return self._structure(value, {**value.__dict__, **(value.__pydantic_extra__ or {})}, depth)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._tensor(torch, value)
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, int) and not isinstance(value, bool):
            return self._int(int(value))
        if isinstance(value, float):
            return float(value)
        if isinstance(value, set | frozenset):  # a pydantic model may hold one; it makes it of the list again
            return self.tree(list(value), depth)
        if isinstance(value, _SCALARS):
            from pydantic_core import to_jsonable_python

            return to_jsonable_python(value)
        mend = "write value.item()" if isinstance(value, np.generic) else "send plain data, a dataclass or a message"
        raise InvalidValue(f"a value of type {type(value).__name__} cannot cross a process boundary", mend=mend)

    def _structure(self, value: Any, fields: dict[str, Any], depth: int) -> msgspec.msgpack.Ext:
        tree = {name: self.tree(item, depth + 1) for name, item in fields.items()}
        return self._nested(Ext.STRUCTURE, [type(value).__name__, tree])

    def _nested(self, code: int, payload: Any) -> msgspec.msgpack.Ext:
        return msgspec.msgpack.Ext(code, _ENCODER.encode(payload))

    def _dict(self, keyed: dict[Any, Any]) -> Any:
        if not any(type(key) is _Key for key in keyed):
            return keyed
        pairs = [[key.part if type(key) is _Key else key, item] for key, item in keyed.items()]
        return self._nested(Ext.KEYED, pairs)

    def _key(self, key: Any) -> Any:
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise InvalidValue(f"a dict has a key of type {type(key).__name__}", mend="use keys of str or int")
        tree = self.tree(key, 0)
        return _Key(tree) if type(tree) is msgspec.msgpack.Ext else tree

    def _text(self, text: str) -> Any:
        try:
            text.encode()
        except UnicodeEncodeError:
            return msgspec.msgpack.Ext(Ext.TEXT, text.encode("utf-8", "surrogatepass"))
        return text

    def _int(self, number: int) -> Any:
        if -(2**63) <= number < 2**64:
            return number
        size = number.bit_length() // 8 + 1
        if size > INT_BYTES:
            raise InvalidValue(f"an int has {number.bit_length()} bits", mend=f"send at most {INT_BYTES * 8 - 1}")
        return msgspec.msgpack.Ext(Ext.INT, number.to_bytes(size, "little", signed=True))

    def _buffer(self, buffer: memoryview) -> int:
        self.buffers.append(buffer.toreadonly())
        return len(self.buffers) - 1

    def _array(self, array: np.ndarray[Any, Any]) -> msgspec.msgpack.Ext:
        if array.dtype.hasobject or array.dtype.itemsize == 0 or isinstance(array, np.ma.MaskedArray):
            sort = "a masked array" if isinstance(array, np.ma.MaskedArray) else f"an array of {array.dtype}"
            raise InvalidValue(f"{sort} cannot cross a process boundary", mend="give it a dtype of numbers")
        little = array.dtype.newbyteorder("<")
        flat = np.ascontiguousarray(np.asarray(array).astype(little, copy=False).reshape(-1))
        index = self._buffer(flat.view(np.uint8).data)
        return self._nested(Ext.ARRAY, [index, _describe(little), list(array.shape)])

    def _tensor(self, torch: Any, tensor: Any) -> msgspec.msgpack.Ext:
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.layout is not torch.strided or name not in TENSOR_TYPES:
            raise InvalidValue(
                f"a {tensor.layout} tensor of {name} cannot cross a process boundary",
                mend="write .to_dense().float()",
            )
        flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        index = self._buffer(memoryview(flat.view(torch.uint8).numpy()))
        return self._nested(Ext.TENSOR, [index, name, list(tensor.shape)])


class _Key:
    """A dict's key that msgpack has no word for; it can be a key here, which an Ext cannot."""

    __slots__ = ("part",)

    def __init__(self, part: msgspec.msgpack.Ext) -> None:
        self.part = part


@lru_cache(maxsize=512)
def _fields(cls: Any) -> tuple[str, ...] | None:
    """The names of a dataclass's fields that its constructor takes; None for another class."""
    if not dataclasses.is_dataclass(cls):
        return None
    return tuple(field.name for field in dataclasses.fields(cls) if field.init)


def _describe(dtype: np.dtype[Any]) -> Any:
    """A dtype as plain data: "<f4", [dtype, shape] for a field that is an array, {names, formats, offsets,
    size}.
    """
    if dtype.subdtype is not None:
        return [_describe(dtype.subdtype[0]), list(dtype.subdtype[1])]
    if dtype.names is None or dtype.fields is None:
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names]
    described = {
        "names": list(dtype.names),
        "formats": [_describe(one[0]) for one in fields],
        "offsets": [one[1] for one in fields],
        "itemsize": dtype.itemsize,
    }
    titled = any(len(one) > 2 for one in fields)
    return {**described, "titles": [str(one[2]) if len(one) > 2 else None for one in fields]} if titled else described


_SIMPLE = re.compile(r"[<|][biufcmMSUV]\d{0,9}(\[\d{0,6}[A-Za-zμ]{1,7}\])?")
_BOUND = 2**40


class _Reader:
    """Reads one header. Each buffer may be used once, so that a small header cannot make much of a big
    buffer.
    """

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.buffers: list[Buffer | None] = list(buffers)
        self.depth = 0

    def read(self, header: Buffer) -> Any:
        envelope = self._unpacked(header)
        if type(envelope) is not list or len(envelope) != 2:
            raise ProtocolError("a value's header is no pair", mend=_PEER)
        if envelope[0] != len(self.buffers):
            raise ProtocolError(
                f"a value came with {len(self.buffers)} buffers, its header speaks of another number",
                mend=_PEER,
            )
        return envelope[1]

    def _unpacked(self, data: Buffer) -> Any:
        return msgspec.msgpack.decode(data, ext_hook=self._extension)

    def _extension(self, code: int, data: memoryview) -> Any:
        if code == Ext.INT and 8 <= len(data) <= INT_BYTES:
            return int.from_bytes(data, "little", signed=True)
        if code == Ext.TEXT:
            return bytes(data).decode("utf-8", "surrogatepass")
        self.depth += 1
        if self.depth > DEPTH + 1:
            raise ProtocolError(f"a value is nested more than {DEPTH} levels deep", mend=_PEER)
        payload = self._unpacked(data)
        self.depth -= 1
        if code == Ext.STRUCTURE:
            return _structure(payload)
        if code == Ext.KEYED:
            return _keyed(payload)
        if code == Ext.TUPLE and type(payload) is list:
            return tuple(payload)
        if code == Ext.BYTES:
            return _bytes(self._take(payload))
        if code in (Ext.ARRAY, Ext.TENSOR) and type(payload) is list and len(payload) == 3:
            buffer, shape = memoryview(self._take(payload[0])).cast("B"), _shape(payload[2])
            return _array(buffer, payload[1], shape) if code == Ext.ARRAY else _tensor(buffer, payload[1], shape)
        raise ProtocolError(f"a value's header has an unknown part {code}", mend=_PEER)

    def _take(self, index: Any) -> Buffer:
        if type(index) is not int or not 0 <= index < len(self.buffers):
            raise ProtocolError("a value's header names a buffer that did not come", mend=_PEER)
        buffer, self.buffers[index] = self.buffers[index], None
        if buffer is None:
            raise ProtocolError("a value's header uses a buffer twice", mend=_PEER)
        return buffer


def _keyed(pairs: Any) -> dict[Any, Any]:
    good = type(pairs) is list and all(type(pair) is list and len(pair) == 2 for pair in pairs)
    if good and all(type(key) in (str, int) for key, _ in pairs):
        return dict(pairs)
    raise ProtocolError("a dict in a value's header is broken", mend=_PEER)


def _bytes(buffer: Buffer) -> bytes:
    return buffer if type(buffer) is bytes else bytes(buffer)


def _structure(payload: Any) -> Fields:
    good = type(payload) is list and len(payload) == 2 and type(payload[0]) is str and type(payload[1]) is dict
    if good and all(type(name) is str for name in payload[1]):
        return Fields(payload[0], payload[1])
    raise ProtocolError("a structure in a value's header is broken", mend=_PEER)


def _shape(shape: Any) -> tuple[int, ...]:
    if (
        type(shape) is not list
        or len(shape) > 32
        or not all(type(size) is int and 0 <= size < _BOUND for size in shape)
    ):
        raise ProtocolError("an array's shape is broken", mend=_PEER)
    return tuple(shape)


@lru_cache(maxsize=128)
def _simple(described: str) -> np.dtype[Any] | None:
    return np.dtype(described) if _SIMPLE.fullmatch(described) else None


def _dtype(described: Any, depth: int = 0) -> np.dtype[Any]:
    if depth > 8:
        raise ProtocolError("an array's dtype is nested too deeply", mend=_PEER)
    if type(described) is str and (simple := _simple(described)) is not None:
        return simple
    if type(described) is list and len(described) == 2:
        return np.dtype((_dtype(described[0], depth + 1), _shape(described[1])))
    if type(described) is dict and {"names", "formats", "offsets", "itemsize"} <= set(described):
        formats = [_dtype(one, depth + 1) for one in described["formats"]]
        made: np.dtype[Any] = np.dtype(cast(Any, {**described, "formats": formats}))
        return made
    raise ProtocolError("an array's dtype is broken", mend=_PEER)


def _array(buffer: memoryview, described: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    dtype = _dtype(described)
    if dtype.hasobject or dtype.itemsize == 0 or dtype.subdtype is not None:
        raise ProtocolError("an array's dtype is none that may travel", mend=_PEER)
    _fits(buffer, shape, dtype.itemsize)
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, buffer=buffer if buffer.nbytes else None)
    array.flags.writeable = False
    return array


def _fits(buffer: memoryview, shape: tuple[int, ...], itemsize: int) -> None:
    if math.prod(shape) * itemsize != buffer.nbytes:
        raise ProtocolError(f"an array of shape {shape} came with {buffer.nbytes} bytes", mend=_PEER)


TENSOR_TYPES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4, "uint64": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8,
    "complex128": 16,
}  # fmt: skip
"""The tensors that may travel, with the bytes of one element."""


def _tensor(buffer: memoryview, name: Any, shape: tuple[int, ...]) -> Any:
    """A tensor that shares the buffer. Torch has no read-only tensors: whoever writes to it writes to what
    was received.
    """
    if type(name) is not str or name not in TENSOR_TYPES:
        raise ProtocolError("a tensor's dtype is none that may travel", mend=_PEER)
    _fits(buffer, shape, TENSOR_TYPES[name])
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise InvalidValue("a tensor came, but torch is not installed here", mend="pip install torch") from None
    if not buffer.nbytes:
        return torch.empty(shape, dtype=getattr(torch, name))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(buffer, dtype=getattr(torch, name)).reshape(shape)
