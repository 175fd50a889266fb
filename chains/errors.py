"""One error tree. A user meets these and no others, whatever library failed underneath.

    ChainsError                     every error of ours: what was found, and the mend
    |-- GraphError                  a chain that cannot stand: all its faults, each with file:line and the line to write
    |-- SettingError                a setting that is unknown or makes no sense
    |-- InvalidValue                a value that its annotation does not admit: an argument, an item of an input
    |   `-- InvalidResult           the same of what a chainlet's own method gave: its fault, not the caller's
    |-- MediaError                  audio that cannot be read or is of a kind that is not spoken here
    |-- ProtocolError               a peer that does not keep the protocol (junk JSON, a frame out of order)
    |-- LimitExceeded               input larger, longer or more frequent than a limit allows
    |-- Unauthenticated             no key, or a wrong one
    |-- NotFound                    no such chainlet, method or path
    |-- Cancelled                   the scope was cancelled: hang-up, barge-in, a consumer that left
    |-- DeadlineExceeded            the time ran out: a call's, a turn's, a hop's, or a stream's first or idle timeout
    |-- Overloaded                  the replica is past its caps; refused before any work began
    |-- Unavailable                 no replica to serve, or it went away
    |-- StartError                  a replica that did not start, or did not warm up
    |-- ModelError                  a model's files are missing or broken
    `-- RemoteError                 the user's code raised: type, message, and the user's frames over all hops

Each class carries what it is called elsewhere: a gRPC status, an HTTP status and a websocket close code.
"""

from __future__ import annotations

import builtins
import os
import re
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar


class ChainsError(Exception):
    """What was found, and how to mend it. `str(error)` is the whole of it; `mend` alone is the advice."""

    grpc: ClassVar[str] = "UNKNOWN"
    http: ClassVar[int] = 500
    ws: ClassVar[int] = 1011
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, mend: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.mend = mend

    def __str__(self) -> str:
        return f"{self.message}; {self.mend}" if self.mend else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuilt, (type(self), self.__dict__, self.args))


def _rebuilt(cls: type[ChainsError], state: dict[str, object], args: tuple[object, ...]) -> ChainsError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a chain: where it stands, what was found, and the line to write instead."""

    where: str
    found: str
    write: str = ""

    def __str__(self) -> str:
        return f"{self.where} {self.found}" + (f"; {self.write}" if self.write else "")


class GraphError(ChainsError):
    """A chain that cannot stand. `faults` holds every one of them, not just the first."""

    grpc, http, ws = "FAILED_PRECONDITION", 500, 1011

    def __init__(self, faults: Sequence[Fault], *, chain: str = "") -> None:
        self.faults = tuple(faults)
        count = f"{len(self.faults)} fault" + ("" if len(self.faults) == 1 else "s")
        lines = [f"{count} in chain {chain}" if chain else count, *(f"  {fault}" for fault in self.faults)]
        super().__init__("\n".join(lines))


class SettingError(ChainsError):
    """A setting that is unknown, of the wrong kind, or makes no sense."""

    grpc, http, ws = "INVALID_ARGUMENT", 400, 1008


class InvalidValue(ChainsError):
    """A value that its annotation does not admit."""

    grpc, http, ws = "INVALID_ARGUMENT", 422, 1007


class InvalidResult(InvalidValue):
    """What a chainlet's method returned or yielded is not what its own annotation says."""

    grpc, http, ws = "INTERNAL", 500, 1011


class MediaError(ChainsError):
    """Audio that cannot be read, or is of a kind that is not handled."""

    grpc, http, ws = "INVALID_ARGUMENT", 415, 1003


class ProtocolError(ChainsError):
    """The peer did not keep the protocol."""

    grpc, http, ws = "INVALID_ARGUMENT", 400, 1002


class LimitExceeded(ChainsError):
    """Input past a limit: a frame's size, a queue's bytes, a connection's idle time."""

    grpc, http, ws = "OUT_OF_RANGE", 413, 1009


class Unauthenticated(ChainsError):
    """No key where one is needed, or a wrong one."""

    grpc, http, ws = "UNAUTHENTICATED", 401, 1008


class NotFound(ChainsError):
    """No such chainlet, method, call or path."""

    grpc, http, ws = "NOT_FOUND", 404, 1008


class Cancelled(ChainsError):
    """The scope was cancelled. `reason` says by what: "hang-up", "barge-in", "consumer left", ..."""

    grpc, http, ws = "CANCELLED", 499, 1001

    def __init__(self, reason: str = "cancelled", *, mend: str = "") -> None:
        super().__init__(f"cancelled: {reason}" if reason != "cancelled" else reason, mend=mend)
        self.reason = reason


class DeadlineExceeded(ChainsError):
    """The time ran out before the result (or the first, or the next item) was there."""

    grpc, http, ws = "DEADLINE_EXCEEDED", 504, 1011


class Overloaded(ChainsError):
    """Past the caps: refused at once, before any work began."""

    grpc, http, ws, retryable = "RESOURCE_EXHAUSTED", 503, 1013, True


class Unavailable(ChainsError):
    """No replica can serve, or the one that did has gone."""

    grpc, http, ws, retryable = "UNAVAILABLE", 503, 1012, True


class StartError(ChainsError):
    """A replica did not start or did not warm up. The cause is chained."""

    grpc, http, ws = "FAILED_PRECONDITION", 500, 1011


