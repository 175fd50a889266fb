# ruff: noqa: E501 - tables of hostile headers read best a line each
"""The codec: every value comes back as it was, without copies, and no bytes of a peer make it fail in another way."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from chains.dsl.kind import DEPTH
from chains.dsl.signature import Checker
from chains.errors import InvalidValue, ProtocolError
from chains.messages import Audio, Control, Tensor, Text, Tokens
from chains.wire.codec import INLINE, TENSOR_TYPES, Ext, decode, encode

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

TENSOR: Any = torch.Tensor if torch else np.ndarray
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


@dataclass(frozen=True)
class Point:
    x: float
    y: float = 0.0
    tags: list[str] = field(default_factory=list)


@dataclass
class Picture:
    pixels: NDArray[np.uint8]
    at: Point
    parts: tuple[Point, ...] = ()
    colour: Colour = Colour.RED
    next: Picture | None = None


@dataclass
class Positive:
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise KeyError("no negatives here")


class Booking(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    name: str
    when: datetime.datetime
    seats: set[int] = set()
    price: decimal.Decimal = decimal.Decimal("1.5")
    face: np.ndarray | None = None
    inner: Point | None = None
    alias: int = Field(default=1, alias="als")


class Odd(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def odd(cls, number: int) -> int:
        if number % 2 == 0:
            raise ValueError("must be odd")
        return number


def over(value: Any, annotation: Any) -> Any:
    """A value after its journey: the buffers arrive in memory of their own, as from a socket."""
    sent = encode(value, Checker(annotation))
    return decode(bytes(sent.header), [bytes(buffer) for buffer in sent.buffers], Checker(annotation), "x")


def same(one: Any, other: Any) -> bool:
    """Equal in type and value, where NaN equals NaN and arrays are compared by their bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        little = one.dtype.newbyteorder("<")
        return one.shape == other.shape and other.dtype == little and one.astype(little).tobytes() == other.tobytes()
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if hasattr(one, "__dataclass_fields__"):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)
    return bool(one == other)


texts = st.text(st.characters(codec=None), max_size=30)  # lone surrogates too
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**200), 2**200), st.floats(), texts, st.binary(max_size=3 * INLINE)
)
plain = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(texts, st.integers(-(2**70), 2**70)), inner, max_size=4),
    ),
    max_leaves=20,
)
dtypes = st.one_of(
    hnp.scalar_dtypes(),
    hnp.byte_string_dtypes(min_len=1),
    hnp.unicode_string_dtypes(min_len=1),
    hnp.array_dtypes(allow_subarrays=True),
).filter(lambda dtype: dtype.itemsize > 0 and not dtype.hasobject and dtype.subdtype is None)
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype, shape = draw(dtypes), draw(shapes)
    size = math.prod(shape) * dtype.itemsize
    array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype=np.uint8)
    array = np.ndarray(shape, dtype, buffer=array.data if size else None)
    turned = draw(st.sampled_from(["as it is", "transposed", "every second", "reversed"]))
    if turned == "transposed":
        return array.T
    if turned == "every second" and array.ndim:
        return array[::2]
    return array[..., ::-1] if turned == "reversed" and array.ndim else array


@quick
@given(plain)
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    assert same([value], over([value], list[Any]))


@quick
@given(arrays())
def test_every_array_comes_back_with_its_shape_and_bits_and_read_only(array: np.ndarray) -> None:
    back = over(array, np.ndarray)
    assert same(array, back)
    assert not back.flags.writeable


@quick
@given(
    st.sampled_from(
        [bool, np.float16, ">f4", ">i8", "<M8[ms]", "m8[ns]", np.complex128, np.longdouble, "S3", "U2", "V5"]
    ),
    shapes,
)
def test_dtypes_that_are_easily_forgotten(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype)
    assert same(array, over(array, np.ndarray))


@quick
@given(st.floats(), st.lists(st.integers(), max_size=3), texts, st.sampled_from(Colour), arrays())
def test_dataclasses_in_dataclasses(x: float, _: list[int], tag: str, colour: Colour, array: np.ndarray) -> None:
    pixels = np.frombuffer(array.tobytes(), np.uint8)
    value = Picture(pixels, Point(x, 1.0, [tag]), (Point(2.0), Point(x)), colour, Picture(pixels[:1], Point(0.0)))
    assert same(over(value, Picture), Picture(**value.__dict__))


