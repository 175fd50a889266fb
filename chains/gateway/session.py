"""What the protocols at the edge share: settings, admission, keys, methods, arguments, calls, inputs."""

from __future__ import annotations

import asyncio
import difflib
import hmac
import logging
import math
import os
import re
import secrets
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, fields
from inspect import Parameter
from typing import Any, Literal
from urllib.parse import urlsplit

from chains.call import Call, current
from chains.channel import Channel, End
from chains.dsl.signature import Method, Param
from chains.errors import (
    Cancelled,
    ChainsError,
    Frame,
    InvalidValue,
    NotFound,
    Overloaded,
    ProtocolError,
    RemoteError,
    SettingError,
    Unauthenticated,
    Unavailable,
)
from chains.gateway.audio import AtRate
from chains.gateway.tape import Deck, Redact, Tape
from chains.messages import Audio
from chains.metrics import Metrics
from chains.protocol import DEFAULT_WINDOW, from_kind
from chains.runtime.deployment import Runtime
from chains.sockets import is_loopback

log = logging.getLogger("chains.gateway")
REPLAY_HEADER = "x-chains-replay-of"
_CALL_ID = re.compile(r"[\w.:-]{1,80}")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """All that can be set of a gateway. Sizes in bytes, times in seconds.

    `keys`: bearer keys, one of which a caller must show (none: open, and then only on the loopback interface,
    unless `insecure`). `origins`: pages of other sites that may call from a browser ("*": any).
    `rates`: the sample rates that chains are given; audio at any other is resampled to the last of them.
    `record`: keep what is said, in the `viewer` at this URL, after `redact` ("module:function") has been over it.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    keys: tuple[str, ...] = ()
    insecure: bool = False
    origins: tuple[str, ...] = ()
    max_frame: int = 1 << 20
    max_body: int = 16 << 20
    max_connections: int = 256
    window: int = DEFAULT_WINDOW
    open_seconds: float = 10.0
    idle_seconds: float = 60.0
    max_call_seconds: float = 3600.0
    ping_seconds: float = 20.0
    drain_seconds: float = 10.0
    rates: tuple[int, ...] = (8000, 16000)
    debug: bool = False
    record: bool = False
    redact: str | Redact = ""
    viewer: str = ""
    viewer_key: str = ""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if field.name != "port" and number and not 0 < value < math.inf:
                raise SettingError(f"{field.name} is {value}", mend="give a number above 0")
        if not 0 <= self.port <= 65535:
            raise SettingError(f"port is {self.port}", mend="give 1 to 65535, or 0 for any free one")
        if not self.rates:
            raise SettingError("rates is empty", mend="give at least one sample rate, e.g. (16000,)")
        if any(not key or not key.isascii() for key in self.keys):
            raise SettingError("a key is empty or not ASCII", mend="give keys of ASCII characters")
        if not self.keys and not self.insecure and not is_loopback(self.host):
            raise SettingError(
                f"host {self.host} is open to other machines and no key is set",
                mend="add --key KEY (callers then send it as a bearer token), or --insecure if that is meant",
            )


class Gateway:
    """One runtime behind one door: who may come in, what can be called, which calls are going on."""

    def __init__(self, runtime: Runtime, settings: GatewaySettings) -> None:
        self.runtime = runtime
        self.settings = settings
        self.methods: dict[str, Method] = dict(runtime.graph.nodes[runtime.graph.entry].methods)
        self.deck = Deck(settings.viewer, settings.viewer_key, settings.redact) if settings.record else None
        self.draining = False
        self.calls: set[Call] = set()
        self.metrics = Metrics(f"{socket.gethostname()}:{os.getpid()}", runtime.load, lambda: len(self.calls))
        runtime.recorder.attach(self.metrics)
        self._connections = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    # who may come in

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count a connection for as long as the block runs. Raises Unavailable or Overloaded."""
        if self.draining:
            raise Unavailable("the server is shutting down", mend="call again in a moment")
        limit = self.settings.max_connections
        if self._connections >= limit:
            raise Overloaded(
                f"{limit} connections are open, which is the limit",
                mend="call again later, or raise GatewaySettings.max_connections",
            )
        self._connections += 1
        self._quiet.clear()
        try:
            yield
        finally:
            self._connections -= 1
            if not self._connections:
                self._quiet.set()

    def authorise(self, authorization: str = "", key: str = "") -> None:
        """Raises Unauthenticated unless no key is set, or one of them came by header or in the open frame."""
        keys = self.settings.keys
        if not keys:
            return
        scheme, _, token = authorization.partition(" ")
        shown = token.strip() if scheme.lower() == "bearer" else key
        if not shown:
            raise Unauthenticated(
                "this server wants a key",
                mend='send the header "Authorization: Bearer KEY", or "key" in the open frame',
            )
        # every key is compared, so that the time says nothing about which one came close
        matches = [hmac.compare_digest(shown.encode(), known.encode()) for known in keys]
        if not any(matches):
            raise Unauthenticated("the key is not one of this server's", mend="ask whoever runs it for a key")

    def origin_allowed(self, origin: str, host: str) -> bool:
        """Whether a browser's page of `origin` may call: one that is listed, or one that this server served.

        Without keys the server's own name must be a loopback one, since any name can be made to point here.
        """
        allowed = self.settings.origins
        if not origin or "*" in allowed or origin in allowed:
            return True
        parts = urlsplit(origin)
        same = parts.netloc.lower() == host.lower()
        return same and (bool(self.settings.keys) or self.settings.insecure or is_loopback(parts.hostname or ""))

    # what can be called

    def method(self, name: str = "") -> Method:
        """The entry's method; without a name `run`, or the only one. Raises NotFound, with what is there."""
        if not name:
            if "run" in self.methods:
                return self.methods["run"]
            if len(self.methods) == 1:
                return next(iter(self.methods.values()))
        method = self.methods.get(name)
        if method is not None:
            return method
        known = ", ".join(self.methods)
        near = difflib.get_close_matches(name, self.methods, 1)
        found = f"there is no method {name!r}" if name else "no method was named, and there is none called run"
        mend = f"did you mean {near[0]}? The methods are {known}" if near else f"call one of {known}"
        raise NotFound(found, mend=mend)

    # calls

    @asynccontextmanager
    async def open_call(
        self,
        method: Method,
        *,
        deadline_s: float | None = None,
        priority: Literal["interactive", "batch"] = "interactive",
        traceparent: str | None = None,
        replay_of: str = "",
        tracestate: str | None = None,
    ) -> AsyncIterator[Call]:
        """A call of the runtime that this gateway can cancel when it shuts down; its end is logged, never its words."""
        id = f"replay-of-{replay_of}-{secrets.token_hex(2)}" if _CALL_ID.fullmatch(replay_of) else None
        longest = self.settings.max_call_seconds
        began = time.monotonic()
        outcome = "done"
        async with self.runtime.open_call(
            id=id,
            deadline_s=min(deadline_s or longest, longest),
            priority=priority,
            traceparent=traceparent,
            tracestate=tracestate,
        ) as call:
            self.calls.add(call)
            try:
                yield call
            except BaseException as error:
                outcome = type(error).__name__
                raise
            finally:
                self.calls.discard(call)
                seconds = time.monotonic() - began
                log.info("call %s of %s: %s after %.2f s", call.id, method.label, call.reason or outcome, seconds)

    def tape(self, call: Call, method: Method, arguments: dict[str, Any], **about: Any) -> Tape | None:
        """The recording of a call that has been opened with `arguments` (plain JSON); None when recording is off."""
        if self.deck is None:
            return None
        return self.deck.open(call, method, arguments, chain=self.runtime.graph.entry, **about)

    async def items(self, method: Method, arguments: Mapping[str, Any]) -> AsyncIterator[Any]:
        """What the method yields, or its one result, in the current call; leaving early cancels the hop."""
        target = getattr(self.runtime.entry, method.name)
        try:
            if not method.streams_out:
                yield await target(**arguments)
                return
            stream = target(**arguments)
            try:
                async for item in stream:
                    yield item
            finally:
                close = getattr(stream, "aclose", None)
                if close is not None:
                    await close()
        except Exception as error:
            _warn(method, current().call, error)
            raise

    async def drain(self, seconds: float) -> bool:
        """Let nobody in any more, wait for the open connections, cancel what is left. True if none was."""
        self.draining = True
        if await self.quiet(seconds):
            return True
        self.cancel_all()
        return False

    async def quiet(self, seconds: float) -> bool:
        """Wait until no connection is open; False when the time ran out."""
        try:
            async with asyncio.timeout(seconds):
                await self._quiet.wait()
            return True
        except TimeoutError:
            return False

    def cancel_all(self) -> None:
        for call in list(self.calls):
            call.cancel("the server is shutting down")


