"""The way to the viewer: what is sent again, what is not, and what a viewer that refuses costs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chains.errors import SettingError
from chains.gateway.shipping import Shipper
from chains.records.recorded import Row
from chains.sockets import listen
from tests.chains.test_otlp import answering_badly

ROWS = [Row("c1", 0, 0, 0.0, "end", 0, 0, b"")]


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def answering(*statuses: int) -> AsyncIterator[tuple[str, list[Request]]]:
    """A server that answers with these, one after the other, the last one for ever; and what it was asked."""
    asked: list[Request] = []

    async def post(request: Request) -> Response:
        await request.body()
        asked.append(request)
        return Response(status_code=statuses[min(len(asked), len(statuses)) - 1])

    app = Starlette(routes=[Route("/base/v1/recordings", post, methods=["POST"])])
    server = _Uvicorn(uvicorn.Config(app, log_config=None, lifespan="off"))
    socket = listen("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(sockets=[socket]))
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}/base", asked
    finally:
        server.should_exit = True
        await serving
        socket.close()


async def test_a_viewer_that_is_busy_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async with answering(503, 429, 204) as (url, asked):
        shipper = Shipper(url, "secret")
        assert await asyncio.to_thread(shipper.ship, ROWS)
        shipper.close()
    assert [request.headers["authorization"] for request in asked] == ["Bearer secret"] * 3
    assert [one.message for one in caplog.records if one.name == "chains.gateway"] == [
        "the viewer answers with status 503; recordings wait for it, and what finds no room is lost and counted"
    ]
    assert "secret" not in caplog.text


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500])
async def test_what_is_refused_is_not_sent_again(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with answering(status) as (url, asked):
        shipper = Shipper(url)
        assert not await asyncio.to_thread(shipper.ship, ROWS)
        shipper.close()
    assert len(asked) == 1 and "authorization" not in asked[0].headers


async def test_who_is_to_end_waits_for_nobody() -> None:
    shipper = Shipper("http://127.0.0.1:9")
    shipper.give_up(time.monotonic())
    began = time.monotonic()
    assert not await asyncio.to_thread(shipper.ship, ROWS)
    assert time.monotonic() - began < 1.0


async def test_each_outage_is_said_once_and_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "chains.gateway")
    async with answering(400, 400, 204, 204, 500, 500) as (url, _):
        shipper = Shipper(url)
        for _ in range(6):
            await asyncio.to_thread(shipper.ship, ROWS)
        shipper.close()
    told = [one for one in caplog.records if one.name == "chains.gateway"]
    assert [one.levelname for one in told] == ["WARNING", "INFO", "WARNING"]
    assert not any(one.exc_info or "\n" in one.message for one in told)


async def test_a_viewer_whose_answer_never_ends_is_not_waited_for() -> None:
    listening, url = answering_badly(b"HTTP/1.1 204 OK\r\n", b"a: b\r\n", 0.02)
    with listening:
        shipper = Shipper(url)
        shipper.give_up(time.monotonic())
        began = time.monotonic()
        assert not await asyncio.to_thread(shipper.ship, ROWS)
        assert time.monotonic() - began < 2.0


def test_a_key_that_no_header_holds_is_refused() -> None:
    with pytest.raises(SettingError, match="one line"):
        Shipper("http://127.0.0.1:9", "sesame\n")


@pytest.mark.parametrize("url", ["", "viewer", "ftp://x", "http://", "http://h:x", "http://h:99999", "http://[::1"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SettingError, match="give its URL"):
        Shipper(url)
