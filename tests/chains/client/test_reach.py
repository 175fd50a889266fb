"""The way to a gateway: addresses, nobody there, somebody else there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from chains.client import connect
from chains.client.reach import address, bearer
from chains.errors import NotFound, SettingError, Unavailable
from chains.serve import Server


@pytest.mark.parametrize(
    ("url", "base", "method"),
    [
        ("ws://127.0.0.1:8000", "http://127.0.0.1:8000", ""),
        ("127.0.0.1:8000", "http://127.0.0.1:8000", ""),
        ("https://host/v1/call/shout", "https://host", "shout"),
        ("wss://host/below/v1/call", "https://host/below", ""),
        ("http://host/below/", "http://host/below", ""),
    ],
)
def test_an_address_is_a_base_and_a_method(url: str, base: str, method: str) -> None:
    assert address(url) == (base, method)


@pytest.mark.parametrize("url", ["ftp://x", "ws://", "http://:80"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(SettingError, match="no address"):
        connect(url)


async def test_nobody_there_and_somebody_else_there() -> None:
    async with connect("ws://127.0.0.1:1") as client:
        with pytest.raises(Unavailable, match="chains run"):
            await client.invoke("run")
        with pytest.raises(Unavailable, match="chains run"):
            async with client.call("run"):
                pass

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno")
        await writer.drain()
        writer.close()

    web = await asyncio.start_server(other, "127.0.0.1", 0)
    port = web.sockets[0].getsockname()[1]
    async with web, connect(f"127.0.0.1:{port}") as client:
        with pytest.raises(NotFound, match="no gateway"):
            await client.invoke("run")
        with pytest.raises(NotFound, match="no gateway"):
            async with client.call("run"):
                pass


@pytest.mark.parametrize("url", ["ws://127.0.0.1:99999", "127.0.0.1:none", "http://host:-1"])
def test_a_port_that_is_none_is_told(url: str) -> None:
    with pytest.raises(SettingError, match="port"):
        address(url)


def test_a_key_that_no_header_can_carry_is_told() -> None:
    assert bearer("") == {}
    assert bearer("abc") == {"authorization": "Bearer abc"}
    for key in ("wrongé", "two\nlines"):
        with pytest.raises(SettingError, match="printable ASCII"):
            bearer(key)


async def test_a_path_that_is_none_of_the_gateways_is_to_be_left_out(serve: Callable[..., Awaitable[Server]]) -> None:
    async with connect(f"{(await serve()).url}/healthz") as client:
        for asked in (client.chain(), client.invoke("shout", text="a")):
            with pytest.raises(NotFound, match=r"no gateway at .*/healthz.*leave the path out"):
                await asked
