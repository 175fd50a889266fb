"""A chain behind its door: a runtime, the gateway and uvicorn put together."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Self

import uvicorn

from chains.call import Turn
from chains.dsl.graph import Graph
from chains.dsl.version import version_of
from chains.errors import Cancelled, SettingError, Unavailable
from chains.export import exporter_from_env
from chains.gateway.app import create_app
from chains.gateway.connection import Connection, most_connections
from chains.gateway.session import Gateway, GatewaySettings
from chains.gateway.tape import Deck
from chains.runtime.deployment import ProgressFn, Runtime
from chains.runtime.inprocess import InProcess
from chains.sockets import BACKLOG, listen
from chains.spans import CallRecord, Recorder, table
from chains.timing import LoopClock, Timing

log = logging.getLogger("chains.serve")
_AT_ONCE = 32  # accepted in one step of the loop: more could use up the files before any is counted and closed
_LAST = 1.0
"""Seconds in which a server that leaves its port still answers who is connected: a request may be under way."""
_READ_AHEAD = 16 << 20  # a frame up to here is read and refused with our words, a longer one by the library's


class Server:
    """A chain that answers on a port: `async with Server(graph, port=0) as server: ... server.url`.

    The port is taken before any model loads. `runtime` is started instead of the in-process one; `profile(table)`
    is told after each call where its time went; other keywords are GatewaySettings. With `shared`, other servers that
    say so too may have the same port: the kernel spreads new connections over them. Raises SettingError for a port in
    use, StartError when a chainlet does not start.
    """

    runtime: Runtime
    gateway: Gateway

    def __init__(
        self,
        graph: Graph,
        settings: GatewaySettings | None = None,
        *,
        runtime: Runtime | None = None,
        progress: ProgressFn | None = None,
        profile: Callable[[str], None] | None = None,
        shared: bool = False,
        **changes: Any,
    ) -> None:
        self.settings = _settings(settings, changes)
        if self.settings.record:
            Deck(self.settings.viewer, self.settings.viewer_key, self.settings.redact)  # said before models load
        self._shared = shared
        viewer = {"viewer": self.settings.viewer, "viewer_key": self.settings.viewer_key}
        kept = {"chain": graph.entry, "version": version_of(graph), **viewer}
        self.runtime = runtime or InProcess(graph, progress=progress, recorder=recorder(profile, **kept))
        self._stack = AsyncExitStack()
        self._socket: socket.socket | None = None
        self._uvicorn: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()

    @property
    def port(self) -> int:
        if self._socket is None:
            raise Unavailable("the server does not run", mend="use it within `async with Server(graph)`")
        return self._port

    @property
    def calls(self) -> int:
        """How many calls are open."""
        return len(self.gateway.calls)

    @property
    def url(self) -> str:
        """http://host:port; clients of the websocket take the same."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.settings.host, self.settings.host)
        return f"http://[{host}]:{self.port}" if ":" in host.strip("[]") else f"http://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        self._socket = listen(self.settings.host, self.settings.port, shared=self._shared)
        self._port: int = self._socket.getsockname()[1]
        self._stack.callback(self._socket.close)
        try:
            await self._stack.enter_async_context(self.runtime)
            await self._start()
        except BaseException:
            self._socket = None
            await self._stack.aclose()
            raise
        return self

    async def _start(self) -> None:
        app = create_app(self.runtime, self.settings)
        self.gateway = app.state.gateway
        connection: Any = partial(
            Connection,
            head_seconds=self.settings.open_seconds,
            most=most_connections(self.settings.max_connections),
            leaving=self._leaving,
        )
        config = uvicorn.Config(
            app,
            http=connection,
            backlog=_AT_ONCE,
            lifespan="off",
            log_config=None,
            log_level="warning",  # below that the websocket library writes down what is said
            access_log=False,
            ws="websockets-sansio",
            ws_max_size=max(_READ_AHEAD, 2 * self.settings.max_frame),
            ws_ping_interval=self.settings.ping_seconds,
            ws_ping_timeout=self.settings.ping_seconds,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=2,
        )
        self._uvicorn = _Uvicorn(config)
        self._serving = asyncio.create_task(self._uvicorn.serve(sockets=[self._listening]))
        while not self._uvicorn.started:
            if self._serving.done():
                self._serving.result()
                raise Unavailable("the web server ended while it started", mend="run again with --debug")
            await asyncio.sleep(0.005)
        self._listening.listen(BACKLOG)  # what waits in the kernel; uvicorn set it to what it accepts in one go

    @property
    def _listening(self) -> socket.socket:
        assert self._socket is not None, "listen() comes first"
        return self._socket

    async def drain(self) -> bool:
        """Refuse newcomers, let open calls end within `drain_seconds`, cancel the rest. True if none was left."""
        return await self.gateway.drain(self.settings.drain_seconds)

    async def leave(self) -> bool:
        """Give the port up to the others that share it, then `drain`: who calls from now on reaches one of them."""
        if self._uvicorn is not None:
            await self._give_up(self._uvicorn)
            await asyncio.sleep(_LAST)
            for connection in list(self._uvicorn.server_state.connections):
                if isinstance(connection, Connection):  # one that is idle would find nobody with its next request
                    connection.shutdown()
        return await self.drain()

    async def _give_up(self, server: uvicorn.Server) -> None:
        """Close the port, but take in who waits there: closing it resets them, with the requests that they sent."""
        loop = asyncio.get_running_loop()
        self._leaving.set()
        loop.remove_reader(self._listening)
        await asyncio.sleep(0)  # those that the loop has accepted become connections, which need the port open
        come = list(_come(self._listening))
        for listening in server.servers:
            listening.close()
        http: Any = server.config.http_protocol_class
        made = partial(http, config=server.config, server_state=server.server_state, app_state={})
        for one in come:
            await loop.connect_accepted_socket(made, one)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._uvicorn is not None and self._serving is not None:
                self.gateway.draining = True
                self.gateway.cancel_all()
                await self.gateway.quiet(1.0)
                self._uvicorn.should_exit = True
                await self._serving
                if self.gateway.deck is not None:
                    await asyncio.to_thread(self.gateway.deck.close)
        finally:
            self._socket = None
            await self._stack.aclose()


