"""The client SDK against a real server: typed items, credit, errors as their own types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from chains.client import connect
from chains.errors import (
    Cancelled,
    InvalidValue,
    NotFound,
    Overloaded,
    RemoteError,
    Unauthenticated,
)
from chains.messages import Audio, Control, Tensor, Text
from chains.serve import Server

Serve = Callable[..., Awaitable[Server]]


@dataclass
class Order:
    dish: str
    count: int = 2


async def pieces(count: int, rate: int = 16000) -> AsyncIterator[Audio]:
    for number in range(count):
        yield Audio(np.full(rate // 50, number, np.int16), rate)


async def test_items_arrive_as_what_they_are(serve: Serve) -> None:
    server = await serve()
    async with connect(server.url.replace("http", "ws")) as client, client.call("run", audio=pieces(3)) as call:
        items = [item async for item in call]
    assert [type(item) for item in items] == [Audio, Audio, Audio, Text]
    assert items[2].pcm[0] == 2
    assert items[3] == Text("3 pieces", role="assistant")
    assert call.id and call.opened["method"] == "run"


async def test_the_audio_comes_at_the_rate_and_in_the_encoding_that_was_asked_for(serve: Serve, watched: Any) -> None:
    server = await serve()
    async with connect(server.url, rate=8000, encoding="mulaw") as client, client.call(audio=pieces(50)) as call:
        items = [item async for item in call if isinstance(item, Audio)]
    assert {item.rate for item in items} == {8000}
    assert sum(len(item.pcm) for item in items) == pytest.approx(8000, abs=2)


async def test_tensors_texts_and_results(serve: Serve) -> None:
    async with connect((await serve()).url) as client:

        async def tensors() -> AsyncIterator[Tensor]:
            yield Tensor(np.ones((2, 2), np.float32), "t", 4)

        async with client.call("tensors", tensors=tensors()) as call:
            tensor = await call.result()
            assert (tensor.name, tensor.turn, tensor.data.tolist()) == ("t", 4, [[2, 2], [2, 2]])
        async with client.call("words", words=iter([Text("a"), Text("b")])) as call:
            assert [item.text async for item in call] == ["A", "B"]
        async with client.call("order", order=Order("soup")) as call:
            assert await call.result() == {"dish": "soup", "count": 2}


async def test_invoke_is_one_request(serve: Serve) -> None:
    async with connect((await serve()).url) as client:
        assert await client.invoke("shout", text="hi") == "HI"
        assert await client.invoke("count", to=3) == [0, 1, 2]
        assert (await client.health())["ok"]
        assert (await client.chain())["entry"] == "Parlour"
        with pytest.raises(ValueError, match="no such dish"):
            await client.invoke("fail_late")


async def test_the_url_may_name_the_method(serve: Serve) -> None:
    server = await serve()
    async with connect(f"{server.url}/v1/call/shout") as client:
        assert await client.invoke(text="hi") == "HI"
        async with client.call(text="hi") as call:
            assert await call.result() == "HI"


async def test_errors_are_raised_as_their_own_types(serve: Serve) -> None:
    async with connect((await serve()).url) as client:
        for method, given, kind in (
            ("shuot", {}, NotFound),
            ("shout", {}, InvalidValue),
            ("fail", {"how": "value"}, ValueError),
            ("fail", {"how": "own"}, RemoteError),
        ):
            with pytest.raises(kind):
                await client.invoke(method, **given)
            with pytest.raises(kind):
                async with client.call(method, **given) as call:
                    await call.result()


async def test_a_stream_that_the_method_does_not_take_is_named(serve: Serve) -> None:
    async with connect((await serve()).url) as client:
        with pytest.raises(InvalidValue, match=r"vido.*audio"):
            async with client.call("run", vido=pieces(1)):
                pass


async def test_an_argument_that_is_no_plain_data_is_refused(serve: Serve) -> None:
    async with connect((await serve()).url) as client:
        with pytest.raises(InvalidValue, match="object is not plain data"):
            await client.invoke("shout", text=object())


async def test_an_error_in_the_callers_own_stream_is_raised_and_cancels_the_call(serve: Serve, watched: Any) -> None:
    async def broken() -> AsyncIterator[Audio]:
        yield Audio(np.zeros(320, np.int16), 16000)
        raise OSError("the microphone came off")

    async with connect((await serve()).url) as client:
        with pytest.raises(OSError, match="came off"):
            async with client.call("run", audio=broken()) as call:
                async for _ in call:
                    pass
    await asyncio.wait_for(watched.event(watched.left, "run").wait(), 1)


async def test_leaving_the_block_hangs_up(serve: Serve, watched: Any) -> None:
    async with connect((await serve()).url) as client, client.call("drip") as call:
        assert await anext(call) == "first"
    await asyncio.wait_for(watched.event(watched.left, "drip").wait(), 1)
    assert watched.call.reason == "hang-up"


async def test_cancel_raises_cancelled(serve: Serve) -> None:
    async with connect((await serve()).url) as client, client.call("drip") as call:
        await call.cancel("enough")
        with pytest.raises(Cancelled, match="enough"):
            async for _ in call:
                pass


async def test_a_clear_drops_what_waits_and_played_reaches_the_chain(serve: Serve, watched: Any) -> None:
    events: list[tuple[str, int]] = []
    async with connect((await serve()).url) as client, client.call("interrupted") as call:
        cleared = asyncio.Event()

        def on_event(event: str, turn: int) -> None:
            events.append((event, turn))
            if event == "clear":
                cleared.set()

        call.watch(on_event)
        first = await anext(call)
        assert first.turn == 1
        await call.played(1, 80.0)
        await watched.call.played.reached(1, 80.0)
        watched.turn.cancel("barge-in")  # the second piece of turn 1 lies in the client by now, unread
        await cleared.wait()
        rest = [item async for item in call]
    assert [getattr(item, "turn", 0) for item in rest if isinstance(item, Audio)] == [2]
    assert rest[-1] == Control("played", {"ms": 80.0})
    assert events[:3] == [("started", 1), ("clear", 1), ("started", 2)]


async def test_who_does_not_take_items_holds_up_the_producer(serve: Serve, watched: Any) -> None:
    async with connect((await serve()).url, window=50_000) as client, client.call("flood") as call:
        await anext(call)
        made = -1
        while made != watched.made:
            made = watched.made
            await asyncio.sleep(0.1)  # until nothing moves any more
        assert made * 8000 < 50_000 + 262_144 + 5 * 8016
        for _ in range(2 * made):
            await anext(call)
        assert watched.made > made


async def test_input_waits_for_credit(serve: Serve, watched: Any) -> None:
    drawn = 0

    async def flood() -> AsyncIterator[Audio]:
        nonlocal drawn
        for _ in range(200):
            drawn += 1
            yield Audio(np.zeros(4000, np.int16), 16000)

    async with connect((await serve(window=100_000)).url) as client, client.call("deaf", audio=flood()) as call:
        await watched.event(watched.began, "deaf").wait()
        before = -1
        while before != drawn:
            before = drawn
            await asyncio.sleep(0.1)  # until nothing moves any more
        assert drawn * 8000 < 100_000 + 262_144 + 5 * 8016
        watched.gate.set()
        assert await call.result() == "heard"
    assert watched.made == 200


async def test_keys(serve: Serve) -> None:
    server = await serve(keys=("sesame",))
    async with connect(server.url, key="sesame") as client:
        assert await client.invoke("shout", text="a") == "A"
        async with client.call("shout", text="a") as call:
            assert await call.result() == "A"
    async with connect(server.url, key="wrong") as client:
        with pytest.raises(Unauthenticated):
            await client.invoke("shout", text="a")
        with pytest.raises(Unauthenticated):
            async with client.call("shout", text="a"):
                pass


async def test_a_full_server_is_overloaded(serve: Serve) -> None:
    server = await serve(max_connections=1)
    async with connect(server.url) as client, client.call("drip"):
        with pytest.raises(Overloaded):
            async with client.call("shout", text="a"):
                pass


async def test_a_server_that_goes_away_is_unavailable_or_cancelled(serve: Serve, graph: Any) -> None:
    async with Server(graph, port=0) as server, connect(server.url) as client, client.call("drip") as call:
        assert await anext(call) == "first"
        server.gateway.cancel_all()
        with pytest.raises(Cancelled, match="shutting down"):
            await anext(call)
