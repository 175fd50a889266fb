# ruff: noqa
# mypy: ignore-errors
"""Annotations that are missing, or that no value can have that crosses a hop."""

import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, TypeVar

import numpy as np

from chains.dsl.chainlet import chainlet, depends
from chains.messages import Audio, Text

T = TypeVar("T")


class Row(NamedTuple):
    a: int


class Table(TypedDict):
    a: int


@dataclass
class Wrapper:
    connection: socket.socket


@dataclass
class Outer:
    inner: list[Wrapper]


class Other:
    @dataclass
    class Text:
        text: str


@chainlet
class Helper:
    async def help(self, text: str) -> str:
        return text


@chainlet(entry=True)
class Annotated:
    helper: Helper = depends(Helper)

    async def bare(self, text, count=3, *, flag: bool = False):
        #! (Annotated.bare) has no annotation on `text`, `count` and no return annotation; write async def bare(self, text: str, count: int = 3, *, flag: bool = False) -> str, or name it _bare to keep it private
        return text

    def nothing(self):
        #! (Annotated.nothing) has no return annotation; write def nothing(self) -> None, or name it _nothing to keep it private
        pass

    async def some(self, text) -> AsyncIterator[Text]:
        #! (Annotated.some) has no annotation on `text`; write async def some(self, text: str) -> AsyncIterator[Text], or name it _some to keep it private
        yield Text(text)

    def items(self, texts: list[str]):
        #! (Annotated.items) has no return annotation; write def items(self, texts: list[str]) -> Iterator[str], or name it _items to keep it private
        yield from texts

    async def anything(self, value: object, other: Any) -> Any:
        #! (Annotated.anything) parameter `value` is `object`; name the type that flows, e.g. str or a dataclass
        #! (Annotated.anything) parameter `other` is `Any`; name the type that flows, e.g. str or a dataclass
        #! (Annotated.anything) result is `Any`; name the type that flows, e.g. str or a dataclass
        return value

    async def streams(self, audio: AsyncIterator[object], text: AsyncIterator) -> AsyncIterator[Any]:
        #! (Annotated.streams) parameter `audio` takes `object`; stream a message type, e.g. AsyncIterator[Audio]
        #! (Annotated.streams) parameter `text` takes `Any`; stream a message type, e.g. AsyncIterator[Audio]
        #! (Annotated.streams) yields `Any`; stream a message type, e.g. AsyncIterator[Audio]
        yield audio

    async def nested(self, audio: list[AsyncIterator[Audio]], late: AsyncIterator[Audio] | None = None) -> str:
        #! (Annotated.nested) parameter `audio` has a stream inside another type, `AsyncIterator[Audio]`; make the stream a parameter or a result of its own
        #! (Annotated.nested) parameter `late` has a stream inside another type, `AsyncIterator[Audio]`; make the stream a parameter or a result of its own
        return ""

    async def twice(self, audio: AsyncIterator[AsyncIterator[Audio]]) -> AsyncIterator[list[Iterator[int]]]:
        #! (Annotated.twice) parameter `audio` takes a stream of streams; stream a message type, e.g. AsyncIterator[Audio]
        #! (Annotated.twice) result has a stream inside another type, `Iterator[int]`; make the stream a parameter or a result of its own
        yield []

    async def code(self, act: Callable[[int], int], name: str = 3) -> str:
        #! (Annotated.code) parameter `act` is `Callable[[int], int]`: code cannot cross a hop; name what to do, e.g. Literal["upper", "lower"]
        #! (Annotated.code) parameter `name` is `str`, its default 3; write name: int = 3
        return ""

    async def wire(self, connection: socket.socket, wrapped: Outer) -> str:
        #! (Annotated.wire) parameter `connection` is `socket`, which cannot cross a hop; send plain data: a dataclass, a pydantic model, list, dict, str
        #! (Annotated.wire) parameter `wrapped` is `Outer`, whose field `inner` is `Wrapper`, whose field `connection` is `socket`, which cannot cross a hop; send plain data: a dataclass, a pydantic model, list, dict, str
        return ""

    async def sets(self, tags: set[str], more: Sequence[int], table: Mapping[str, int], raw: bytearray) -> frozenset:
        #! (Annotated.sets) parameter `tags` is `set[str]`; write list[str]
        #! (Annotated.sets) parameter `more` is `Sequence[int]`; write list[int]
        #! (Annotated.sets) parameter `table` is `Mapping[str, int]`; write dict[str, int]
        #! (Annotated.sets) parameter `raw` is `bytearray`; write bytes
        #! (Annotated.sets) result is `frozenset`; write list[str]
        return frozenset()

    async def rows(self, row: Row, table: Table, number: np.float32, keys: dict[float, str], z: complex) -> T:
        #! (Annotated.rows) parameter `row` is `Row`; write it as a dataclass: @dataclass class Row
        #! (Annotated.rows) parameter `table` is `Table`; write it as a dataclass: @dataclass class Table
        #! (Annotated.rows) parameter `number` is `float32`, a scalar of numpy; write float
        #! (Annotated.rows) parameter `keys` has keys of `float`; use keys of str or int, e.g. dict[str, float]
        #! (Annotated.rows) parameter `z` is `complex`; write tuple[float, float]
        #! (Annotated.rows) result is the type variable `T`; name the type that flows
        return row

    async def itself(self, helper: Helper) -> Text | Other.Text:
        #! (Annotated.itself) parameter `helper` is the chainlet `Helper`: it is no value; depend on it, helper: Helper = depends(Helper)
        #! (Annotated.itself) result is `Text | Text`, two structures of one name; give one of the two classes another name
        return Text("")

    async def several(self, *texts: str, **options: int) -> str:
        #! (Annotated.several) takes `*texts`; name each parameter, or take a list or a dict
        #! (Annotated.several) takes `**options`; name each parameter, or take a list or a dict
        return ""

    async def placed(self, text: str, /) -> str:
        #! (Annotated.placed) parameter `text` is positional only; leave out the `/`, since arguments travel by name
        return text

    async def optional(self, text: str = None, size: int = 1.5) -> str:
        #! (Annotated.optional) parameter `text` is `str`, its default None; write text: str | None = None
        #! (Annotated.optional) parameter `size` is `int`, its default 1.5; write size: float = 1.5
        return text

    def noself() -> str:
        #! (Annotated.noself) has no `self`; write def noself(self)
        return ""

    async def iterable(self, texts: list[Iterable[str]]) -> str:
        #! (Annotated.iterable) parameter `texts` is `Iterable[str]`; write list[str]
        return ""
