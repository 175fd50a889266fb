"""A carrier on a gRPC stream: one task that reads, one that writes. Both ends of a connection are the same here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import grpc

from chains.wire.carrier import Answer, Carrier
from chains.wire.settings import MESSAGE, WireSettings

LAZY = 0.005
"""Seconds that credit which nobody waits for may wait for company."""
CLOSING = 1.0
"""Seconds for the last frames of a link that is closed."""
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE),
    ("grpc.max_send_message_length", MESSAGE),
    ("grpc.max_metadata_size", 8192),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
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


class Link:
    """Runs a carrier on its streams."""

    def __init__(self, settings: WireSettings, answer: Answer | None, told: Callable[[str, Any], None]) -> None:
        self.carrier = Carrier(settings, self.wake, self._lazily, answer, told)
        self._writer, self._bulk = _Bell(), _Bell()
        self._timer: asyncio.TimerHandle | None = None
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End the streams in good order: what is ready is still written."""
        self._closing.set()

    def wake(self) -> None:
        self._writer.ring()
        if self.carrier.bulky:
            self._bulk.ring()

    def _lazily(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LAZY, self._late)

    def _late(self) -> None:
        self._timer = None
        self._writer.ring()

    async def run(self, stream: GrpcStream) -> None:
        """Carry until the peer ends the stream. Raises what the carrier finds wrong, or gRPC's error."""
        await self._both(stream, self.carrier.feed, self._write)

    async def run_bulk(self, stream: GrpcStream) -> None:
        """The same for large values."""
        await self._both(stream, self.carrier.feed_chunk, self._write_bulk)

    async def _both(self, stream: GrpcStream, feed: Callable[[bytes], None], write: Any) -> None:
        writer = asyncio.ensure_future(write(stream))
        reader = asyncio.ensure_future(self._read(stream, feed))
        closing = asyncio.ensure_future(self._closed(writer))
        tasks: tuple[asyncio.Future[Any], ...] = (reader, writer, closing)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
                    break
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):  # the first fault was raised above
                    await task
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    async def _closed(self, writer: asyncio.Future[None]) -> None:
        """Return once the link was closed, and its writer has written what was ready."""
        await self._closing.wait()
        self._writer.ring()
        self._bulk.ring()
        await asyncio.wait((writer,), timeout=CLOSING)

    async def _read(self, stream: GrpcStream, feed: Callable[[bytes], None]) -> None:
        while (message := await stream.read()) is not grpc.aio.EOF:
            feed(message)

    async def _write(self, stream: GrpcStream) -> None:
        carrier = self.carrier
        while True:
            if not carrier.pending:
                if self._closing.is_set():
                    return
                await self._writer.heard()
            batch = carrier.batch()
            if batch:
                await stream.write(batch)

    async def _write_bulk(self, stream: GrpcStream) -> None:
        while True:
            while self.carrier.bulky:
                await stream.write(self.carrier.next_chunk())
            if self._closing.is_set():
                return
            await self._bulk.heard()
