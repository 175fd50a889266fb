"""The client for code with an event loop: typed items, credit both ways, errors as in-process."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec
import numpy as np
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from chains import protocol
from chains.client.reach import CALL_PATH, address, bad_url, bearer, broke_off, dial, refused, unreachable
from chains.dsl.arrays import dump_array
from chains.errors import Cancelled, InvalidValue, ProtocolError, Unavailable


def connect(
    url: str,
    *,
    key: str = "",
    rate: int | None = None,
    encoding: protocol.Encoding = "pcm16",
    window: int | None = protocol.DEFAULT_WINDOW,
    timeout: float = 10.0,
) -> Client:
    """A client of the gateway at `url` (ws://, http://, ...; a path /v1/call/METHOD names the default method).

    `rate` and `encoding` say how audio is to arrive (and `encoding` also how it is sent: mu-law halves it),
    `window` how many bytes of items may wait here, `timeout` how many seconds a connection may take to open.
    """
    return Client(url, key, protocol.AudioFormat(rate, encoding), window, timeout)


class Client:
    """Where a gateway is and how to call it. Each call has a connection of its own."""

    def __init__(self, url: str, key: str, audio: protocol.AudioFormat, window: int | None, timeout: float) -> None:
        self.base, self.method = address(url)
        self.audio, self.window, self.timeout, self.key = audio, window, timeout, key
        self.headers = bearer(key)
        self._http = httpx.AsyncClient(
            base_url=self.base, headers=self.headers, timeout=httpx.Timeout(None, connect=timeout)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    def call(self, method: str = "", /, **arguments: Any) -> ClientCall:
        """A call over the websocket: `async with client.call("run", audio=frames, text="x") as call`.

        Iterators (async ones, or generators) feed stream parameters; everything else is an argument.
        """
        return ClientCall(self, method or self.method, arguments)

    async def invoke(self, method: str = "", /, **arguments: Any) -> Any:
        """One result over HTTP, as plain JSON; of a method that streams, the list of its items."""
        path = f"{CALL_PATH}/{method or self.method}".rstrip("/")
        response = await self._request("POST", path, _encoded(arguments))
        if "ndjson" not in response.headers.get("content-type", ""):
            return msgspec.json.decode(response.content)["result"]
        items = []
        for line in response.content.splitlines():
            frame = protocol.decode_server(line)
            if frame["type"] in ("error", "cancelled"):
                raise protocol.error_from(frame["error"])
            if frame["type"] == "item":
                items.append(protocol.from_kind(frame["kind"], frame["value"]))
        return items

    async def chain(self) -> dict[str, Any]:
        """The served chain: its entry, its methods with JSON schemas, its graph."""
        described: dict[str, Any] = msgspec.json.decode((await self._request("GET", "/v1/chain")).content)
        return described

    async def health(self) -> dict[str, Any]:
        """{"ok", "why", "calls", "replicas"}."""
        health: dict[str, Any] = msgspec.json.decode((await self._request("GET", "/healthz", fine=503)).content)
        return health

    async def _request(self, verb: str, path: str, body: bytes | None = None, fine: int = 200) -> httpx.Response:
        headers = {"content-type": "application/json"} if body is not None else {}
        try:
            response = await self._http.request(verb, path, content=body, headers=headers)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol):
            raise bad_url(self.base) from None
        except httpx.HTTPError as error:
            raise unreachable(self.base, error) from None
        if response.status_code not in (200, fine):
            raise refused(response.status_code, response.content, self.base)
        return response


class ClientCall:
    """One call; iterates its items: Audio, Text, Tokens, Tensor, Control, arrays, bytes or plain JSON.

    What the call ends with is raised as the type it has there: chains.errors, a builtin, or RemoteError.
    """

    def __init__(self, client: Client, method: str, arguments: dict[str, Any]) -> None:
        self._client = client
        self._method = method
        streams = {name for name, value in arguments.items() if _is_stream(value)}
        self._arguments = {name: value for name, value in arguments.items() if name not in streams}
        self._streams = {name: arguments[name] for name in streams}
        self._socket: ClientConnection | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._credits: dict[int, int] = {}
        self._more_credit = asyncio.Event()
        self._items: deque[tuple[Any, int]] = deque()
        self._arrived = asyncio.Event()
        self._taken = 0
        self._end: BaseException | None = None
        self._watchers: list[Callable[[str, int], None]] = []
        self.id = ""
        self.opened: dict[str, Any] = {}

    # life

    async def __aenter__(self) -> Self:
        client = self._client
        path = f"{CALL_PATH}/{self._method}" if self._method else CALL_PATH
        self._socket = await dial(client.base, path, client.headers, client.timeout)
        try:
            arguments = msgspec.json.decode(_encoded(self._arguments))
            frame = protocol.Open(arguments=arguments, audio=client.audio, window=client.window)
            with contextlib.suppress(Unavailable):  # refused already: the reason waits to be read
                await self._send(protocol.encode_client(frame))
            await self._open()
        except BaseException:
            await self._socket.close()
            raise
        return self

    async def _open(self) -> None:
        assert self._socket is not None
        try:
            first = protocol.decode_server(await self._socket.recv())
        except ConnectionClosed as closed:
            raise broke_off(closed) from None
        if first["type"] != "opened":
            raise self._terminal(first) or ProtocolError(
                f"the server began with a {first['type']} frame",
                mend="is this a Chains gateway of the same version?",
            )
        self.opened, self.id = first, first["call"]
        known = {stream["name"]: stream for stream in first["streams"]}
        for name in self._streams:
            if name not in known:
                streams = ", ".join(known) or "none"
                raise InvalidValue(f"{name!r} is no stream of this method", mend=f"its streams are: {streams}")
        for name, stream in known.items():
            self._credits[stream["index"]] = stream["window"]
            self._tasks.append(asyncio.create_task(self._feed(stream["index"], self._streams.get(name, ()))))
        self._tasks.append(asyncio.create_task(self._read()))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._socket is not None:
            await self._socket.close()

    # what comes

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        await self._give_credit()  # for what was taken before; nothing is awaited once an item is in hand
        while not self._items:
            if self._end is not None:
                raise self._end
            self._arrived.clear()
            await self._arrived.wait()
        value, size = self._items.popleft()
        self._taken += size
        return value

    async def result(self) -> Any:
        """The one result of a method that does not stream (of one that does, its last item)."""
        last: Any = None
        async for item in self:
            last = item
        return last

    def watch(self, fn: Callable[[str, int], None]) -> None:
        """Call `fn(event, turn)`: "clear" (drop what is unplayed), "started", "held", "resumed", "ended"."""
        self._watchers.append(fn)

    async def _give_credit(self) -> None:
        window, taken = self._client.window, self._taken
        if window is not None and taken and taken >= window // 4 and self._end is None:
            with contextlib.suppress(Unavailable):  # the reader says how it ended
                await self._send(protocol.encode_client(protocol.Credit(taken)))
            self._taken -= taken

    async def _read(self) -> None:
        assert self._socket is not None
        try:
            while self._end is None:
                self._on_frame(await self._socket.recv())
        except ConnectionClosed as closed:
            self._finish(broke_off(closed))
        except Exception as error:
            self._finish(error)

    def _on_frame(self, frame: str | bytes) -> None:
        if isinstance(frame, bytes):
            self._put(protocol.decode_binary(frame)[1], len(frame))
            return
        fields = protocol.decode_server(frame)
        match fields["type"]:
            case "item":
                self._put(protocol.from_kind(fields["kind"], fields["value"]), protocol.size(frame))
            case "credit":
                self._credits[fields["stream"]] += fields["bytes"]
                self._more_credit.set()
            case "clear":
                self._clear(fields["turn"])
            case "turn":
                self._tell(fields["state"], fields["turn"])
            case _:
                end = self._terminal(fields)
                if end is not None:
                    self._finish(end)

    def _put(self, value: Any, size: int) -> None:
        self._items.append((value, size))
        self._arrived.set()

    def _clear(self, turn: int) -> None:
        kept = deque(entry for entry in self._items if getattr(entry[0], "turn", 0) != turn)
        self._taken += sum(size for _, size in self._items) - sum(size for _, size in kept)
        self._items = kept
        self._tell("clear", turn)

    def _tell(self, event: str, turn: int) -> None:
        for fn in self._watchers:
            fn(event, turn)

    def _terminal(self, fields: dict[str, Any]) -> BaseException | None:
        if fields["type"] == "done":
            return StopAsyncIteration()
        if fields["type"] == "cancelled":
            return Cancelled(fields.get("reason") or "cancelled")
        return protocol.error_from(fields.get("error", {})) if fields["type"] == "error" else None

    def _finish(self, end: BaseException) -> None:
        self._end = self._end or end
        self._arrived.set()

    # what goes

    async def played(self, turn: int, ms: float) -> None:
        """Report that `ms` milliseconds of the turn's audio have been heard so far."""
        await self._control(protocol.Played(turn, ms))

    async def hold(self) -> None:
        """Pause the call: producers stop, nothing is lost."""
        await self._control(protocol.Hold())

    async def resume(self) -> None:
        await self._control(protocol.Resume())

    async def cancel(self, reason: str = "cancelled by the client") -> None:
        """End the call; iterating it raises Cancelled."""
        await self._control(protocol.Cancel(reason))

    async def _control(self, frame: protocol.ClientFrame) -> None:
        if self._end is None:
            await self._send(protocol.encode_client(frame))

    async def _send(self, frame: str | bytes) -> None:
        assert self._socket is not None, "a call is used within `async with`"
        try:
            await self._socket.send(frame)
        except ConnectionClosed as closed:
            raise broke_off(closed) from None

    async def _feed(self, index: int, items: Any) -> None:
        try:
            async for item in _pulled(items):
                await self._send_item(index, item)
            await self._send(protocol.encode_client(protocol.End(index)))
        except Unavailable:
            return  # the reader says how it ended
        except Exception as error:
            self._finish(error)
            with contextlib.suppress(Unavailable):
                await self._send(protocol.encode_client(protocol.Cancel("the caller's input failed")))

    async def _send_item(self, index: int, item: Any) -> None:
        if protocol.is_binary(item):
            frame: str | bytes = protocol.encode_binary(item, index, self._client.audio.encoding)
        else:
            kind = protocol.kind_of(item)
            frame = protocol.encode_client(protocol.Item(_plain(item), index, "" if kind == "value" else kind))
        while self._credits[index] <= 0:
            self._more_credit.clear()
            await self._more_credit.wait()
        self._credits[index] -= protocol.size(frame)
        await self._send(frame)


def _is_stream(value: Any) -> bool:
    return hasattr(value, "__aiter__") or hasattr(value, "__next__")


async def _pulled(items: Any) -> AsyncIterator[Any]:
    """The items of an async iterator, or of a plain one that may block (it is drawn from in a thread)."""
    if hasattr(items, "__aiter__"):
        async for item in items:
            yield item
        return
    iterator = iter(items)
    ended = object()
    while (item := await asyncio.to_thread(next, iterator, ended)) is not ended:
        yield item


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=_foreign)


def _encoded(arguments: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(arguments, enc_hook=_foreign)
    except TypeError as error:
        raise InvalidValue(
            f"an argument cannot be sent: {error}", mend="send plain data, dataclasses or arrays"
        ) from None


def _foreign(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return dump_array(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not plain data")
