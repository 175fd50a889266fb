# ruff: noqa
# mypy: ignore-errors
"""Methods whose body is not what their annotations say; hooks that are none; options of methods that make no sense."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator

from chains.dsl.chainlet import chainlet, method
from chains.dsl.specs import Batching
from chains.messages import Audio


class Base:
    def helper(self, whatever):
        """Of a base that is no chainlet, so not callable from outside and no fault."""

    @method
    async def marked(self, text) -> str:
        #! (Shapes.marked) has no annotation on `text`; write async def marked(self, text: str) -> str, or name it _marked to keep it private
        return text


@chainlet(entry=True)
class Shapes(Base):
    def sync_as_async(self, n: int) -> AsyncIterator[int]:
        #! (Shapes.sync_as_async) is a plain `def` that yields, but its result is `AsyncIterator[int]`; write -> Iterator[int], or make it async def sync_as_async
        yield n

    async def async_as_sync(self, n: int) -> Iterator[int]:
        #! (Shapes.async_as_sync) is an `async def` that yields, but its result is `Iterator[int]`; write -> AsyncIterator[int]
        yield n

    async def async_as_value(self, n: int) -> int:
        #! (Shapes.async_as_value) yields, but its result is `int`; write -> AsyncIterator[int]
        yield n

    def sync_as_value(self, n: int) -> list[int]:
        #! (Shapes.sync_as_value) yields, but its result is `list[int]`; write -> Iterator[int]
        yield n

    async def never_yields(self, n: int) -> AsyncGenerator[int, None]:
        #! (Shapes.never_yields) is an `async def` without `yield`, but its result is `AsyncGenerator[int, None]`; yield the items, or write def never_yields
        return other(n)

    def blocking_reads_async(self, audio: AsyncIterator[Audio]) -> int:
        #! (Shapes.blocking_reads_async) parameter `audio` is `AsyncIterator[Audio]`, which a plain `def` cannot read; write audio: Iterator[Audio], or make it async def blocking_reads_async
        return 0

    async def async_reads_blocking(self, audio: Iterator[Audio]) -> int:
        #! (Shapes.async_reads_blocking) parameter `audio` is `Iterator[Audio]`, which an `async def` cannot read without blocking; write audio: AsyncIterator[Audio]
        return 0

    def fine_blocking(self, audio: Iterator[Audio]) -> Generator[int, None, None]:
        yield 1

    def fine_returned(self, audio: AsyncIterator[Audio]) -> AsyncIterator[Audio]:
        return audio

    def load(self, path: str) -> None:
        #! (Shapes.load) takes arguments, but `load` is a hook that is called without any; write def load(self)
        pass

    @method(idempotent=True)
    async def warm(self) -> AsyncIterator[int]:
        #! (Shapes.warm) yields, but `warm` is a hook that is called once; return instead, or call the method otherwise
        #! (Shapes.warm) is marked @method, but `warm` is a hook and never called from outside; call the method otherwise
        yield 1

    @method(batch=Batching(size=2))
    def batched(self, text: str, rows: list[int]) -> float:
        #! (Shapes.batched) is batched, but its parameter `text` is `str`; write list[str], one item a call
        #! (Shapes.batched) is batched, but its result is `float`; write list[float], one item a call
        return 0.0

    @method(batch=Batching())
    async def batched_streams(self, audio: AsyncIterator[Audio]) -> AsyncIterator[int]:
        #! (Shapes.batched_streams) parameter `audio` is a stream, but the method is batched; take lists, or leave out batch=
        #! (Shapes.batched_streams) streams its result, but the method is batched; return a list, or leave out batch=
        yield 1

    @method(batch=8, raises=(KeyError, int), idempotent="yes", retries=3)
    async def options(self, text: str) -> str:
        #! (Shapes.options) has an unknown setting @method(retries=...); known are idempotent, raises, batch, prefix
        #! (Shapes.options) lists int in raises=, which is no exception; write e.g. raises=(KeyError,)
        #! (Shapes.options) has @method(idempotent='yes'); write idempotent=True
        #! (Shapes.options) has @method(batch=8); write batch=Batching(size=8, wait_ms=5)
        return text

    @method(raises=ValueError("no"))
    async def raising(self, text: str) -> str:
        #! (Shapes.raising) lists ValueError('no') in raises=, which is no exception; write e.g. raises=(KeyError,)
        return text
