"""Connections that say nothing: they are closed, and whoever calls is served all the while."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import httpx
import pytest

from chains.client import connect
from chains.gateway.connection import most_connections
from chains.serve import Server

Serve = Callable[..., Awaitable[Server]]
POST = b"POST /v1/call/shout HTTP/1.1\r\nhost: x\r\ncontent-length: 12\r\n\r\n" + b'{"text":"a"}'


async def opened(
    stack: AsyncExitStack, server: Server, said: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that says this, and then nothing more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    stack.callback(writer.close)
    writer.write(said)
    return reader, writer


@pytest.mark.parametrize(
    ("said", "then"),
    [
        (b"", b""),
        (b"POST /v1/ca", b""),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\n", b""),
        (POST, b"POST /v1"),
        (b"POST /v1/nothing HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n", b"body"),
    ],
    ids=["nothing", "half a line", "half a head", "half a second head", "half a body that nobody wants"],
)
async def test_who_does_not_say_what_he_wants_is_closed(serve: Serve, said: bytes, then: bytes) -> None:
    server = await serve(open_seconds=0.2)
    async with AsyncExitStack() as stack, asyncio.timeout(4):
        reader, writer = await opened(stack, server, said)
        if then:
            assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 ")
            writer.write(then)
        await reader.read()


async def test_a_call_is_no_silent_connection(serve: Serve) -> None:
    server = await serve(open_seconds=0.2)

    async def silent() -> AsyncIterator[object]:
        await asyncio.sleep(0.5)  # longer than a head may take: what is tested is this time
        for piece in ():
            yield piece

    async with asyncio.timeout(5), connect(server.url) as client, client.call("run", audio=silent()) as call:
        assert (await call.result()).text == "0 pieces"


async def test_past_the_most_connections_are_closed_and_those_before_go_on(serve: Serve) -> None:
    server = await serve(max_connections=2)
    async with AsyncExitStack() as stack, asyncio.timeout(5):
        async with connect(server.url) as client, client.call("drip") as call:
            assert await anext(call) == "first"
            silent = [await opened(stack, server, b"POST") for _ in range(20)]
            closed = [asyncio.ensure_future(reader.read()) for reader, _ in silent]
            await asyncio.wait(closed, return_when=asyncio.FIRST_COMPLETED)
            while sum(task.done() for task in closed) < 17:
                await asyncio.wait([task for task in closed if not task.done()], return_when=asyncio.FIRST_COMPLETED)
            assert len(server.gateway.calls) == 1
            for task in closed:
                task.cancel()
            await asyncio.gather(*closed, return_exceptions=True)
        await stack.aclose()
    async with httpx.AsyncClient() as http:
        assert (await http.get(f"{server.url}/healthz")).status_code == 200


def test_half_of_the_files_are_left_to_the_chain() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
        assert (most_connections(256), most_connections(20)) == (100, 40)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
