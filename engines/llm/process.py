"""The step loop in a process of its own: messages over a socket pair, and an end for all when either side dies."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from engines.llm import errors
from engines.llm.assembly import Facts, assemble, grammars_of
from engines.llm.config import EngineSettings, ModelSource
from engines.llm.core import Core
from engines.llm.errors import EngineError, QueueFull, RequestFailed, SettingInvalid
from engines.llm.link import Deliver, Gone, lost
from engines.llm.messages import Abort, Close, Message, Pin, Report, Submit

HEAD = struct.Struct("<BI")  # kind and length of a frame
GRACE = 10.0  # seconds for the other side to end by itself
MOST_UNSENT = 2**26  # bytes of messages that a child may leave unread before more requests are refused


class _Start(msgspec.Struct, frozen=True):
    """What the child needs to know."""

    directory: str
    gguf: str
    settings: dict[str, Any]
    log_level: int


class _Broken(msgspec.Struct, frozen=True):
    """The model could not be loaded."""

    kind: str
    message: str
    mend: str


class _Loading(msgspec.Struct, frozen=True):
    """Bytes of the weights that were read, and in all."""

    done: int
    total: int


KINDS: tuple[type, ...] = (_Start, _Broken, _Loading, Facts, Submit, Abort, Pin, Close, Report)
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


class Wire:
    """Frames on a socket: a kind, a length, msgpack. `send` is safe from many threads, `receive` for one."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._lock = end, threading.Lock()
        self._decoders: list[Any] = [msgspec.msgpack.Decoder(kind) for kind in KINDS]
        self._file = end.makefile("rb")

    def frame(self, message: object) -> bytes:
        """The message as it is sent. Raises SettingInvalid for what no message can hold, whoever let it through."""
        try:
            body = msgspec.msgpack.encode(message)
        except (UnicodeEncodeError, OverflowError, TypeError, RecursionError) as error:
            raise SettingInvalid(
                f"the request cannot be sent to the engine ({type(error).__name__})",
                mend="write texts without lone surrogates, and numbers of at most 63 bits",
            ) from None
        return HEAD.pack(_NUMBERS[type(message)], len(body)) + body

    def send(self, message: object) -> None:
        """Waits until the other side has room. Raises OSError when it is gone."""
        self.write(self.frame(message))

    def write(self, frame: bytes) -> None:
        with self._lock:
            self._socket.sendall(frame)

    def receive(self) -> Any:
        """The next message; None when the other side has ended."""
        try:
            head = self._file.read(HEAD.size)
            if len(head) < HEAD.size:
                return None
            number, length = HEAD.unpack(head)
            body = self._file.read(length)
            return self._decoders[number].decode(body) if len(body) == length else None
        except OSError:
            return None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._file.close()
        self._socket.close()


class Outbox:
    """Messages on their way through a wire, sent by a thread: who puts one never waits for the other side to read."""

    def __init__(self, wire: Wire) -> None:
        self._wire, self._frames = wire, SimpleQueue[bytes | None]()
        self._lock, self._unsent, self._broken = threading.Lock(), 0, False
        self._thread = threading.Thread(target=self._write, name="engine requests", daemon=True)
        self._thread.start()

    def put(self, message: Message) -> None:
        """Raises RequestFailed when the other side is gone, QueueFull for a request while it reads nothing."""
        frame = self._wire.frame(message)
        with self._lock:
            if self._broken:
                raise lost("its process is gone")
            if isinstance(message, Submit) and self._unsent > MOST_UNSENT:
                raise QueueFull(
                    f"the engine's process has left {self._unsent} bytes of requests unread", mend="try again later"
                )
            self._unsent += len(frame)
        self._frames.put(frame)

    def _write(self) -> None:
        while (frame := self._frames.get()) is not None:
            try:
                self._wire.write(frame)
            except OSError:
                with self._lock:
                    self._broken = True
                return
            with self._lock:
                self._unsent -= len(frame)

    def close(self) -> None:
        """Once the other side has ended: what was not sent is dropped."""
        self._frames.put(None)
        self._thread.join()


