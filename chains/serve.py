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

from chains.dsl.graph import Graph
from chains.errors import Cancelled, SettingError, Unavailable
from chains.gateway.app import create_app
from chains.gateway.connection import Connection, most_connections
from chains.gateway.session import Gateway, GatewaySettings
from chains.runtime.deployment import ProgressFn, Runtime
from chains.runtime.inprocess import InProcess
from chains.spans import CallRecord, Exporter, Recorder, exporter_from_env, table
from chains.timing import LoopClock, Timing

log = logging.getLogger("chains.serve")
_BACKLOG = 1024
_AT_ONCE = 32  # accepted in one step of the loop: more could use up the files before any is counted and closed
_READ_AHEAD = 16 << 20  # a frame up to here is read and refused with our words, a longer one by the library's


class Server:
    """A chain that answers on a port: `async with Server(graph, port=0) as server: ... server.url`.

    The port is taken before any model loads. `runtime` is started instead of the in-process one; `profile(table)`
    is told after each call where its time went; other keywords are GatewaySettings. Raises SettingError for a port
    in use, StartError when a chainlet does not start.
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
        **changes: Any,
    ) -> None:
        self.settings = _settings(settings, changes)
        self.runtime = runtime or InProcess(graph, progress=progress, recorder=_recorder(profile))
        self._stack = AsyncExitStack()
        self._socket: socket.socket | None = None
        self._uvicorn: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        if self._socket is None:
            raise Unavailable("the server does not run", mend="use it within `async with Server(graph)`")
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """http://host:port; clients of the websocket take the same."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.settings.host, self.settings.host)
        return f"http://[{host}]:{self.port}" if ":" in host.strip("[]") else f"http://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        self._socket = listen(self.settings.host, self.settings.port)
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
        self._listening.listen(_BACKLOG)  # what waits in the kernel; uvicorn set it to what it accepts in one go

    @property
    def _listening(self) -> socket.socket:
        assert self._socket is not None, "listen() comes first"
        return self._socket

    async def drain(self) -> bool:
        """Refuse newcomers, let open calls end within `drain_seconds`, cancel the rest. True if none was left."""
        return await self.gateway.drain(self.settings.drain_seconds)

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
        finally:
            self._socket = None
            await self._stack.aclose()


class _Profile:
    """An exporter that hands on the table of each call that has ended, and everything to the next exporter."""

    def __init__(self, tell: Callable[[str], None], further: Exporter | None) -> None:
        self._tell, self._further = tell, further

    def hop(self, record: CallRecord, timing: Timing) -> None:
        if self._further is not None:
            self._further.hop(record, timing)

    def closed(self, record: CallRecord) -> None:
        self._tell(table(record))
        if self._further is not None:
            self._further.closed(record)

    def flush(self) -> None:
        if self._further is not None:
            self._further.flush()


def _recorder(profile: Callable[[str], None] | None) -> Recorder:
    """Keeps recent calls; exports them where the OTEL_ variables ask for it."""
    exporter: Exporter | None = exporter_from_env(os.environ)
    return Recorder(LoopClock(), exporter=_Profile(profile, exporter) if profile is not None else exporter)


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


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises SettingError that says who has the port, or what is wrong with the host."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError):
        raise SettingError(f"host {host} is not known here", mend="use --host 127.0.0.1, or 0.0.0.0 for all") from None
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _no_port(host, port, error) from None
    return sock


def _no_port(host: str, port: int, error: OSError) -> SettingError:
    if error.errno == errno.EADDRINUSE:
        by = _holder(port)
        return SettingError(
            f"port {port} is in use" + (f" by {by}" if by else ""),
            mend="stop that, or take another with --port (0: any free one)",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return SettingError(f"port {port} may not be used by this user", mend="take one above 1023 with --port")
    if error.errno == errno.EADDRNOTAVAIL:
        return SettingError(
            f"{host} is not an address of this machine", mend="use --host 127.0.0.1, or 0.0.0.0 for all"
        )
    return SettingError(f"port {port} of {host} cannot be opened: {error.strerror}", mend="take another with --port")


def _holder(port: int) -> str:
    """The process that listens on the port, as far as this user may see (Linux)."""
    from pathlib import Path

    inodes = set()
    for kernel_table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(kernel_table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return ""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(str(fd.readlink()) in inodes for fd in (process / "fd").iterdir()):
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
    return ""


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