@quick
@given(
    st.one_of(
        st.builds(
            Audio,
            hnp.arrays(np.int16, st.integers(0, 50)),
            st.integers(4_000, 192_000),
            st.integers(0, 2**70),
            texts,
        ),
        st.builds(Text, texts, st.booleans(), st.integers(), texts, st.floats(), st.floats()),
        st.builds(Tokens, st.lists(st.integers(0, 2**31)).map(tuple), texts, st.integers(0, 9)),
        st.builds(Tensor, hnp.arrays(hnp.scalar_dtypes(), shapes), texts),
        st.builds(Control, texts, st.dictionaries(texts, plain, max_size=3)),
    )
)
def test_messages_in_a_union_come_back_as_what_they_were(message: Any) -> None:
    back = over(message, Audio | Text | Tokens | Tensor | Control)
    assert type(back) is type(message)
    assert same(message, back)


def test_pydantic_models_with_what_json_has_no_word_for() -> None:
    when = datetime.datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    booking = Booking(name="Ana", when=when, seats={3, 1}, face=np.arange(6).reshape(2, 3), inner=Point(1.0), als=7)
    back = over(booking, Booking)
    assert isinstance(back.face, np.ndarray)
    assert same(booking.face, back.face)
    assert (back.name, back.when, back.seats, back.price, back.inner, back.alias) == (
        "Ana", when, {1, 3}, decimal.Decimal("1.5"), Point(1.0), 7,
    )  # fmt: skip
    assert back.when.utcoffset() == when.utcoffset()


@pytest.mark.parametrize(
    "value",
    [
        datetime.date(2030, 1, 2),
        datetime.datetime(2030, 1, 2, 3, 4, 5, 6),
        datetime.time(1, 2, 3),
        datetime.timedelta(days=400, microseconds=7),
        datetime.timedelta(seconds=-1),
        uuid.UUID(int=5),
        decimal.Decimal("0.10"),
        Colour.BLUE,
    ],
    ids=repr,
)
def test_scalars_of_the_standard_library(value: Any) -> None:
    assert over(value, type(value)) == value


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ("b", Literal["a", "b"]),
        (None, int | None),
        ({"a": [1, 2]}, dict[str, list[int]]),
        ({3: (1, "x")}, dict[int, tuple[int, str]]),
        ((1, 2, 3), tuple[int, ...]),
        ([Point(1.0), Text("x")], list[Point | Text]),
        (5, float | int),
        ((1,), list[int] | tuple[int, ...]),
    ],
    ids=str,
)
def test_containers_keep_their_types(value: Any, annotation: Any) -> None:
    assert same(value, over(value, annotation))


def test_arrays_are_not_copied_on_either_side() -> None:
    array = np.arange(100_000, dtype=np.float32)
    sent = encode([array, b"x" * 5000], Checker(list[Any]))
    assert len(sent.header) < 100
    assert np.shares_memory(np.frombuffer(sent.buffers[0], np.float32), array)
    assert all(buffer.readonly for buffer in sent.buffers)
    received = bytes(sent.buffers[0])
    back, tail = decode(sent.header, [memoryview(received), sent.buffers[1]], Checker(list[Any]))
    assert np.shares_memory(back, np.frombuffer(received, np.uint8))
    assert tail == b"x" * 5000
    assert sent.nbytes == len(sent.header) + 405_000


def test_short_bytes_travel_in_the_header_and_long_ones_beside_it() -> None:
    assert [len(encode(b"x" * size).buffers) for size in (INLINE, INLINE + 1)] == [0, 1]


needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed: tensors are not tested")


@needs_torch
@pytest.mark.parametrize("name", sorted(TENSOR_TYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 2), (2, 3)], ids=str)
def test_tensors_of_every_type_and_shape(name: str, shape: tuple[int, ...]) -> None:
    dtype = getattr(torch, name)
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    back = over(tensor, torch.Tensor)
    assert (back.dtype, tuple(back.shape)) == (dtype, shape)
    assert bytes(encode(back).buffers[0]) == bytes(encode(tensor).buffers[0])