class ProcessLink:
    """The loop in a child process, which loads the model. Raises what was wrong with the model.

    `grace`: seconds that the child has for its end, once it is told to.
    """

    def __init__(
        self,
        source: ModelSource,
        settings: EngineSettings,
        deliver: Deliver,
        gone: Gone,
        progress: Callable[[int, int], None] | None = None,
        *,
        grace: float = GRACE,
    ) -> None:
        ours, theirs = socket.socketpair()
        self._wire, self._gone, self._told, self._grace = Wire(ours), gone, False, grace
        command = [sys.executable, "-c", f"from engines.llm.process import main; main({theirs.fileno()})"]
        self.child = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(),),
            env=_environment(settings),
            start_new_session=True,  # Ctrl-C is for the parent, which decides when this one ends
        )
        theirs.close()
        try:
            level = logging.getLogger("engines.llm").getEffectiveLevel()
            self._wire.send(_Start(str(source.directory), source.gguf, asdict(settings), level))
            self.facts = self._loaded(progress)
        except BaseException:
            self.child.kill()
            self.child.wait()
            self._wire.close()
            raise
        self._outbox = Outbox(self._wire)
        self._reader = threading.Thread(target=self._read, args=(deliver,), name="engine events", daemon=True)
        self._reader.start()

    def _loaded(self, progress: Callable[[int, int], None] | None) -> Facts:
        while True:
            message = self._wire.receive()
            if isinstance(message, Facts):
                return message
            if isinstance(message, _Loading):
                if progress is not None:
                    progress(message.done, message.total)
            elif isinstance(message, _Broken):
                kind = getattr(errors, message.kind, EngineError)
                raise kind(message.message, mend=message.mend)
            else:
                raise RequestFailed(
                    f"the engine's process ended with code {self.child.wait()} while it loaded the model",
                    mend="its own output says why; often the machine has too little memory",
                )

    def _read(self, deliver: Deliver) -> None:
        while (message := self._wire.receive()) is not None:
            deliver(message)
        if self._told:
            self._gone("")
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(self._grace)
        self._gone(f"the engine's process has ended with code {self.child.returncode}")

    def send(self, message: Message) -> None:
        """Never waits for the child. Raises QueueFull when it does not read."""
        self._outbox.put(message)

    def close(self) -> None:
        self._told = True
        with contextlib.suppress(EngineError):
            self._outbox.put(Close())
        try:
            self.child.wait(self._grace)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self._outbox.close()
        self._reader.join()
        self._wire.close()


def _environment(settings: EngineSettings) -> dict[str, str]:
    """Modules as here, and threads before the libraries load that take their number from the environment."""
    found = dict(os.environ)
    found["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    found.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin while they wait starve what runs beside them
    if settings.threads:
        found["OMP_NUM_THREADS"] = str(settings.threads)
    return found


def main(descriptor: int) -> None:
    """The child: load, say what was loaded, then steps until told to end or until the parent is gone."""
    wire = Wire(socket.socket(fileno=descriptor))
    start = wire.receive()
    if not isinstance(start, _Start):
        return
    logging.basicConfig(level=start.log_level, format="%(levelname)s %(name)s: %(message)s")
    source, settings = ModelSource(Path(start.directory), start.gguf), EngineSettings(**start.settings)

    def emit(report: Report) -> None:
        with contextlib.suppress(OSError):  # the parent is gone: the reader ends the loop
            wire.send(report)

    def loading(done: int, total: int) -> None:
        wire.send(_Loading(done, total))

    try:
        core, facts = assemble(
            source, settings, emit, grammars=lambda width: grammars_of(source, width), progress=loading
        )
        wire.send(facts)
    except EngineError as error:
        with contextlib.suppress(OSError):
            wire.send(_Broken(type(error).__name__, error.message, error.mend))
        return
    except (BrokenPipeError, ConnectionResetError):
        return  # the parent went away meanwhile: nobody is left to be told
    threading.Thread(target=_listen, args=(wire, core), daemon=True).start()
    core.run()
    wire.close()


def _listen(wire: Wire, core: Core) -> None:
    while (message := wire.receive()) is not None:
        core.put(message)
    core.put(Close())
    threading.Event().wait(GRACE)  # for the step under way; a loop that hangs must not outlive its parent
    os._exit(1)