def _warn(method: Method, call: Call, error: Exception) -> None:
    """A line for whoever runs the chain: which call failed, of what and where; not the error's text, which may hold
    a caller's words. Refusals, and what a caller did wrong or cut short, are no failures of the chain.
    """
    if call.cancelled or (isinstance(error, ChainsError) and (error.http < 500 or error.retryable)):
        return
    frames: tuple[Frame, ...] = error.frames if isinstance(error, RemoteError) else getattr(error, "chains_frames", ())
    kind = error.type_name if isinstance(error, RemoteError) else type(error).__name__
    frame = next((frame for frame in reversed(frames) if not _is_library(frame.file)), frames[-1] if frames else None)
    where = f" at {frame.file}:{frame.line} ({frame.hop}, {frame.function})" if frame is not None else ""
    log.warning("call %s of %s failed: %s%s", call.id, method.label, kind, where)


def _is_library(file: str) -> bool:
    return f"{os.sep}site-packages{os.sep}" in file or file.startswith(os.path.dirname(os.__file__) + os.sep)


class Inbox:
    """One stream parameter's items on their way in: bounded by `window`, checked, at a rate that chains know.

    The caller's side puts, the chain's side iterates; `taken(bytes)` is told what the chain has taken.
    """

    def __init__(self, param: Param, settings: GatewaySettings, taken: Callable[[int], None] | None = None) -> None:
        self.param = param
        self.window = settings.window
        self.waiting = 0
        rates = settings.rates
        self._audio = AtRate(lambda rate: rate if rate in rates else rates[-1])
        self._taken = taken
        self._sizes: deque[int] = deque()
        self._channel: Channel[Any] = Channel(1 << 62)  # the bytes that count are the frames', counted here
        self._room = asyncio.Event()
        self._room.set()

    @property
    def where(self) -> str:
        return f"stream {self.param.name}"

    def put_plain(self, value: Any, kind: str, size: int) -> None:
        """An item that came as JSON. Raises InvalidValue or ProtocolError for one that does not fit."""
        if kind in ("", "value"):
            self._put(self.param.checker.parse(value, self.where), size)
        else:
            self.put(from_kind(kind, value), size)

    def put(self, value: Any, size: int) -> None:
        """An item that is a value already. Raises InvalidValue for one that the parameter does not take."""
        if isinstance(value, Audio):
            value = self._audio.push(value)
        self._put(self.param.checker.check(value, self.where), size)

    def _put(self, value: Any, size: int) -> None:
        ended = self._channel.ended
        if ended is not None and ended.kind == "done":
            raise ProtocolError(f"an item came after the end of {self.where}", mend="send no items after an end frame")
        if ended is not None or not self._channel.offer(value):
            return  # nobody reads any more
        self._sizes.append(size)
        self.waiting += size
        if self.waiting >= self.window:
            self._room.clear()

    async def room(self) -> None:
        """Wait until less than the window is waiting."""
        await self._room.wait()

    def end(self) -> None:
        rest = self._audio.flush()
        if rest is not None and self._channel.ended is None:
            self._put(rest, 0)
        self._channel.end()

    def cancel(self, reason: str) -> None:
        self._channel.end(End("cancelled", Cancelled(reason), reason))
        self._room.set()

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for value in self._channel:
            size = self._sizes.popleft()
            self.waiting -= size
            if self.waiting < self.window:
                self._room.set()
            if self._taken is not None and size:
                self._taken(size)
            yield value


