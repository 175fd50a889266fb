"""A bounded stream: items, credit in bytes, and exactly one end.

The producer sends while it has credit; one item is always admitted, whatever its size. Credit returns when the
consumer's code takes the item, so a slow consumer holds up its own producer and nobody else.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from chains.errors import Cancelled, SettingError
from chains.messages import Audio, Tensor, Text

T = TypeVar("T")
WINDOW = 256 * 1024
SMALL = 64


@dataclass(frozen=True, slots=True)
class End:
    """How a stream ended: DONE, ERROR (with the error as its reader will see it) or CANCELLED (with the reason)."""

    kind: Literal["done", "error", "cancelled"]
    error: BaseException | None = None
    reason: str = ""


DONE = End("done")


class Channel(Generic[T]):
    """A stream with one producer side and one consumer side on the same event loop.

    `window` is the credit in bytes. `queued` is what lies in it now, `peak` the most that ever did.
    `async for item in channel` ends on DONE, raises what an ERROR carries, and Cancelled on CANCELLED.
    """

    __slots__ = ("_end", "_getters", "_held", "_items", "_putters", "peak", "queued", "window")

    def __init__(self, window: int = WINDOW) -> None:
        if window < 1:
            raise SettingError(f"window is {window}", mend="give at least 1 byte of credit")
        self.window = window
        self.queued = 0
        self.peak = 0
        self._items: deque[tuple[T, int]] = deque()
        self._end: End | None = None
        self._held = False
        self._getters: deque[asyncio.Future[None]] = deque()
        self._putters: deque[asyncio.Future[None]] = deque()

    # the producer's side

    def admits(self) -> bool:
        """Whether an item could be sent without waiting."""
        return not self._held and (not self._items or self.queued < self.window) and self._end is None

    def offer(self, item: T) -> bool:
        """Send without waiting; False when there is no credit. Raises what `send` raises."""
        if self._end is not None:
            raise self._gone()
        if not self.admits():
            return False
        size = size_of(item)
        self._items.append((item, size))
        self.queued += size
        if self.queued > self.peak:
            self.peak = self.queued
        _wake(self._getters)
        return True

    async def send(self, item: T) -> None:
        """Send when there is credit. Raises Cancelled when the stream was cancelled or has ended meanwhile."""
        while not self.offer(item):
            await self.credit()

    async def credit(self) -> None:
        """Wait until an item is admitted, or the stream has ended."""
        while not self.admits() and self._end is None:
            future = asyncio.get_running_loop().create_future()
            self._putters.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future in self._putters:
                    self._putters.remove(future)
                elif self.admits():
                    _wake(self._putters)  # this wake-up was for us; hand it on
                raise

    def end(self, end: End = DONE) -> None:
        """End the stream. What was sent before a DONE or an ERROR is still delivered; the first end stands."""
        if self._end is not None:
            return
        self._end = end
        if end.kind == "cancelled":
            self._items.clear()
            self.queued = 0
        for waiting in (self._getters, self._putters):
            while waiting:
                _wake(waiting)

    def cancel(self, reason: str = "consumer left") -> None:
        """End as CANCELLED; what is queued is dropped."""
        self.end(End("cancelled", reason=reason))

    def hold(self) -> None:
        """Withdraw the credit: the producer pauses at its next send, the consumer may take what is there."""
        self._held = True

    def resume(self) -> None:
        self._held = False
        if self.admits():
            _wake(self._putters)

    # the consumer's side

    @property
    def ended(self) -> End | None:
        """The end, once it was decided; queued items may still be there to take."""
        return self._end

    def ready(self) -> bool:
        """Whether `receive` would return (or raise) at once."""
        return bool(self._items) or self._end is not None

    def take(self) -> T:
        """The next item, which must be there (see `ready`). Raises as `receive` does when the stream has ended."""
        if self._items:
            item, size = self._items.popleft()
            self.queued -= size
            if self._putters and self.admits():
                _wake(self._putters)
            return item
        end = self._end
        assert end is not None, "take() before ready()"
        if end.kind == "done":
            raise StopAsyncIteration
        if end.kind == "error" and end.error is not None:
            raise end.error
        raise Cancelled(end.reason or "cancelled")

    async def arrival(self) -> None:
        """Wait until `ready`."""
        while not self.ready():
            future = asyncio.get_running_loop().create_future()
            self._getters.append(future)
            try:
                await future
            except asyncio.CancelledError:
                if future in self._getters:
                    self._getters.remove(future)
                elif self.ready():
                    _wake(self._getters)
                raise

    async def receive(self) -> T:
        """The next item. Raises StopAsyncIteration on DONE, the carried error on ERROR, Cancelled on CANCELLED."""
        if not self.ready():
            await self.arrival()
        return self.take()

    def __aiter__(self) -> Channel[T]:
        return self

    async def __anext__(self) -> T:
        if not self.ready():
            await self.arrival()
        return self.take()

    def _gone(self) -> Cancelled:
        end = self._end
        assert end is not None
        return Cancelled(end.reason or "the stream has ended")


def _wake(waiting: deque[asyncio.Future[None]]) -> None:
    while waiting:
        future = waiting.popleft()
        if not future.done():
            future.set_result(None)
            return


def size_of(value: Any) -> int:
    """About how many bytes `value` holds: what it takes from a stream's credit. Never below 1."""
    kind = type(value)
    if kind is Audio:
        return int(value.pcm.nbytes) + SMALL
    if kind is Text:
        return len(value.text) + SMALL
    if kind is Tensor:
        return int(value.data.nbytes) + SMALL
    if kind is str or kind is bytes:
        return len(value) + 1
    if kind is int or kind is float or kind is bool or value is None:
        return 8
    return _size_within(value, 0)


def _size_within(value: Any, depth: int) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes) + SMALL
    if isinstance(value, str | bytes | bytearray | memoryview):
        return len(value) + 1
    if depth > 8:
        return SMALL
    if isinstance(value, Mapping):
        return SMALL + sum(_size_within(k, depth + 1) + _size_within(v, depth + 1) for k, v in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return SMALL + sum(_size_within(v, depth + 1) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return SMALL + sum(_size_within(getattr(value, f.name), depth + 1) for f in dataclasses.fields(value))
    nbytes = getattr(value, "nbytes", None)  # a torch tensor, without importing torch
    if isinstance(nbytes, int):
        return nbytes + SMALL
    fields = getattr(type(value), "model_fields", None)  # a pydantic model, without importing pydantic
    if isinstance(fields, Mapping):
        return SMALL + sum(_size_within(getattr(value, name), depth + 1) for name in fields)
    return SMALL
