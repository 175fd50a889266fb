"""What the protocols share: who may come in, which method is meant, streams on their way in, and what is logged."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import numpy as np
import pytest

from chains.client import connect
from chains.dsl.graph import Graph, load
from chains.errors import InvalidValue, NotFound, Overloaded, ProtocolError
from chains.gateway.session import Gateway, GatewaySettings, Inbox, bind
from chains.messages import Audio
from chains.runtime.inprocess import InProcess
from chains.serve import Server

Serve = Callable[..., Awaitable[Server]]

TWO_METHODS = """
from chains import chainlet

@chainlet(entry=True)
class Two:
    async def one(self) -> int:
        return 1

    async def two(self) -> int:
        return 2
"""
ONE_METHOD = TWO_METHODS[: TWO_METHODS.index("    async def two")]


def gateway(graph: Graph, **settings: Any) -> Gateway:
    return Gateway(InProcess(graph), GatewaySettings(**settings))


@pytest.mark.parametrize(
    ("settings", "origin", "host", "allowed"),
    [
        ({}, "", "127.0.0.1:8000", True),
        ({}, "http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ({}, "http://localhost:8000", "localhost:8000", True),
        ({}, "http://localhost:3000", "localhost:8000", False),
        ({}, "https://evil.example", "127.0.0.1:8000", False),
        ({}, "http://evil.example:8000", "evil.example:8000", False),  # a name that was made to point here
        ({}, "null", "127.0.0.1:8000", False),
        ({"keys": ("k",)}, "https://me.example", "me.example", True),
        ({"origins": ("https://a.example",)}, "https://a.example", "127.0.0.1:8000", True),
        ({"origins": ("*",)}, "https://b.example", "127.0.0.1:8000", True),
    ],
)
def test_which_pages_may_call(graph: Graph, settings: dict[str, Any], origin: str, host: str, allowed: bool) -> None:
    assert gateway(graph, **settings).origin_allowed(origin, host) is allowed


def test_without_a_name_it_is_run_or_the_only_method(graph: Graph, tmp_path: Any) -> None:
    assert gateway(graph).method().name == "run"
    for name, source in (("one", ONE_METHOD), ("two", TWO_METHODS)):
        (tmp_path / f"{name}.py").write_text(source)
    assert gateway(load(str(tmp_path / "one.py"))).method().name == "one"
    with pytest.raises(NotFound, match="call one of one, two"):
        gateway(load(str(tmp_path / "two.py"))).method()


def test_connections_are_counted_also_when_they_fail(graph: Graph) -> None:
    door = gateway(graph, max_connections=1)
    with pytest.raises(ZeroDivisionError), door.admit():
        with pytest.raises(Overloaded), door.admit():
            pass
        raise ZeroDivisionError
    with door.admit():
        pass


def inbox(graph: Graph, method: str = "run", **settings: Any) -> Inbox:
    door = gateway(graph, **settings)
    return Inbox(door.methods[method].params[0], door.settings)


async def test_an_inbox_is_bounded_and_says_when_there_is_room(graph: Graph) -> None:
    box = inbox(graph, window=1000)
    taken: list[int] = []
    box._taken = taken.append
    box.put(Audio(np.zeros(320, np.int16), 16000), 656)
    assert box.waiting == 656
    await asyncio.wait_for(box.room(), 1)
    box.put(Audio(np.zeros(320, np.int16), 16000), 656)
    waiting = asyncio.create_task(box.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    await anext(aiter(box))
    await asyncio.wait_for(waiting, 1)
    assert (taken, box.waiting) == ([656], 656)


async def test_what_comes_after_the_end_is_refused_and_after_a_cancel_ignored(graph: Graph) -> None:
    box = inbox(graph)
    box.end()
    with pytest.raises(ProtocolError, match="after the end of stream audio"):
        box.put(Audio(np.zeros(2, np.int16), 16000), 1)
    gone = inbox(graph)
    gone.cancel("hang-up")
    gone.put(Audio(np.zeros(2, np.int16), 16000), 1)
    assert gone.waiting == 0


async def test_a_resampled_stream_ends_with_its_tail(graph: Graph) -> None:
    box = inbox(graph)
    for _ in range(50):
        box.put(Audio(np.ones(480, np.int16), 24000), 976)
    box.end()
    pieces = [piece async for piece in box]
    assert {piece.rate for piece in pieces} == {16000}
    assert sum(len(piece.pcm) for piece in pieces) == pytest.approx(16000, abs=2)


async def test_arguments_of_the_wrong_kind_are_named(graph: Graph) -> None:
    method = gateway(graph).methods["words"]
    boxes = {"words": inbox(graph, "words")}
    with pytest.raises(InvalidValue, match=r"stream words is dict.*list"):
        bind(method, {"words": {}}, boxes)
    assert set(bind(method, {"words": [{"text": "a"}]}, boxes)) == {"words"}
    assert [item.text async for item in boxes["words"]] == ["a"]


async def test_no_word_of_a_caller_is_ever_logged(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def sound() -> AsyncIterator[Audio]:
        yield Audio(np.zeros(320, np.int16), 16000, 0, "sesquipedalian")

    server = await serve(keys=("opensesame",))
    async with connect(server.url, key="opensesame") as client:
        await client.invoke("shout", text="sesquipedalian")
        async with client.call("run", audio=sound()) as call:
            await call.result()
        for method, given in (("order", {"order": {"sesquipedalian": 1}}), ("fail", {"how": "sesquipedalian"})):
            async with client.call("shout", text="sesquipedalian") as call:
                await call.result()
            try:
                await client.invoke(method, **given)
            except InvalidValue:
                pass
    assert "call" in caplog.text and "Parlour.run" in caplog.text
    assert "sesquipedalian" not in caplog.text.lower()
    assert "opensesame" not in caplog.text


FAILS = """
from collections.abc import AsyncIterator
from chains import chainlet, depends
from chains.errors import NotFound

