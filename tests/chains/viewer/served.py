"""The viewer on a real port, over a store with something in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from chains.viewer.process import listen, reachable
from chains.viewer.serving import serve
from chains.viewer.settings import ViewerSettings
from tests.chains.records import made


@asynccontextmanager
async def serving(path: Path, spans: Sequence[made.Span] = (), **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the viewer over `path`, in which `spans` were kept before."""
    if spans:
        await asyncio.to_thread(made.stored, path, list(spans))
    chosen = ViewerSettings(traces=path, max_age_days=36_500, **settings)
    listening, stop = listen(chosen.host, 0), asyncio.Event()
    task = asyncio.ensure_future(serve(chosen, listening, stop))
    try:
        url = reachable(chosen.host, listening.getsockname()[1])
        async with httpx.AsyncClient(base_url=url, timeout=30.0) as client:
            yield client
    finally:
        stop.set()
        await task


async def error(client: httpx.AsyncClient, url: str, status: int, **more: Any) -> str:
    """What a refused request is told: message and mend."""
    answer = await client.get(url, **more)
    assert answer.status_code == status, answer.text
    told = answer.json()["error"]
    assert told["type"] and told["message"]
    return f"{told['message']}; {told['mend']}"