def _come(listening: socket.socket) -> Iterator[socket.socket]:
    """Who has connected and was not accepted yet."""
    with contextlib.suppress(BlockingIOError):
        while True:
            accepted, _ = listening.accept()
            accepted.setblocking(False)
            yield accepted


class _Profile:
    """An exporter that hands on the table of each call that has ended."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def closed(self, record: CallRecord) -> None:
        self._tell(table(record))

    def opened(self, record: CallRecord) -> None: ...
    def hop(self, record: CallRecord, timing: Timing) -> None: ...
    def turn(self, record: CallRecord, turn: Turn) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


def recorder(
    profile: Callable[[str], None] | None = None,
    *,
    chain: str = "",
    app: str = "",
    version: str = "",
    viewer: str = "",
    viewer_key: str = "",
) -> Recorder:
    """Keeps recent calls; exports them where the OTEL_ variables or CHAINS_VIEWER ask for it. `viewer` is a URL in
    place of CHAINS_VIEWER.
    """
    environ = {**os.environ, "CHAINS_VIEWER": viewer, "CHAINS_VIEWER_KEY": viewer_key} if viewer else os.environ
    made = Recorder(LoopClock(), exporter=exporter_from_env(environ, chain=chain, app=app, version=version))
    if profile is not None:
        made.attach(_Profile(profile))
    return made


class _Uvicorn(uvicorn.Server):
    """uvicorn without its own signal handlers: whoever runs the loop decides what Ctrl-C means."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _settings(settings: GatewaySettings | None, changes: dict[str, Any]) -> GatewaySettings:
    settings = settings or GatewaySettings()
    known = GatewaySettings.__dataclass_fields__
    for name in changes:
        if name not in known:
            raise SettingError(f"there is no setting {name!r}", mend=f"the settings are {', '.join(known)}")
    return replace(settings, **changes)


