"""The process of a served model: the port opens at once, the model loads beside it, a SIGTERM lets replies finish."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from engines.llm.errors import SettingInvalid
from engines.llm.server import Served, application
from engines.llm.streaming import ServedEngine

DRAIN_SECONDS = 30
log = logging.getLogger(__name__)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises SettingInvalid when the place is taken or not ours."""
    bound: socket.socket | None = None
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(1024)
    except (OSError, OverflowError) as error:
        if bound is not None:
            bound.close()
        raise SettingInvalid(
            f"cannot listen on {host}:{port} ({getattr(error, 'strerror', None) or error})",
            mend="choose another --port or --host",
        ) from None
    return bound


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    served: Served,
    load: Callable[[], ServedEngine],
    bound: socket.socket,
    *,
    loaded: Callable[[ServedEngine], None] = lambda engine: None,
    drain_seconds: int = DRAIN_SECONDS,
) -> None:
    """Serve until SIGTERM or SIGINT. What `load` raises ends it and is raised here. The engine is closed at the end."""
    asyncio.run(_serve(served, load, bound, loaded, drain_seconds))


async def _serve(
    served: Served,
    load: Callable[[], ServedEngine],
    bound: socket.socket,
    loaded: Callable[[ServedEngine], None],
    drain_seconds: int,
) -> None:
    config = uvicorn.Config(
        application(served), log_level="warning", access_log=False, timeout_graceful_shutdown=drain_seconds
    )
    server = _Draining(config, served)
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    loading = _in_thread(load)
    engine: ServedEngine | None = None
    try:
        both: set[asyncio.Future[Any]] = {serving, loading}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            engine = loading.result()
            served.ready(engine)
            loaded(engine)
        else:
            log.warning("stopped before the model was loaded")
        await serving
    finally:
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        bound.close()
        if engine is not None:
            engine.close()


class _Draining(uvicorn.Server):
    """Says that it goes down as soon as it is told to, and leaves what comes after to the process."""

    def __init__(self, config: uvicorn.Config, served: Served) -> None:
        super().__init__(config)
        self._served = served

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = self._served.draining = True


def _in_thread(load: Callable[[], ServedEngine]) -> asyncio.Future[ServedEngine]:
    """The result of a thread that the process does not wait for at its end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ServedEngine] = loop.create_future()

    def settle(engine: ServedEngine | None, error: BaseException | None) -> None:
        if future.cancelled() or future.done():
            return
        if engine is not None:
            future.set_result(engine)
        else:
            future.set_exception(error or RuntimeError("nothing was loaded"))

    def run() -> None:
        engine, failure = None, None
        try:
            engine = load()
        except BaseException as error:
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, engine, failure)

    threading.Thread(target=run, name="load", daemon=True).start()
    return future
