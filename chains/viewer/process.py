"""The viewer as a child process: its port is there at once, and it ends with whoever started it."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

import chains.viewer
from chains.errors import SettingError
from chains.sockets import listen
from chains.viewer.settings import ViewerSettings

log = logging.getLogger("chains.viewer")
FLUSH_S = 5.0
"""Seconds that a viewer has to write down what it was sent, when it is to end."""
FIRST_PAUSE, LAST_PAUSE = 0.2, 30.0
STEADY = 60.0
"""A viewer that ran so many seconds is started again at once when it dies; one that did not, later each time."""
LAST_WORDS = 1.0
_BETWEEN = ("During handling of the above exception", "The above exception was the direct cause")
SAID = "chains viewer: "
"""Before the error that it ends with."""
WRONG_SETTINGS = 2
"""The exit code of a viewer that no other start would help."""


class ViewerProcess:
    """`async with ViewerProcess(settings) as viewer: viewer.url, viewer.endpoint`.

    The port is taken here and inherited: what is sent before the viewer runs waits in the kernel. Where the port is in
    use a free one is taken instead, and `moved` says so; with `exact` that is a SettingError. A viewer that dies is
    started again, and that is said once; it ends, having written down what it got, when the block or this process does.
    One that cannot start is given up: `failed` says why, the log does once, and the port is closed.
    """

    def __init__(self, settings: ViewerSettings, *, exact: bool = False) -> None:
        self.settings = settings
        self.moved = ""
        self.failed = ""
        self._exact = exact
        self._listening: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._said = False

    @property
    def endpoint(self) -> str:
        """Where spans are sent, http://host:port."""
        return reachable(self.settings.host, self._port)

    @property
    def url(self) -> str:
        """What a browser opens."""
        return f"{self.endpoint}/"

    @property
    def pid(self) -> int | None:
        """Of the process that runs; None between two."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def __aenter__(self) -> Self:
        self._listening, self.moved = open_near(
            self.settings.host, self.settings.port, exact=self._exact, option="--view-port"
        )
        self._port: int = self._listening.getsockname()[1]
        self.settings = replace(self.settings, port=self._port)
        self._watching = asyncio.create_task(self._watch(self._listening), name="viewer")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        await self._end()
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def _watch(self, listening: socket.socket) -> None:
        pause, loop, steady = FIRST_PAUSE, asyncio.get_running_loop(), False
        while True:
            began = loop.time()
            process = await self._spawn(listening)
            error, code = await asyncio.gather(_relayed(process), process.wait())
            lasted = loop.time() - began > STEADY
            steady = steady or lasted
            if code == WRONG_SETTINGS or (code > 0 and not steady):  # no other start would help
                self.failed = error or _how(code)
                log.warning("there is no tracing page: %s; calls go on without it", self.failed)
                listening.close()  # who sends spans, or opens the page, is refused at once
                return
            if lasted:
                pause = FIRST_PAUSE
            if not self._said:
                log.warning("the tracing page's process ended by itself (%s); it is started again", error or _how(code))
                self._said = True
            await asyncio.sleep(pause)
            pause = min(pause * 3, LAST_PAUSE)

    async def _spawn(self, listening: socket.socket) -> asyncio.subprocess.Process:
        file = listening.fileno()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "chains.viewer", str(file)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(file,),
            start_new_session=True,  # Ctrl-C is for whoever started it
            env={**os.environ, "PYTHONPATH": _path(), "OMP_NUM_THREADS": "1"},
        )
        self._process = process
        assert process.stdin is not None, "it was asked for"
        with suppress(ConnectionError):  # one that is dead already is seen by the watch
            process.stdin.write(msgspec.json.encode(_plain(self.settings)) + b"\n")
            await process.stdin.drain()
        return process

    async def _end(self) -> None:
        """It is told by the end of its input; one that does not listen is killed."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        for patience, number in ((FLUSH_S, signal.SIGTERM), (1.0, signal.SIGKILL), (FLUSH_S, 0)):
            try:
                await asyncio.wait_for(process.wait(), patience)
                return
            except TimeoutError:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)


async def _relayed(process: asyncio.subprocess.Process) -> str:
    """Passes on to the log, until the process ends, what it writes to stderr; gives the error that it ended with.

    Of a traceback the log gets the line that says what is wrong, and all of it for whoever debugs.
    """
    assert process.stderr is not None, "it was asked for"
    error, trace = "", list[str]()
    while True:
        try:  # whether an error was its end is seen a moment later
            async with asyncio.timeout(LAST_WORDS if error and not trace else None):
                line = (await process.stderr.readline()).decode(errors="replace")
        except ValueError:  # of endless length
            continue
        except TimeoutError:
            log.warning("the tracing page's process: %s", error)
            error = ""
            continue
        if trace and not line[:1].isspace():
            log.debug("the tracing page's process: %s", "".join(trace) + line)
            trace, error = [], line.strip()
        elif trace or "Traceback (most recent call last)" in line:
            trace.append(line)
        elif line.startswith(SAID):
            error = line.removeprefix(SAID).strip()
        elif line.strip() and not line.startswith(_BETWEEN):
            log.warning("the tracing page's process: %s", line.strip())
        if not line:
            return error


def _path() -> str:
    """Where the child finds what this process has found; nothing from the folder that it happens to be in."""
    found = [os.path.abspath(entry) for entry in sys.path if entry]
    package = str(Path(chains.viewer.__path__[0]).parents[1])
    return os.pathsep.join(found if package in found else [package, *found])


def opened(plain: Mapping[str, Any]) -> ViewerProcess:
    """A viewer from settings as JSON holds them; what is not in them is as usual. Raises SettingError."""
    values: dict[str, Any] = {
        name: tuple(value) if name == "keys" else value for name, value in plain.items() if value != ""
    }
    if "traces" in values:
        values["traces"] = Path(values["traces"]).expanduser()
    return ViewerProcess(ViewerSettings(**values))


def _plain(settings: ViewerSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in ViewerSettings.__dataclass_fields__} | {
        "traces": str(settings.traces)
    }


def read_settings(line: bytes) -> ViewerSettings:
    """The settings that a parent has written."""
    plain = msgspec.json.decode(line)
    return ViewerSettings(**{**plain, "traces": Path(plain["traces"]), "keys": tuple(plain["keys"])})


def reachable(host: str, port: int) -> str:
    """How this machine reaches what listens there: http://host:port."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host).strip("[]")
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def open_near(host: str, port: int, *, exact: bool = False, option: str = "--port") -> tuple[socket.socket, str]:
    """A listening socket, and "" or why it has another port: where this one is in use, a free one is taken unless it
    must be `exact`. Raises SettingError.
    """
    try:
        return listen(host, port, option=option), ""
    except SettingError as error:
        if exact or not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EADDRINUSE:
            raise
        return listen(host, 0), error.message


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
