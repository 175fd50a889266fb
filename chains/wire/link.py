"""A carrier on a gRPC stream: one task that reads, one that writes. Both ends of a connection are the same here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import grpc

from chains.errors import ChainsError
from chains.wire.carrier import Answer, Carrier
from chains.wire.frames import BYE
from chains.wire.settings import MESSAGE, WireSettings
from chains.wire.sharing import Sharing

LAZY = 0.005
"""Seconds that credit which nobody waits for may wait for company."""
CLOSING = 3.0
"""Seconds in which a link that is closed must get on with its last frames, and then the peer with reading them."""
REST = 10.0
"""Seconds for reading what has come already from a peer that has ended its streams."""
GATHER = 3
"""Turns of the loop for which what is not urgent waits for company before it is written."""
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE),
    ("grpc.max_send_message_length", MESSAGE),
    ("grpc.max_metadata_size", 8192),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # what counts for a peer that stands still: a minute, when not given
    ("grpc.http2.max_pings_without_data", 0),
)


class GrpcStream(Protocol):
    """What a client's call and a server's context have in common."""

    async def read(self) -> Any: ...
    async def write(self, message: bytes) -> None: ...


class _Bell:
    """Wakes the one task that waits for it; rung while nobody waits, it is heard at the next wait."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def ring(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def heard(self) -> None:
        self._future = asyncio.get_running_loop().create_future()
        await self._future


class _Writer:
    """Writes what a carrier has ready, one gRPC write at a time: the next begins when the one before it is through.

    gRPC's coroutine is stepped here and not in a task, so that a write can begin in the very step that made the frame,
    and its end costs no other task's turn. `over` ends with what a write raises.
    """

    def __init__(self, stream: GrpcStream, carrier: Carrier, moved: Callable[[], None]) -> None:
        self._stream = stream
        self._carrier = carrier
        self._moved = moved
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._writing: Any = None
        self._through: asyncio.Future[None] | None = None
        self._turns = 0
        self._last: bytes | None = None

    def soon(self) -> None:
        """Write in a few turns of the loop: what others have by then goes along."""
        if self._writing is None and not self._turns:
            self._turns = GATHER
            self._loop.call_soon(self._due)

    def _due(self) -> None:
        self._turns -= 1
        if self._turns:
            self._loop.call_soon(self._due)
        else:
            self.now()

    def now(self) -> None:
        """Write what is ready, unless a write is under way."""
        if self._writing is not None or self.over.done():
            return
        try:
            batch = self._carrier.batch() if self._carrier.pending else b""
        except ChainsError as error:
            self.over.set_exception(error)
            return
        if not batch and self._last:
            batch, self._last = self._last, b""
        if batch:
            self._writing = self._stream.write(batch)
            self._step(None)
        elif self._last is not None:
            self.over.set_result(None)

    def finish(self, last: bytes) -> None:
        """End `over` once all that is ready was written, and `last` after that."""
        self._last = last
        self.now()

    async def stop(self) -> None:
        """Begin no more writes. Return once none is under way: gRPC refuses to end a stream beside its first write."""
        self.over.cancel()
        if self._writing is not None:
            self._through = self._loop.create_future()
            await asyncio.wait((self._through,), timeout=CLOSING)

    def _step(self, _: Any) -> None:
        try:
            waits = self._writing.send(None)
        except StopIteration:
            self._ended(None)
        except BaseException as error:
            self._ended(error)
        else:
            waits._asyncio_future_blocking = False  # what a task does with a future that it waits for
            waits.add_done_callback(self._step)

    def _ended(self, error: BaseException | None) -> None:
        self._writing = None
        if self._through is not None and not self._through.done():
            self._through.set_result(None)
        if error is None:
            self._moved()
            self._carrier.written()
            self.now()
        elif isinstance(error, asyncio.CancelledError):
            self.over.cancel()
        elif not self.over.done():
            self.over.set_exception(error)