class ModelError(ChainsError):
    """A model's files are missing or broken."""

    grpc, http, ws = "FAILED_PRECONDITION", 500, 1011


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of the user's code on the way to an error."""

    hop: str
    file: str
    line: int
    function: str
    source: str = ""

    def __str__(self) -> str:
        text = f'[{self.hop}] File "{self.file}", line {self.line}, in {self.function}'
        return f"{text}\n      {self.source}" if self.source else text


class RemoteError(ChainsError):
    """The user's code raised something that the method does not list in `raises=`.

    `type_name` and `text` are the original's; `frames` are the user's frames over all hops, root cause last.
    """

    grpc, http, ws = "INTERNAL", 500, 1011

    def __init__(self, type_name: str, text: str, frames: Sequence[Frame] = ()) -> None:
        self.type_name = type_name
        self.text = text
        self.frames = tuple(frames)
        lines = [f"{type_name}: {text}" if text else type_name, *(f"  {frame}" for frame in self.frames)]
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    """An error as it crosses a hop: plain data, so that nothing need be imported because a peer named it."""

    type_name: str
    message: str
    mend: str = ""
    frames: tuple[Frame, ...] = ()
    reason: str = ""


OURS: dict[str, type[ChainsError]] = {
    cls.__name__: cls
    for cls in (
        SettingError, InvalidValue, InvalidResult, MediaError, ProtocolError, LimitExceeded, Unauthenticated, NotFound,
        Cancelled, DeadlineExceeded, Overloaded, Unavailable, StartError, ModelError,
    )
}  # fmt: skip


def describe(error: BaseException, hop: str) -> ErrorDetail:
    """What of `error`, raised in `hop`'s user code, goes back over the hop: its name, message and the user's frames.

    Frames that the error collected on hops further down come after this hop's own, so the root cause stands last.
    """
    inner: tuple[Frame, ...] = getattr(error, "chains_frames", ())
    frames = (*_user_frames(error, hop), *inner)
    if isinstance(error, RemoteError):
        return ErrorDetail(error.type_name, error.text, "", (*_user_frames(error, hop), *error.frames))
    if isinstance(error, ChainsError):
        reason = error.reason if isinstance(error, Cancelled) else ""
        return ErrorDetail(type(error).__name__, error.message, error.mend, frames, reason)
    return ErrorDetail(_qualified(type(error)), _text(error), "", frames)


def _text(error: BaseException) -> str:
    """A KeyError prints its key in quotes, and would gain a pair at each hop."""
    if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
        return error.args[0]
    return str(error)


def revive(detail: ErrorDetail, raises: Iterable[type[BaseException]] = ()) -> BaseException:
    """The error as its caller sees it: of the original type if ours, a builtin or in `raises`, else RemoteError."""
    error = _original(detail, raises)
    if error is None:
        return RemoteError(detail.type_name, detail.message, detail.frames)
    error.chains_frames = detail.frames  # type: ignore[attr-defined]
    return error


def _original(detail: ErrorDetail, raises: Iterable[type[BaseException]]) -> BaseException | None:
    ours = OURS.get(detail.type_name)
    if ours is Cancelled:
        return Cancelled(detail.reason or detail.message)
    if ours is not None:
        return ours(detail.message, mend=detail.mend)
    listed = {_qualified(cls): cls for cls in raises}
    cls = listed.get(detail.type_name) or _builtin(detail.type_name)
    if cls is None:
        return None
    try:
        return cls(detail.message)
    except Exception:  # a constructor with other arguments: the text survives in RemoteError
        return None


def _builtin(name: str) -> type[Exception] | None:
    cls = getattr(builtins, name, None)
    if not isinstance(cls, type) or not issubclass(cls, Exception):
        return None
    # Raised to a reader, the two that end an iteration would pass for a clean end.
    return None if issubclass(cls, StopIteration | StopAsyncIteration) else cls


_CHAIN_FILE = re.compile(r"^chain_(\w+)_[0-9a-f]{8}$")


def _qualified(cls: type[BaseException]) -> str:
    module = _CHAIN_FILE.sub(r"\1", cls.__module__)  # a chain's file is loaded under a name of its own
    return cls.__name__ if module == "builtins" else f"{module}.{cls.__qualname__}"


def how_to_install(module: str) -> str:
    """The command that brings a module which is missing: our own extra that has it, or the package of its name."""
    from importlib.metadata import PackageNotFoundError, requires

    package = module.partition(".")[0]
    try:
        ours = requires("chains-serve") or []
    except PackageNotFoundError:
        ours = []
    for requirement in reversed(ours):  # by name: torch is llm's before it is coqui's
        found = re.match(r"([\w.-]+).*\bextra == ['\"](\w+)", requirement)
        if found and re.sub(r"[-.]+", "_", found[1]).lower() == package.lower():
            return f'run: pip install "chains-serve[{found[2]}]"'
    return f"run: pip install {package}"


_PACKAGE, _STANDARD = os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.__file__)
_LIBRARY = (
    *(
        os.path.join(_PACKAGE, *part)
        for part in (("runtime", ""), ("wire", ""), ("dsl", ""), ("call.py",), ("channel.py",))
    ),
    *(os.path.join(_STANDARD, *part) for part in (("asyncio", ""), ("concurrent", ""), ("threading.py",))),
)


def _user_frames(error: BaseException, hop: str) -> list[Frame]:
    stack = traceback.extract_tb(error.__traceback__)
    return [
        Frame(hop, frame.filename, frame.lineno or 0, frame.name, (frame.line or "").strip())
        for frame in stack
        if not frame.filename.startswith(_LIBRARY)
    ]
