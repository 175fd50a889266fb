"""The client for code without an event loop, against a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator

import numpy as np
import pytest

from chains.client import connect_sync
from chains.errors import Cancelled, NotFound, Unavailable
from chains.messages import Audio
from chains.serve import Server

Serve = Callable[..., Awaitable[Server]]


async def test_the_sync_client_is_the_same_without_a_loop(serve: Serve) -> None:
    server = await serve()

    def frames() -> Iterator[Audio]:
        for number in range(3):
            yield Audio(np.full(320, number, np.int16), 16000)

    def work() -> None:
        with connect_sync(server.url) as client:
            assert client.invoke("shout", text="a") == "A"
            assert client.health()["ok"] and client.chain()["entry"] == "Parlour"
            with client.call("run", audio=frames()) as call:
                assert [type(item).__name__ for item in call] == ["Audio", "Audio", "Audio", "Text"]
            with client.call("shout", text="b") as call:
                assert call.result() == "B"
            with client.call("drip") as call:
                assert next(call) == "first"
                call.played(1, 5.0)
                call.hold()
                call.resume()
                call.cancel("enough")
                with pytest.raises(Cancelled, match="enough"):
                    next(call)
            with pytest.raises(NotFound), client.call("nope"):
                pass
        with pytest.raises(Unavailable, match="not open"):
            client.invoke("shout", text="a")

    await asyncio.to_thread(work)
    assert not [thread for thread in threading.enumerate() if thread.name == "chains-client"]