@needs_torch
def test_tensors_that_are_views_or_carry_gradients() -> None:
    with pytest.raises(InvalidValue, match="sparse"):
        encode(torch.eye(2).to_sparse())
    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3).requires_grad_()
    assert torch.equal(over(tensor.T, torch.Tensor), tensor.detach().T)
    complex_tensor = torch.tensor([1 + 2j]).conj()
    assert torch.equal(over(complex_tensor, torch.Tensor), complex_tensor)


@needs_torch
def test_a_tensor_shares_the_receiver_s_memory() -> None:
    sent = encode(torch.arange(4, dtype=torch.bfloat16))
    received = bytearray(sent.buffers[0])
    back = decode(sent.header, [received], Checker(torch.Tensor))
    received[0:2] = bytes(torch.tensor([5.0]).bfloat16().view(torch.uint8).numpy())
    assert back[0] == 5.0


def test_the_codec_does_not_import_torch_by_itself() -> None:
    code = (
        "import sys; from chains.wire.codec import encode, decode; from chains.dsl.signature import Checker; import numpy;"
        "decode(*(lambda e: (e.header, e.buffers))(encode(numpy.ones(3))), Checker(numpy.ndarray)); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "type object"),
        (np.float32(1), "write value.item()"),
        ({(1, 2): 3}, "keys of str or int"),
        ({True: 3}, "keys of str or int"),
        (np.array([object()]), "dtype of numbers"),
        (np.ma.masked_array([1], [True]), "a masked array"),
        (1 << 40_000, "bits"),
        (lambda: 1, "type function"),
    ],
    ids=lambda value: str(type(value)),
)
def test_what_cannot_travel_is_refused_with_the_mend(value: Any, words: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        encode([value])
    assert words in str(caught.value)
    assert caught.value.mend


def nested(levels: int, inner: Any = 1) -> Any:
    for _ in range(levels):
        inner = [inner]
    return inner


@pytest.mark.parametrize("levels", [DEPTH + 2, 500, 5000])
@pytest.mark.parametrize("around", [lambda inner: [inner], lambda inner: (inner,), lambda inner: {"a": inner}])
def test_very_deep_nesting_is_refused_with_a_clear_error(levels: int, around: Any) -> None:
    value: Any = "x" * 2000 + "\ud800"
    for _ in range(levels):
        value = around(value)
    with pytest.raises(InvalidValue, match="nested"):
        encode(value)


def test_nesting_up_to_the_limit_passes() -> None:
    assert over(nested(DEPTH), list) == nested(DEPTH)
    value: Any = 1
    for _ in range(DEPTH):
        value = (value,)
    assert over([value], list) == [value]


def header(tree: Any, count: int = 1) -> bytes:
    return msgspec.msgpack.encode([count, tree])


def part(code: int, payload: Any) -> Any:
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(payload))