def door(graph: Graph, runtime: Runtime, **settings: Any) -> Server:
    """The server of a runtime that is one of several behind the same port, each in a process of its own. `settings` are
    GatewaySettings as JSON holds them; keys that are in none of them come from $CHAINS_KEYS, spaces between them, the
    viewer from $CHAINS_VIEWER and $CHAINS_VIEWER_KEY."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    values.setdefault("keys", tuple(os.environ.get("CHAINS_KEYS", "").split()))
    for name in ("viewer", "viewer_key"):
        values.setdefault(name, os.environ.get(f"CHAINS_{name.upper()}", ""))
    return Server(graph, _settings(None, values), runtime=runtime, shared=True)


async def serve(
    graph: Graph,
    settings: GatewaySettings | None = None,
    *,
    runtime: Runtime | None = None,
    progress: ProgressFn | None = None,
    profile: Callable[[str], None] | None = None,
    ready: Callable[[Server], None] | None = None,
    stopping: Callable[[int], None] | None = None,
) -> int:
    """Serve until SIGINT or SIGTERM, then drain; a second signal ends the calls at once, a third the process.

    `ready(server)` is told when it answers, `stopping(calls)` when it begins to drain. Returns the exit code: 0 once
    it has served, 128 + the signal's number (130, 143) when that came while models loaded.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(_on_loop_error)
    server = Server(graph, settings, runtime=runtime, progress=progress, profile=profile)
    with Interrupts(server.runtime, lambda count: (stop if count == 1 else hurry).set()) as interrupts:
        starting = asyncio.ensure_future(server.__aenter__())
        await _first(starting, stop)
        if stop.is_set():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            if not starting.cancelled() and starting.exception() is None:
                await server.__aexit__(None, None, None)
            return interrupts.exit_code
        starting.result()
        interrupts.patience = 2
        try:
            if ready is not None:
                ready(server)
            await stop.wait()
            if stopping is not None:
                stopping(len(server.gateway.calls))
            draining = asyncio.ensure_future(server.drain())
            await _first(draining, hurry)
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
        finally:
            await server.__aexit__(None, None, None)
    return 0


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What nobody waited for: no fault is a task that the chain's code forgot and that was cancelled with its call;
    no traceback is worth a process that may open no more files.
    """
    error = context.get("exception")
    if isinstance(error, Cancelled):
        return
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        log.error("a caller waits: this process may open no more files (ulimit -n)")
    else:
        loop.default_exception_handler(context)


async def _first(task: asyncio.Future[Any], event: asyncio.Event) -> None:
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


class Interrupts:
    """What SIGINT and SIGTERM do while the block runs: `heard(count)` is told in the loop of the first `patience` of
    them; the next ends the process at once, with 128 + its number, whatever its threads do.

    The first one that finds models loading says on stderr which: a load is a thread that nobody can stop. Handlers of
    Python and not of the loop, so that code that blocks the loop cannot keep them from being heard.
    """

    def __init__(self, runtime: Runtime, heard: Callable[[int], object]) -> None:
        self.patience = 1
        self.exit_code = 0
        self._runtime, self._heard = runtime, heard
        self._count = 0
        self._loop = asyncio.get_running_loop()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._count >= self.patience:
            _tell("ended at once")
            os._exit(128 + number)
        self._count += 1
        self.exit_code = self.exit_code or 128 + number
        loading = [load.replica for load in self._runtime.load() if load.state in ("starting", "loading", "warming")]
        if loading:
            _tell(f"stopping; still loading: {', '.join(loading)} (Ctrl-C again ends at once)")
        self._loop.call_soon_threadsafe(self._heard, self._count)


def _tell(line: str) -> None:
    """To stderr, past its buffer: a signal may come while something is being printed."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{line}\n".encode())
