"""The viewer itself on a real port, in this process, and what it has kept of a call's recording."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from chains.sockets import listen
from chains.viewer.serving import serve
from chains.viewer.settings import ViewerSettings
from tests.chains.wire.hosted import eventually


@asynccontextmanager
async def taking(path: Path, port: int = 0) -> AsyncIterator[str]:
    """The URL of a viewer with its store at `path`; when the block is left all that came is written."""
    listening, stop = listen("127.0.0.1", port), asyncio.Event()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    serving = asyncio.create_task(serve(ViewerSettings(traces=path), listening, stop))
    try:
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"{url}/healthz", timeout=30)).status_code == 200
        yield url
    finally:
        stop.set()
        await serving
        await eventually(serving.done)


def recorded(conn: sqlite3.Connection, call: str) -> list[tuple[str, str, Any]]:
    """(side, kind, JSON or bytes) of what is kept of a call."""
    query = (
        "SELECT side, kind, data FROM recordings JOIN calls ON calls.id = recordings.call"
        " WHERE calls.call = ? ORDER BY seq"
    )
    found = []
    for side, kind, data in conn.execute(query, (call,)):
        plain = kind in ("text", "control", "value", "event")
        found.append((("caller", "reply")[side], kind, msgspec.json.decode(data) if plain else data))
    return found