BROKEN = {
    "empty": b"",
    "no pair": msgspec.msgpack.encode(3),
    "a wrong number of buffers": header(1, 7),
    "an index out of range": header(part(Ext.ARRAY, [1, "<f4", [2]])),
    "a negative index": header(part(Ext.ARRAY, [-1, "<f4", [2]])),
    "an index that is a bool": header(part(Ext.ARRAY, [False, "<f4", [2]])),
    "a shape too large": header(part(Ext.ARRAY, [0, "<f4", [3]])),
    "a shape too small": header(part(Ext.ARRAY, [0, "<f4", [1]])),
    "a negative shape": header(part(Ext.ARRAY, [0, "<f4", [-2, -1]])),
    "a huge shape": header(part(Ext.ARRAY, [0, "<f4", [2**39, 2**39]])),
    "a shape beyond 64 bits": header(part(Ext.ARRAY, [0, "<f4", [2**63]])),
    "a huge empty shape": header(part(Ext.ARRAY, [0, "<f4", [0, 2**62, 2**62]])),
    "a shape of floats": header(part(Ext.ARRAY, [0, "<f4", [2.0]])),
    "too many dimensions": header(part(Ext.ARRAY, [0, "<f4", [1] * 70 + [2]])),
    "dtype object": header(part(Ext.ARRAY, [0, "|O", [1]])),
    "dtype object by name": header(part(Ext.ARRAY, [0, "object", [1]])),
    "dtype of no size": header(part(Ext.ARRAY, [0, "|S0", [8]])),
    "dtype with commas": header(part(Ext.ARRAY, [0, "<f4,<f4", [1]])),
    "dtype with a huge size": header(part(Ext.ARRAY, [0, "|V999999999999", [1]])),
    "dtype with an unknown unit": header(part(Ext.ARRAY, [0, "<M8[abc]", [1]])),
    "dtype that is a number": header(part(Ext.ARRAY, [0, 3, [1]])),
    "a field of objects": header(part(Ext.ARRAY, [0, {"names": ["a"], "formats": ["|O"], "offsets": [0], "itemsize": 8}, [1]])),
    "a field outside": header(part(Ext.ARRAY, [0, {"names": ["a"], "formats": ["<f4"], "offsets": [90], "itemsize": 8}, [1]])),
    "a field before": header(part(Ext.ARRAY, [0, {"names": ["a"], "formats": ["<f4"], "offsets": [-9], "itemsize": 8}, [1]])),
    "a field twice": header(part(Ext.ARRAY, [0, {"names": ["a", "a"], "formats": ["<f4"] * 2, "offsets": [0, 4], "itemsize": 8}, [1]])),
    "names that are none": header(part(Ext.ARRAY, [0, {"names": 3, "formats": 3, "offsets": 3, "itemsize": 8}, [1]])),
    "a buffer used twice": header([part(Ext.BYTES, 0), part(Ext.BYTES, 0)]),
    "a part of bytes that names none": header(part(Ext.BYTES, "0")),
    "an unknown part": header(part(99, 1)),
    "a part cut short": header(msgspec.msgpack.Ext(Ext.ARRAY, b"\x93\x00")),
    "an integer too long": header(msgspec.msgpack.Ext(Ext.INT, b"\x01" * 10_000)),
    "text that is no UTF-8": header(msgspec.msgpack.Ext(Ext.TEXT, b"\xff\xff")),
    "a tuple that is none": header(part(Ext.TUPLE, 3)),
    "a dict of no pairs": header(part(Ext.KEYED, [[1, 2], [3]])),
    "a dict whose key is a list": header(part(Ext.KEYED, [[[1], 2]])),
    "a structure without fields": header(part(Ext.STRUCTURE, ["Text"])),
    "a structure with fields of numbers": header(part(Ext.STRUCTURE, ["Text", {1: 2}])),
    "a structure whose name is none": header(part(Ext.STRUCTURE, [None, {}])),
    "a tensor of an unknown type": header(part(Ext.TENSOR, [0, "load", [8]])),
    "a tensor of another size": header(part(Ext.TENSOR, [0, "bfloat16", [8]])),
    "trailing bytes": header(1) + b"\x00",
    "a million arrays": b"\x92\x01" + b"\x91" * 1_000_000,
    "an array that claims to be huge": b"\xdd\xff\xff\xff\xff",
    "a list as a key": b"\x92\x01\x81\x91\x01\x02",
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_hostile_header_is_a_protocol_error(name: str) -> None:
    with pytest.raises((ProtocolError, InvalidValue)) as caught:
        decode(BROKEN[name], [b"12345678"], Checker(np.ndarray | Text | list[Any] | dict[str, Any] | bytes))
    assert isinstance(caught.value, ProtocolError) or name == "a list as a key"


def test_deep_structures_of_a_peer_are_refused() -> None:
    tree: Any = 1
    for _ in range(DEPTH + 10):
        tree = part(Ext.TUPLE, [tree])
    with pytest.raises(ProtocolError, match="nested"):
        decode(header(tree, 0), [], Checker(list[Any]))
    with pytest.raises(InvalidValue, match="nested"):
        decode(header(nested(200), 0), [], Checker(list[Any]))


ANY = Checker(list[Any] | Picture | Booking | Audio | Text | np.ndarray | TENSOR | int | bytes | Odd | Colour)


def never_fails_otherwise(data: bytes, buffers: list[bytes]) -> None:
    try:
        decode(data, buffers, ANY)
    except (ProtocolError, InvalidValue) as error:
        assert str(error)


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200), st.lists(st.binary(max_size=20), max_size=3))
def test_random_bytes(data: bytes, buffers: list[bytes]) -> None:
    never_fails_otherwise(data, buffers)
    never_fails_otherwise(bytes([0x92, len(buffers)]) + data, buffers)


