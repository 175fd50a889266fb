"""A bounded stream: items, credit in bytes, and exactly one end.

The producer sends while it has credit; one item is always admitted, whatever its size. Credit returns when the
consumer's code takes the item, so a slow consumer holds up its own producer and nobody else.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
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

    `window` is the credit in bytes. `queued` is what lies in it now, `peak` the most that ever did. `on_taken(size)` is
    told of each item that the consumer takes.
    `async for item in channel` ends on DONE, raises what an ERROR carries, and Cancelled on CANCELLED.
    """

    __slots__ = ("_end", "_getters", "_held", "_items", "_lease", "_putters", "on_taken", "peak", "queued", "window")

    def __init__(self, window: int = WINDOW) -> None:
        if window < 1:
            raise SettingError(f"window is {window}", mend="give at least 1 byte of credit")
        self.window = window
        self.queued = 0
        self.peak = 0
        self._items: deque[tuple[T, int]] = deque()
        self.on_taken: Callable[[int], None] | None = None
        self._end: End | None = None
        self._held = False
        self._lease: Lease | None = None
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
        self.push(item, size_of(item))
        return True

    def push(self, item: T, size: int) -> None:
        """Add an item without asking for credit: whoever sent it from elsewhere had some. Dropped after the end."""
        if self._end is not None:
            return
        self._items.append((item, size))
        self.queued += size
        if self.queued > self.peak:
            self.peak = self.queued
        _wake(self._getters)

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
        self.spare()

    def spare(self) -> None:
        """Wake a producer that waits, when there is credit."""
        if self._putters and self.admits():
            _wake(self._putters)

    # the consumer's side

    @property
    def ended(self) -> End | None:
        """The end, once it was decided; queued items may still be there to take."""
        return self._end

    def ready(self) -> bool:
        """Whether `receive` would return (or raise) at once. Never while somebody reads ahead, see `lease`."""
        return (bool(self._items) or self._end is not None) and self._lease is None

    def take(self) -> T:
        """The next item, which must be there (see `ready`). Raises as `receive` does when the stream has ended."""
        if self._items:
            item, size = self._items.popleft()
            self.queued -= size
            if self._putters and self.admits():
                _wake(self._putters)
            if self.on_taken is not None:
                self.on_taken(size)
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

    async def lease(self) -> Lease:
        """Read ahead without taking, for somebody elsewhere. One lease at a time; others wait until it is released."""
        while self._lease is not None:
            await self.arrival()
        self._lease = lease = Lease(self)
        return lease

    def _gone(self) -> Cancelled:
        end = self._end
        assert end is not None
        return Cancelled(end.reason or "the stream has ended")


class Lease:
    """A place in a channel up to which items were sent on. They stay in the channel, and hold its credit, until `taken`
    is told that whoever they were sent to has taken them; what was not taken is there for the next reader.
    """

    __slots__ = ("_channel", "_waiter", "ahead")

    def __init__(self, channel: Channel[Any]) -> None:
        self._channel = channel
        self._waiter: asyncio.Future[None] | None = None
        self.ahead = 0

    @property
    def ended(self) -> End | None:
        """The stream's end, once every item before it was looked at."""
        channel = self._channel
        return channel._end if self.ahead >= len(channel._items) else None

    def ready(self) -> bool:
        return self.ahead < len(self._channel._items)

    def look(self) -> Any:
        """The next item, which must be there (see `ready`); it stays where it is."""
        item = self._channel._items[self.ahead][0]
        self.ahead += 1
        return item

    def size(self) -> int:
        """What the next item takes of the channel's credit."""
        return self._channel._items[self.ahead][1]

    def taken(self, items: int) -> None:
        """The first `items` were taken. Tells of more than were looked at are cut."""
        channel, lease = self._channel, self._channel._lease
        items = min(items, self.ahead)
        self.ahead -= items
        channel._lease = None
        try:
            for _ in range(min(items, len(channel._items))):  # a cancelled channel has dropped them
                channel.take()
        finally:
            channel._lease = lease
        if not self.ahead:
            self.wake()

    def wake(self) -> None:
        """End the wait for news, if there is one: something else has happened."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def news(self) -> None:
        """Wait until there may be an item to look at, or an end, or all that was looked at was taken."""
        self._waiter = future = asyncio.get_running_loop().create_future()
        self._channel._getters.appendleft(future)
        try:
            await future
        finally:
            if future in self._channel._getters:
                self._channel._getters.remove(future)

    def release(self) -> None:
        """What was looked at and not taken is the next reader's."""
        if self._channel._lease is self:
            self._channel._lease = None
            _wake(self._channel._getters)


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