def _failed(writer: asyncio.Future[None]) -> bool:
    """Whether it could not write, by no fault of this side's."""
    fault = writer.exception() if writer.done() and not writer.cancelled() else None
    return fault is not None and not isinstance(fault, ChainsError)


class Link:
    """Runs a carrier on its streams."""

    def __init__(
        self,
        settings: WireSettings,
        answer: Answer | None,
        told: Callable[[str, Any], None],
        sharing: Sharing | None = None,
    ) -> None:
        self.carrier = Carrier(settings, self.wake, self._lazily, answer, told, sharing)
        self._writer: _Writer | None = None
        self._bulk = _Bell()
        self._timer: asyncio.TimerHandle | None = None
        self._answers = answer is not None
        self._closing = asyncio.Event()
        self._moves = 0  # messages that were read and written

    def close(self) -> None:
        """End the streams in good order: what is ready is still written, and who answers calls says Bye and waits until
        that was read."""
        self.carrier.closing = True
        self._closing.set()

    def wake(self) -> None:
        """There is something to send: at once when it has no company to wait for."""
        writer = self._writer
        if writer is not None:
            if self.carrier.alone:
                writer.now()
            else:
                writer.soon()
        if self.carrier.bulky:
            self._bulk.ring()

    def _lazily(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LAZY, self._late)

    def _late(self) -> None:
        self._timer = None
        if self._writer is not None:
            self._writer.now()

    async def run(self, stream: GrpcStream) -> None:
        """Carry until the peer ends the stream. Raises what the carrier finds wrong, or gRPC's error."""
        self._writer = writer = _Writer(stream, self.carrier, self._moved)
        writer.now()
        try:
            await self._both(stream, self.carrier.feed, writer.over, self._farewell)
        finally:
            self._writer = None
            await writer.stop()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    async def run_bulk(self, stream: GrpcStream) -> None:
        """The same for large values."""
        writer = asyncio.ensure_future(self._write_bulk(stream))
        await self._both(stream, self.carrier.feed_chunk, writer, self._bulk.ring)

    async def _both(
        self,
        stream: GrpcStream,
        feed: Callable[[bytes], None],
        writer: asyncio.Future[None],
        finish: Callable[[], None],
    ) -> None:
        reader = asyncio.ensure_future(self._read(stream, feed))
        closing = asyncio.ensure_future(self._closed(stream, reader, writer, finish))
        tasks: tuple[asyncio.Future[Any], ...] = (reader, writer, closing)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if _failed(writer):  # the peer takes no more: what it said until then is there to read, up to its end
                await asyncio.wait((reader,), timeout=REST)
            elif self._closing.is_set() and not reader.done():
                await closing
            for task in tasks:
                if task.done():
                    task.result()
                    break
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):  # the first fault was raised above
                    await task

    async def _closed(
        self,
        stream: Any,
        reader: asyncio.Future[None],
        writer: asyncio.Future[None],
        finish: Callable[[], None],
    ) -> None:
        """Return once the link was closed, its writer has written what was ready, and the peer has ended its side."""
        await self._closing.wait()
        finish()
        await self._going_on(writer)
        if not self._answers:
            await stream.done_writing()
        await self._going_on(reader)

    def _moved(self) -> None:
        self._moves += 1

    async def _going_on(self, task: asyncio.Future[None]) -> None:
        """Until it has ended, or neither side has got on for a while."""
        moves = -1
        while not task.done() and moves != self._moves:
            moves = self._moves
            await asyncio.wait((task,), timeout=CLOSING)

    def _farewell(self) -> None:
        if self._writer is not None:
            self._writer.finish(BYE if self._answers else b"")

    async def _read(self, stream: GrpcStream, feed: Callable[[bytes], None]) -> None:
        while (message := await stream.read()) is not grpc.aio.EOF:
            self._moved()
            feed(message)

    async def _write_bulk(self, stream: GrpcStream) -> None:
        while True:
            while self.carrier.bulky:
                await stream.write(self.carrier.next_chunk())
                self._moved()
            if self._closing.is_set() and not self.carrier.copying:
                return
            await self._bulk.heard()