payloads = st.recursive(
    st.one_of(
        st.none(), st.integers(-5, 9), st.floats(), st.binary(max_size=4), st.integers(-(2**63), 2**64 - 1),
        st.sampled_from(["<f4", "<i2", "|b1", "<M8[s]", "Text", "Picture", "pcm", "rate", "text", "bfloat16", "number", "Odd", "red"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["pcm", "rate", "text", "pixels", "at", "x", "number", "when", "name", "size"]), inner, max_size=4),
        st.builds(part, st.integers(-3, 9), inner),
        st.builds(lambda name, fields: part(Ext.STRUCTURE, [name, fields]), st.sampled_from(["Text", "Audio", "Picture", "Booking", "Odd"]),
                  st.dictionaries(st.sampled_from(["pcm", "rate", "text", "pixels", "at", "number", "when", "name"]), inner, max_size=4)),
        st.builds(lambda dtype, shape: part(Ext.ARRAY, [0, dtype, shape]), st.sampled_from(["<f4", "<i2", "|O", "<M8", "|V8"]),
                  st.lists(st.integers(-1, 4), max_size=3)),
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(payloads, st.binary(max_size=16))
def test_well_formed_headers_that_mean_nothing(tree: Any, buffer: bytes) -> None:
    never_fails_otherwise(header(tree), [buffer])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_good_header_with_some_bytes_changed(data: st.DataObject) -> None:
    value = Picture(np.zeros(4, np.uint8), Point(1.0, 2.0, ["a"]), (Point(3.0),))
    sent = encode(value)
    broken = bytearray(sent.header)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    never_fails_otherwise(
        bytes(broken[: data.draw(st.integers(0, len(broken)))] if data.draw(st.booleans()) else broken), [b"1234"]
    )


@pytest.mark.parametrize(
    ("value", "annotation", "words"),
    [
        ("5", int, "is str of length 1, expected int"),
        (5, str, "is int 5, expected str"),
        (True, int, "is True, expected int"),
        (Text("a"), Tokens, "is a structure `Text`, expected Tokens"),
        ({"x": 1.0}, Point, "is dict of length 1, expected Point"),
        (Point(1.0), dict[str, float], "is a structure `Point`"),
        (Text("a"), Audio | Tokens, "is a structure `Text`, expected Audio | Tokens"),
        ("QUJD", bytes, "expected bytes"),
        ([1], tuple[int, ...], "expected tuple[int, ...]"),
        (np.zeros(2, np.int16), NDArray[np.float32], "is an array int16 of shape (2,), expected NDArray[float32]"),
        ([Point("a")], list[Point], "[0].x is str of length 1, expected float"),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_the_receiver_s_annotation_decides(value: Any, annotation: Any, words: str) -> None:
    sent = encode(value)
    with pytest.raises(InvalidValue) as caught:
        decode(sent.header, sent.buffers, Checker(annotation), "Ears.hear(x=)")
    assert words in str(caught.value)
    assert str(caught.value).startswith("Ears.hear(x=)")


def test_a_class_s_own_refusals_come_as_invalid_values() -> None:
    broken = Positive(1)
    broken.number = -1
    for value, annotation, words in [
        (broken, Positive, "refused by its own __post_init__ (KeyError)"),
        (Odd.model_construct(number=2), Odd, ".number is refused: value error, must be odd"),
    ]:
        sent = encode(value)
        with pytest.raises(InvalidValue) as caught:
            decode(sent.header, sent.buffers, Checker(annotation), "x")
        assert words in str(caught.value)


def test_unknown_and_missing_fields_are_named() -> None:
    for fields, words in [({"x": 1.0, "z": 2}, "unknown field `z`"), ({"y": 1.0}, "without `x`")]:
        with pytest.raises(InvalidValue) as caught:
            decode(header(part(Ext.STRUCTURE, ["Point", fields]), 0), [], Checker(Point), "p")
        assert words in str(caught.value)


def test_encode_checks_first_where_a_checker_is_given() -> None:
    with pytest.raises(InvalidValue, match="the value is str of length 1, expected int"):
        encode("5", Checker(int))
