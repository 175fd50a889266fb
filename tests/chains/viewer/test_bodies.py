"""Bodies over a real socket: each bounded, and all together for as long as they are in hand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chains.errors import ChainsError
from chains.viewer.bodies import Bodies
from tests.chains.wire.hosted import eventually


@asynccontextmanager
async def taking(bodies: Bodies, go_on: asyncio.Event) -> AsyncIterator[httpx.AsyncClient]:
    async def take(request: Request) -> Response:
        try:
            async with bodies.of(request) as body:
                await go_on.wait()
                return Response(str(len(body)))
        except ChainsError as error:
            return Response(status_code=error.http)

    listening = socket.create_server(("127.0.0.1", 0))
    app = Starlette(routes=[Route("/", take, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", trust_env=False, timeout=30
        ) as client:
            yield client
    finally:
        server.should_exit = True
        await serving


async def test_a_body_counts_until_its_request_is_answered() -> None:
    bodies, go_on = Bodies(1_000, 1_500), asyncio.Event()
    async with taking(bodies, go_on) as client:
        first = asyncio.ensure_future(client.post("/", content=bytes(1_000)))
        await eventually(lambda: bodies._held == 1_000)
        assert (await client.post("/", content=bytes(501))).status_code == 503
        go_on.set()
        assert (await first).text == "1000"
        await eventually(lambda: bodies._held == 0)
        assert (await client.post("/", content=bytes(501))).text == "501"


async def test_a_long_body_is_refused_with_its_length_told_or_not() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield bytes(100)

    bodies, go_on = Bodies(1_000, 10_000), asyncio.Event()
    go_on.set()
    async with taking(bodies, go_on) as client:
        assert (await client.post("/", content=bytes(1_001))).status_code == 413
        assert (await client.post("/", content=pieces())).status_code == 413
        assert (await client.post("/", content=bytes(1_000))).text == "1000"
        await eventually(lambda: bodies._held == 0)
