"""The client for code without an event loop: the same calls, driven by a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from chains import protocol
from chains.client.aio import Client, ClientCall, connect
from chains.errors import Unavailable

T = TypeVar("T")
_ENDED = object()


def connect_sync(
    url: str,
    *,
    key: str = "",
    rate: int | None = None,
    encoding: protocol.Encoding = "pcm16",
    window: int | None = protocol.DEFAULT_WINDOW,
    timeout: float = 10.0,
) -> SyncClient:
    """As `connect`: `with connect_sync(url) as client, client.call(text="x") as call: ...`."""
    return SyncClient(lambda: connect(url, key=key, rate=rate, encoding=encoding, window=window, timeout=timeout))


class SyncClient:
    """A Client whose methods wait. May be used from several threads."""

    def __init__(self, make: Callable[[], Client]) -> None:
        self._make = make
        self._client: Client | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chains-client", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._client = self.wait(self._made())
        except BaseException:
            self._stop()
            raise
        return self

    async def _made(self) -> Client:
        return self._make()

    def __exit__(self, *_: object) -> None:
        client, self._client = self._client, None
        try:
            if client is not None:
                self.wait(client.__aexit__())
        finally:
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the client's loop and wait for it; an interrupt cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def client(self) -> Client:
        if self._client is None:
            raise Unavailable("the client is not open", mend="use it within `with connect_sync(url) as client`")
        return self._client

    def call(self, method: str = "", /, **arguments: Any) -> SyncCall:
        """As Client.call; a stream parameter takes any iterator, which is drawn from in a thread."""
        return SyncCall(self, self.client.call(method, **arguments))

    def invoke(self, method: str = "", /, **arguments: Any) -> Any:
        return self.wait(self.client.invoke(method, **arguments))

    def chain(self) -> dict[str, Any]:
        return self.wait(self.client.chain())

    def health(self) -> dict[str, Any]:
        return self.wait(self.client.health())


class SyncCall:
    """A ClientCall as a context manager and an iterator."""

    def __init__(self, client: SyncClient, call: ClientCall) -> None:
        self._client = client
        self._call = call

    @property
    def id(self) -> str:
        return self._call.id

    def __enter__(self) -> Self:
        self._client.wait(self._call.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self._client.wait(self._call.__aexit__(None, None, None))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        item = self._client.wait(self._next())
        if item is _ENDED:
            raise StopIteration
        return item

    async def _next(self) -> Any:
        return await anext(self._call, _ENDED)

    def result(self) -> Any:
        """The one result of a method that does not stream (of one that does, its last item)."""
        return self._client.wait(self._call.result())

    def watch(self, fn: Callable[[str, int], None]) -> None:
        """As ClientCall.watch; `fn` runs on the client's thread."""
        self._call.watch(fn)

    def played(self, turn: int, ms: float) -> None:
        self._client.wait(self._call.played(turn, ms))

    def hold(self) -> None:
        self._client.wait(self._call.hold())

    def resume(self) -> None:
        self._client.wait(self._call.resume())

    def cancel(self, reason: str = "cancelled by the client") -> None:
        self._client.wait(self._call.cancel(reason))
