"""A TCP connection before it is a call: how long it may take to say what it wants, and how many there may be."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle


class Connection(H11Protocol):
    """uvicorn's, with two limits that it lacks: one that has sent no whole request head after `head_seconds` is
    closed, and so is one that comes on top of `most`, at once: it would take a file descriptor from those who call.
    Once the server is `leaving`, each answer says that it is the connection's last.
    """

    def __init__(self, head_seconds: float, most: int, leaving: asyncio.Event, **settings: Any) -> None:
        super().__init__(**settings)
        self._head_seconds, self._most, self._leaving = head_seconds, most, leaving
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most:
            transport.abort()
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle: RequestResponseCycle | None = self.cycle
        if self._leaving.is_set() and cycle is not None and not cycle.response_started and cycle.keep_alive:
            cycle.keep_alive = False
            cycle.default_headers = [*cycle.default_headers, (b"connection", b"close")]
        if self.transport.get_protocol() is not self or (cycle is not None and not cycle.response_complete):
            self._head_came()
        elif self._waiting is None:  # bytes of a next request, or of a body that nobody wants
            self._wait_for_head()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        super().handle_websocket_upgrade(event)
        self._head_came()

    def _wait_for_head(self) -> None:
        self._waiting = self.loop.call_later(self._head_seconds, self.transport.close)

    def _head_came(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


def most_connections(calls: int) -> int:
    """How many connections to hold where `calls` may be open: room for those that are told no, and for /healthz, but
    no more than half of the files that this process may open.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2 * calls if soft == resource.RLIM_INFINITY else max(1, min(2 * calls, soft // 2))
