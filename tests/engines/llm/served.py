"""The server on a real socket, and clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import uvicorn

from engines.llm.server import Served, ServerSettings, application
from engines.llm.serving import listen
from engines.llm.streaming import ServedEngine


@dataclass
class Site:
    """A server that runs, and the official client for it. `http` sends what that client would not."""

    served: Served
    url: str
    client: openai.AsyncOpenAI
    http: httpx.AsyncClient

    async def ask(self, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
        """A request by hand: a chat that says hello unless it is said otherwise."""
        if path == "/v1/chat/completions":
            body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], **body}
        return await self.http.post(path, json=body)


@asynccontextmanager
async def serving(engine: ServedEngine | None, **settings: Any) -> AsyncIterator[Site]:
    """A site for as long as the block runs. `engine` None: still loading."""
    served = Served(ServerSettings(name="tiny", **settings))
    if engine is not None:
        served.ready(engine)
    bound = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    server = uvicorn.Server(
        uvicorn.Config(application(served), log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    )
    running = asyncio.create_task(server.serve(sockets=[bound]))
    headers = {"Authorization": f"Bearer {served.settings.key}"} if served.settings.key else {}
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=served.settings.key or "none", max_retries=0)
    try:
        async with client, httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as http:
            yield Site(served, url, client, http)
    finally:
        server.should_exit = True
        await running
        bound.close()


async def until(check: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for a state. AssertionError when it never comes."""
    async with asyncio.timeout(seconds):
        while not check():  # noqa: ASYNC110  # what is waited for tells nobody
            await asyncio.sleep(0.001)
