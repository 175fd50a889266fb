"""Checkers: strict, without copies, an error names the place; methods: bound by name; the way to JSON and back."""

from __future__ import annotations

import asyncio
import datetime
import enum
import json
import subprocess
import sys
import timeit
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NewType, Optional

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from chains.dsl.annotations import Unsupported
from chains.dsl.chainlet import chainlet, method
from chains.dsl.reader import read
from chains.dsl.signature import Checker
from chains.dsl.specs import Batching
from chains.errors import InvalidValue
from chains.messages import Audio, Control, Tensor, Text, Tokens


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Level(enum.IntEnum):
    LOW = 1


class Name(str):
    pass


@dataclass
class Point:
    x: float
    y: float = 0.0


@dataclass
class Point3(Point):
    z: float = 0.0


@dataclass(frozen=True)
class Cloud:
    points: NDArray[np.float32]
    label: str = ""
    parts: list[Cloud] = field(default_factory=list)
    centre: Point | None = None


class Booking(BaseModel):
    name: str
    seats: int = 1
    when: datetime.date | None = None


class BigBooking(Booking):
    extra: str = ""


UserId = NewType("UserId", int)
AUDIO = Audio(np.zeros(4, np.int16), 16_000)
MODEL = Booking(name="Ana")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, "a"),
        (str, Name("a")),
        (int, 1),
        (int, Level.LOW),
        (int, 2**100),
        (float, 1.5),
        (float, 2),
        (float, np.float64(1)),
        (bool, True),
        (bytes, b"a"),
        (None, None),
        (Optional[int], None),  # noqa: UP045
        (int | None, 3),
        (int | str, "a"),
        (Literal["a", 1], 1),
        (list[int], [1, 2]),
        (list[int], []),
        (list[float], [1, 2.0]),
        (list, [1, "a", None, {"b": [b"c"]}]),
        (dict[str, list[int]], {"a": [1]}),
        (dict[int, str], {1: "a"}),
        (dict[Literal["a"], int], {"a": 1}),
        (dict, {"a": 1, 2: None}),
        (tuple[int, str], (1, "a")),
        (tuple[int, ...], (1, 2, 3)),
        (tuple, (1, "a")),
        (Mood, Mood.BAD),
        (Point, Point(1.0)),
        (list[Point | Booking], [Point(1.0), MODEL]),
        (Booking, MODEL),
        (datetime.date, datetime.date(2030, 1, 1)),
        (UserId, 3),
        (Annotated[int, "a note"], 3),
        (Annotated[int, Field(ge=0)], 3),
        (Audio, AUDIO),
        (Audio | Text | Tokens | Control, Text("a")),
        (np.ndarray, AUDIO.pcm),
        (NDArray[np.int16], AUDIO.pcm),
        (NDArray[np.integer[Any]], AUDIO.pcm),
        (dict[str, Any], {"a": [1, (2, AUDIO.pcm)]}),
    ],
    ids=str,
)
def test_what_fits_comes_back_as_the_same_object(annotation: Any, value: Any) -> None:
    assert Checker(annotation).check(value, "x") is value


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (int, "1", "x is str of length 1, expected int"),
        (int, True, "x is True, expected int"),
        (int, 1.0, "x is float 1.0, expected int"),
        (int, np.int64(1), "x is int64, expected int; write int(value)"),
        (float, True, "x is True, expected float"),
        (float, "1", "x is str of length 1, expected float"),
        (float, np.float32(1), "x is float32, expected float; write float(value)"),
        (bool, 1, "x is int 1, expected bool"),
        (str, 5, "x is int 5, expected str"),
        (str, None, "x is None, expected str"),
        (str, b"a", "x is bytes of length 1, expected str"),
        (bytes, "a", "x is str of length 1, expected bytes"),
        (bytes, bytearray(b"a"), "x is bytearray, expected bytes"),
        (None, 0, "x is int 0, expected None"),
        (int | None, "a", "x is str of length 1, expected int | None"),
        (Literal["a", 1], True, "x is True, expected Literal['a', 1]"),
        (list[int], (1, 2), "x is tuple of length 2, expected list[int]; write list(...)"),
        (list[int], [1, "a"], "x[1] is str of length 1, expected int"),
        (dict[str, list[int]], {"a": [1, 2.5]}, "x['a'][1] is float 2.5, expected int"),
        (dict[str, int], {1: 1}, "x[0] is int 1, expected str"),
        (tuple[int, str], (1,), "x is tuple of length 1, expected tuple[int, str]"),
        (tuple[int, str], (1, 2), "x[1] is int 2, expected str"),
        (tuple[int, ...], [1], "x is list of length 1, expected tuple[int, ...]; write tuple(...)"),
        (Mood, "bad", "x is str of length 3, expected Mood"),
        (Point, {"x": 1.0}, "x is dict of length 1, expected Point"),
        (Point, Point("a"), "x.x is str of length 1, expected float"),  # type: ignore[arg-type]
        (Point, Point3(1.0), "x is Point3, expected Point; write Point3 in the annotation"),
        (Booking, BigBooking(name="a"), "x is BigBooking, expected Booking; write BigBooking in the annotation"),
        (Booking, {"name": "a"}, "x is dict of length 1, expected Booking"),
        (Annotated[int, Field(ge=0)], -1, "x is int -1, expected int (input should be greater than or equal to 0)"),
        (Audio, Text("a"), "x is Text, expected Audio"),
        (Audio | Text, "a", "x is str of length 1, expected Audio | Text"),
        (np.ndarray, [1], "x is list of length 1, expected an array; write numpy.asarray(...)"),
        (np.ndarray, np.array([None]), "x is an array of Python objects, expected an array; give it a dtype"),
        (NDArray[np.float32], np.zeros(3), "x is an array float64 of shape (3,), expected NDArray[float32]"),
        (dict[str, Any], {"a": {1, 2}}, "x['a'] is set, expected plain data; name the type in the annotation"),
        (list[Any], [Point(1.0)], "x[0] is Point, expected plain data"),
        (list, [{1.5: 1}], "x[0] is a dict with a key of type float, expected keys of str or int"),
        (list[Point | Cloud], [Cloud(np.zeros(1, np.int8))], "x[0].points is an array int8 of shape (1,)"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_named_with_its_place(annotation: Any, value: Any, words: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Checker(annotation).check(value, "x")
    assert str(caught.value).startswith(words)


def test_an_error_never_shows_the_text_of_a_value() -> None:
    for annotation in (int, list[int], Audio | Text, Point, Mood, bytes):
        with pytest.raises(InvalidValue) as caught:
            Checker(annotation).check("my card number is 1234", "x")
        assert "1234" not in str(caught.value)


def test_arrays_become_read_only_views_and_the_sender_s_stay_as_they_were() -> None:
    array = np.zeros(3, np.float32)
    inner = [array]
    cloud = Cloud(array, parts=[Cloud(array)])
    values: list[tuple[Any, Any, Callable[[Any], Any]]] = [
        (np.ndarray, array, lambda value: value),
        (list[np.ndarray], inner, lambda value: value[0]),
        (dict[str, Any], {"a": inner}, lambda value: value["a"][0]),
        (tuple[np.ndarray, int], (array, 1), lambda value: value[0]),
        (Cloud, cloud, lambda value: value.points),
        (Cloud, cloud, lambda value: value.parts[0].points),
        (Cloud | None, cloud, lambda value: value.points),
    ]
    for annotation, value, seen in values:
        checker = Checker(annotation)
        assert checker.may_hold_arrays
        view = seen(checker.check(value, "x"))
        assert not view.flags.writeable
        assert np.shares_memory(view, array)
        assert seen(value) is array
    assert array.flags.writeable
    assert cloud.parts[0].points is array


@pytest.mark.parametrize("annotation", [int, str, list[int], Point, Text, Audio, Tensor, dict[str, list[Point]]])
def test_what_can_hold_no_writable_array_says_so(annotation: Any) -> None:
    assert not Checker(annotation).may_hold_arrays


def test_values_that_hold_themselves_are_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    cloud = Cloud(np.zeros(1, np.float32))
    cloud.parts.append(cloud)
    for annotation, value in [(list, loop), (Cloud, cloud), (dict[str, Any], {"a": loop})]:
        with pytest.raises(InvalidValue, match="nested too deeply"):
            Checker(annotation).check(value, "x")


@pytest.mark.parametrize(
    ("annotation", "value", "plain"),
    [
        (int, 5, 5),
        (float, float("nan"), "NaN"),
        (float, float("-inf"), "-Infinity"),
        (bytes, b"\x00\xff", "AP8="),
        (Mood, Mood.BAD, "bad"),
        (Literal["a", "b"], "b", "b"),
        (tuple[int, str], (1, "a"), [1, "a"]),
        (tuple[int, ...], (1, 2), [1, 2]),
        (dict[int, float], {1: 2.0}, {"1": 2.0}),
        (Point, Point(1.0, 2.0), {"x": 1.0, "y": 2.0}),
        (list[Point | None], [Point(1.0), None], [{"x": 1.0, "y": 0.0}, None]),
        (Booking, Booking(name="a", when=datetime.date(2030, 1, 2)), {"name": "a", "seats": 1, "when": "2030-01-02"}),
        (datetime.timedelta, datetime.timedelta(seconds=1.5), "PT1.5S"),
        (Point | Booking, Point(1.0), {"type": "Point", "x": 1.0, "y": 0.0}),
        (Text, Text("hi"), {"text": "hi", "final": True, "turn": 0, "role": "", "start_ms": 0.0, "end_ms": 0.0}),
        (Tokens | Control, Control("hang_up"), {"type": "Control", "kind": "hang_up", "data": {}, "turn": 0}),
        (Tokens, Tokens((1, 2)), {"ids": [1, 2], "text": "", "turn": 0}),
    ],
    ids=str,
)
def test_json_and_back(annotation: Any, value: Any, plain: Any) -> None:
    checker = Checker(annotation)
    assert checker.dump(value) == plain
    back = checker.parse(json.loads(json.dumps(plain, allow_nan=False)), "x")
    assert back == value or value != value
    assert type(back) is type(value)


def test_sound_and_arrays_in_json() -> None:
    audio = Audio(np.arange(4, dtype=np.int16), 16_000, turn=2)
    back = Checker(Audio).parse(json.loads(json.dumps(Checker(Audio).dump(audio))), "x")
    assert back.rate == 16_000
    assert back.turn == 2
    np.testing.assert_array_equal(back.pcm, audio.pcm)
    floats = Checker(NDArray[np.float32]).parse([[1, 2.5], [3, 4]], "x")
    assert floats.dtype == np.float32
    assert floats.shape == (2, 2)
    big = np.arange(6, dtype=">f8").reshape(2, 3)
    np.testing.assert_array_equal(Checker(np.ndarray).parse(Checker(np.ndarray).dump(big), "x"), big)


@pytest.mark.parametrize(
    ("annotation", "plain", "words"),
    [
        (int, "5", "x is str of length 1, expected int"),
        (int, 5.5, "x is float 5.5, expected int"),
        (bytes, "no base64!", "x is str of length 10, expected base64"),
        (Point, {"y": 1.0}, "x is without `x`, expected Point"),
        (Point, {"x": 1.0, "z": 1}, "x is given an unknown field `z`, expected Point with x, y"),
        (Point, [1.0], "x is list of length 1, expected Point (an object with x, y)"),
        (Mood, "awful", "x is str of length 5, expected Mood: 'good' | 'bad'"),
        (Booking, {"seats": "many"}, "x.name is refused: field required, expected Booking"),
        (Booking, {"name": "a", "seats": "many"}, "x.seats is refused: input should be a valid integer"),
        (Audio, {"pcm": [1, 2], "rate": 1}, "x is refused (Audio.rate is 1), expected Audio; give samples per second"),
        (Audio, {"pcm": {"dtype": "object", "shape": [1], "base64": ""}, "rate": 8000}, "x.pcm is an array of object"),
        (np.ndarray, {"dtype": "float32"}, "x is no array (KeyError)"),
        (np.ndarray, {"dtype": "float32", "shape": [3], "base64": "AAAA"}, "x is no array (ValueError)"),
        (np.ndarray, [["a"]], "x is a list of something else than numbers"),
        (np.ndarray, [[1], [1, 2]], "x is no array (ValueError)"),
        (Point | Booking, {"type": "Booking", "x": 1.0}, "x.name is refused: field required"),
        (dict[int, int], {"one": 1}, "x key is str of length 3, expected int"),
        (list[list[int]], [[1], [2, None]], "x[1][1] is None, expected int"),
    ],
    ids=str,
)
def test_json_that_means_nothing(annotation: Any, plain: Any, words: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Checker(annotation).parse(plain, "x")
    assert str(caught.value).startswith(words)


def test_json_s_keys_are_numbers_only_where_they_must_be() -> None:
    assert Checker(dict[int, int]).parse({"1": 1}, "x") == {1: 1}
    assert Checker(dict).parse({"1": 1}, "x") == {"1": 1}
    assert Checker(dict[str | int, int]).parse({"1": 1}, "x") == {"1": 1}


def test_json_s_whole_floats_are_ints() -> None:
    assert Checker(int).parse(5.0, "x") == 5
    assert type(Checker(int).parse(5.0, "x")) is int


def test_schemas() -> None:
    assert Checker(list[int | None]).schema() == {
        "type": "array",
        "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    }
    schema = Checker(Cloud).schema()
    assert schema["$ref"] == "#/$defs/Cloud"
    assert schema["$defs"]["Cloud"]["required"] == ["points"]
    assert schema["$defs"]["Cloud"]["properties"]["parts"]["items"] == {"$ref": "#/$defs/Cloud"}
    assert schema["$defs"]["Point"]["properties"]["x"] == {"type": "number"}
    union = Checker(Point | Booking).schema()
    assert union["anyOf"][1]["allOf"][0]["properties"]["type"] == {"const": "Booking"}
    assert Checker(Annotated[int, Field(ge=0)]).schema()["minimum"] == 0


@pytest.mark.parametrize("annotation", [Any, object, Callable[[], int], set[int], AsyncIterator[int], type, complex])
def test_annotations_that_cannot_cross_a_hop(annotation: Any) -> None:
    with pytest.raises(Unsupported) as caught:
        Checker(annotation)
    assert caught.value.found
    assert caught.value.write


@chainlet
class Ears:
    async def unary(self, text: str, size: int = 3, *, flag: bool = False) -> str:
        """Says it again."""
        return text

    async def stream_out(self, text: str) -> AsyncIterator[Text]:
        yield Text(text)

    def blocking(self, text: str) -> str:
        return text

    def blocking_out(self, text: str) -> Iterator[int]:
        yield 1

    async def stream_in(self, audio: AsyncIterator[Audio], language: str = "en") -> Text:
        return Text("")

    async def both(self, audio: AsyncIterator[Audio | Text], more: AsyncIterator[str]) -> AsyncIterator[Audio | Text]:
        yield Text("")

    def blocking_both(self, audio: Iterator[Audio]) -> Iterator[Text]:
        yield Text("")

    def returned(self, audio: AsyncIterator[Audio]) -> AsyncIterator[Audio]:
        return audio

    @method(idempotent=True, raises=(KeyError,), batch=Batching(size=4))
    def batched(self, texts: list[str], weights: list[float]) -> list[float]:
        return []

    @method
    async def plain_decorator(self) -> None: ...


METHODS, FAULTS = read(Ears)


def test_shapes_are_read_from_annotations() -> None:
    assert FAULTS == []
    shapes = {name: (one.streams_in, one.streams_out, one.blocking) for name, one in METHODS.items()}
    assert shapes == {
        "unary": (False, False, False),
        "stream_out": (False, True, False),
        "blocking": (False, False, True),
        "blocking_out": (False, True, True),
        "stream_in": (True, False, False),
        "both": (True, True, False),
        "blocking_both": (True, True, True),
        "returned": (True, True, False),
        "batched": (False, False, True),
        "plain_decorator": (False, False, False),
    }


def test_a_method_knows_its_name_place_and_words() -> None:
    unary = METHODS["unary"]
    assert unary.label == "Ears.unary"
    assert unary.doc == "Says it again."
    assert unary.where.rpartition(":")[0].endswith("test_signature.py")
    source = __import__("inspect").getsource(sys.modules[__name__]).splitlines()
    assert "async def unary" in source[int(unary.where.rpartition(":")[2]) - 1]
    assert "def batched" in source[int(METHODS["batched"].where.rpartition(":")[2]) - 1]
    assert METHODS["both"].shape == (
        "both(audio: stream of Audio | Text, more: stream of str) -> stream of Audio | Text"
    )
    assert unary.shape == "unary(text: str, size: int = 3, flag: bool = False) -> str"


def test_a_batched_method_is_called_with_one_item() -> None:
    batched = METHODS["batched"]
    assert (batched.batch, batched.idempotent, batched.raises) == (Batching(size=4), True, (KeyError,))
    assert batched.bind(("a", 1.0), {}) == {"texts": "a", "weights": 1.0}
    assert batched.result.annotation is float


def test_binding_fills_defaults_and_goes_by_name() -> None:
    unary = METHODS["unary"]
    assert unary.bind(("a",), {}) == {"text": "a", "size": 3, "flag": False}
    assert unary.bind((), {"flag": True, "text": "a"}) == {"text": "a", "size": 3, "flag": True}
    assert METHODS["plain_decorator"].bind((), {}) == {}


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "Ears.unary() was called without `text`; write unary(text: str, size: int = 3, flag: bool = False)"),
        ((1, 2, 3, 4), {}, "Ears.unary() takes 3 arguments, 4 were given; write unary("),
        (("a",), {"text": "b"}, "Ears.unary() was given `text` twice"),
        (("a",), {"sise": 1}, "Ears.unary() has no parameter `sise`; write unary("),
        ((1,), {}, "Ears.unary(text=) is int 1, expected str"),
        (("a", True), {}, "Ears.unary(size=) is True, expected int"),
    ],
)
def test_a_call_that_does_not_fit(args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        METHODS["unary"].bind(args, kwargs)
    assert str(caught.value).startswith(words)


async def test_a_stream_argument_must_be_a_stream() -> None:
    async def audio() -> AsyncIterator[Audio]:
        yield AUDIO

    stream = audio()
    bound = METHODS["stream_in"].bind((stream,), {})
    assert bound == {"audio": stream, "language": "en"}
    await stream.aclose()  # type: ignore[attr-defined]
    for items in ([AUDIO], iter([AUDIO])):  # code in a thread has plain iterators
        assert METHODS["stream_in"].bind((items,), {})["audio"] is items
    for wrong in ("text", AUDIO, 7, {"a": AUDIO}, asyncio.Queue()):
        with pytest.raises(
            InvalidValue, match=r"Ears.stream_in\(audio=\) is .*, expected a stream of Audio; pass an async iterator"
        ):
            METHODS["stream_in"].bind((wrong,), {})


def test_a_method_s_schema_is_plain_json() -> None:
    schema = json.loads(json.dumps(METHODS["stream_in"].schema()))
    assert schema["params"]["audio"]["stream"] is True
    assert schema["params"]["audio"]["required"] is True
    assert schema["params"]["language"] == {"schema": {"type": "string"}, "stream": False, "required": False}
    assert schema["result"]["stream"] is False


def best_us(act: Callable[[], Any]) -> float:
    return min(timeit.repeat(act, number=2000, repeat=7)) / 2000 * 1e6


def test_a_check_costs_less_than_a_microsecond_and_a_bind_less_than_five() -> None:
    text, checker = Text("a"), Checker(Audio | Text)
    assert best_us(lambda: checker.check(text, "x")) < 1.0
    assert best_us(lambda: Checker.check(checker, text, "x")) < 1.0
    assert best_us(lambda: METHODS["blocking"].bind(("a",), {})) < 5.0


def test_a_long_list_of_numbers_is_checked_quickly() -> None:
    numbers = [1.0] * 100_000
    checker = Checker(list[float])
    assert min(timeit.repeat(lambda: checker.check(numbers, "x"), number=1, repeat=5)) < 0.02


def test_reading_annotations_imports_neither_pydantic_nor_torch() -> None:
    code = (
        "import sys; from chains.dsl.chainlet import chainlet, depends; from chains.dsl.graph import build\n"
        "@chainlet\nclass A:\n    async def f(self, x: int) -> list[str]: return []\n"
        "build(A); print([name for name in ('pydantic', 'torch', 'ray', 'grpc') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
