"""Calls as they happen, over a real stream of events."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from chains.errors import Overloaded
from chains.records.store import Store
from chains.viewer import live
from chains.viewer.live import Feed, Listener, State
from chains.viewer.reading import Reader
from tests.chains.records import made
from tests.chains.viewer.served import serving


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made.stored(tmp_path / "t.sqlite", made.phone_call("call-0", 1))
    return tmp_path / "t.sqlite"


async def events(client: httpx.AsyncClient) -> AsyncIterator[tuple[str, Any]]:
    async with client.stream("GET", "/api/live") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        kind = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield kind, msgspec.json.decode(line.removeprefix("data: "))


def ids(data: Any) -> list[str]:
    return [row[data["columns"].index("id")] for row in data["rows"]]


async def test_a_listener_gets_what_there_is_then_what_happens(path: Path) -> None:
    spans = made.phone_call("call-1", 2, start=made.START + 10**9)
    async with serving(path) as client, asyncio.timeout(30):
        seen: list[Any] = []
        info: list[Any] = []
        stream = events(client)
        async for kind, data in stream:
            (seen if kind == "calls" else info).append(data)
            if len(seen) == 1 and info:
                break
        assert seen[0]["reset"] is True and ids(seen[0]) == ["call-0"]
        assert info[0]["calls"] == 1 and info[0]["dropped"] == 0
        await asyncio.to_thread(made.stored, path, spans[:10])  # by another connection, as another process would
        kind, data = await anext(stream)
        while kind != "calls":
            kind, data = await anext(stream)
        assert data["reset"] is False and ids(data) == ["call-1"]
        assert data["rows"][0][data["columns"].index("live")] is True
        await asyncio.to_thread(made.stored, path, spans[10:])
        while kind != "calls" or data["rows"][0][data["columns"].index("live")]:
            kind, data = await anext(stream)
        assert ids(data) == ["call-1"] and data["rows"][0][data["columns"].index("outcome")] == "done"
        await stream.aclose()


async def test_a_listener_that_is_too_slow_gets_the_newest_afresh_and_nothing_queues() -> None:
    listener = Listener()
    listener.reset = False
    for number in range(3 * live.SLOT):
        listener.tell([[f"call-{number}", number]])
        assert len(listener.rows) <= live.SLOT
    assert listener.reset
    other = Listener()
    other.reset = False
    for number in range(10_000):
        other.tell([["the same", number]])
    assert other.rows == {"the same": ["the same", 9_999]} and not other.reset


async def test_the_store_is_looked_at_only_while_somebody_listens(path: Path) -> None:
    reader = Reader(path)
    feed = Feed(reader)
    try:
        assert feed.looking is False
        stream = await feed.events()
        assert (await anext(stream)).startswith(b"retry:") and feed.looking
        assert b'"reset":true' in await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        assert feed.looking is False
    finally:
        await feed.close()
        reader.close()


async def test_more_pages_than_a_viewer_bears_are_refused(path: Path) -> None:
    reader = Reader(path)
    feed = Feed(reader)
    try:
        streams = [await feed.events() for _ in range(live.LISTENERS)]
        with pytest.raises(Overloaded, match="64 pages are listening already"):
            await feed.events()
        assert len(streams) == live.LISTENERS
    finally:
        await feed.close()
        reader.close()


async def test_closing_ends_every_stream(path: Path) -> None:
    reader = Reader(path)
    feed = Feed(reader)
    stream = await feed.events()
    await anext(stream)
    await anext(stream)
    ending = asyncio.ensure_future(_drained(stream))
    await feed.close()
    async with asyncio.timeout(10):
        await ending
    reader.close()


async def _drained(stream: AsyncIterator[bytes]) -> None:
    async for _ in stream:
        pass


def test_each_change_is_told_once(path: Path) -> None:
    state = State()
    with Store.open(path, readonly=True) as store:
        look: sqlite3.Connection = store.connection
        assert state.changes(look) == []
        spans = made.phone_call("call-1", 1, start=made.START + 10**9)
        made.stored(path, spans[:5])
        assert [row[0] for row in state.changes(look)] == ["call-1"]
        assert state.changes(look) == []
        made.stored(path, [*spans[5:], *made.phone_call("call-2", 1)])
        assert {row[0] for row in state.changes(look)} == {"call-1", "call-2"}
        assert state.changes(look) == []