def bind(method: Method, given: Mapping[str, Any], inboxes: Mapping[str, Inbox]) -> dict[str, Any]:
    """The method's arguments from plain JSON, stream parameters from their inboxes.

    A list given for a stream parameter is fed to it whole. Raises InvalidValue: which argument, what was
    found, what is expected.
    """
    names = {param.name for param in method.params}
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InvalidValue(f"{method.label} has no argument {name!r}", mend=f"{hint}It is {method.shape}")
    bound: dict[str, Any] = {}
    for param in method.params:
        if param.stream:
            bound[param.name] = aiter(inboxes[param.name])
            if param.name in given:
                _feed(inboxes[param.name], given[param.name])
        elif param.name in given:
            bound[param.name] = _parsed(method, param, given[param.name])
        elif param.default is Parameter.empty:
            raise InvalidValue(f"{method.label} misses the argument {param.name!r}", mend=f"it is {method.shape}")
    return bound


def _parsed(method: Method, param: Param, plain: Any) -> Any:
    try:
        return param.checker.parse(plain, f"{method.label} argument {param.name}")
    except InvalidValue as error:
        raise InvalidValue(error.message, mend=error.mend or f"it is {method.shape}") from error.__cause__


def _feed(inbox: Inbox, items: Any) -> None:
    if not isinstance(items, list):
        raise InvalidValue(f"{inbox.where} is {type(items).__name__}", mend="give a list of its items")
    for item in items:
        inbox.put_plain(item, "", 0)
    inbox.end()