class Own(Exception): ...

@chainlet
class Below:
    async def run(self, text: str) -> str:
        raise Own(text)  # own

@chainlet(entry=True)
class Fails:
    below: Below = depends(Below)

    async def own(self, text: str) -> str:
        return await self.below.run(text)

    async def value(self, text: str) -> str:
        raise ValueError(text)  # value

    def plain(self, text: str) -> str:
        return str(int(text))  # plain

    async def wrong(self, text: str) -> str:  # wrong
        return 7

    async def stream(self, text: str) -> AsyncIterator[str]:
        yield "first"
        raise KeyError(text)  # stream

    async def missing(self, text: str) -> str:
        raise NotFound(text)
"""


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("own", "own failed: fails.Own at {place} (Below, run)"),
        ("value", "value failed: ValueError at {place} (Fails, value)"),
        ("plain", "plain failed: ValueError at {place} (Fails, plain)"),
        ("wrong", "wrong failed: InvalidResult at {place} (Fails, wrong)"),
        ("stream", "stream failed: KeyError at {place} (Fails, stream)"),
        ("missing", ""),  # a refusal: the caller is told, nothing failed
    ],
)
@pytest.mark.parametrize("over", ["websocket", "http"])
async def test_a_call_that_failed_is_one_line_with_its_place_and_without_its_words(
    tmp_path: Any, caplog: pytest.LogCaptureFixture, method: str, told: str, over: str
) -> None:
    file = tmp_path / "fails.py"
    file.write_text(FAILS)
    async with Server(load(str(file)), port=0) as server:
        if over == "http":
            async with httpx.AsyncClient() as http:
                await http.post(f"{server.url}/v1/call/{method}", json={"text": "sesquipedalian"})
        else:
            async with connect(server.url) as client:
                with pytest.raises(Exception, match=r"."):
                    async with client.call(method, text="sesquipedalian") as call:
                        async for _ in call:
                            pass
    number = next((n for n, line in enumerate(FAILS.splitlines(), 1) if line.endswith(f"# {method}")), 0)
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    told = told.format(place=f"{file}:{number}")
    assert [re.sub("^call [0-9a-f]+ of Fails.", "", line) for line in lines] == [told] * bool(told)
