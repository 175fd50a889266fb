"""The viewer as a whole: spans in by HTTP and gRPC, recordings in, the page's answers out, all written at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from chains.errors import SettingError
from chains.records.recorded import Batch, Row
from chains.records.store import Store
from chains.sockets import listen
from chains.testing.harness import until
from chains.viewer.process import reachable
from chains.viewer.serving import serve
from chains.viewer.settings import ViewerSettings
from tests.chains.records import made


@asynccontextmanager
async def running(settings: ViewerSettings) -> AsyncIterator[httpx.AsyncClient]:
    listening, stop = listen(settings.host, 0), asyncio.Event()
    url = reachable(settings.host, listening.getsockname()[1])
    task = asyncio.ensure_future(serve(settings, listening, stop))
    try:
        async with httpx.AsyncClient(base_url=url, timeout=20.0) as client:
            yield client
    finally:
        stop.set()
        await task


async def sent(client: httpx.AsyncClient, call: str) -> httpx.Response:
    body = made.request(made.phone_call(call)).SerializeToString()
    return await client.post("/v1/traces", content=body, headers={"content-type": "application/x-protobuf"})


@pytest.fixture
def free_port() -> int:
    with listen("127.0.0.1", 0) as one:
        port: int = one.getsockname()[1]
        return port


def kept(path: Path) -> list[Any]:
    with Store.open(path, readonly=True) as store:
        return store.connection.execute("SELECT call, recorded FROM calls ORDER BY call").fetchall()


async def test_what_was_taken_in_is_in_the_store_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    async with running(ViewerSettings(traces=path)) as client:
        assert (await sent(client, "one")).status_code == 200
    assert [tuple(row) for row in kept(path)] == [("one", 0)]


async def test_recordings_come_in_beside_spans(tmp_path: Path) -> None:
    import msgspec

    path = tmp_path / "traces.sqlite"
    async with running(ViewerSettings(traces=path)) as client:
        row = Row("one", 0, 0, 0.0, "event", 0, 0, b'{"event": "hung_up"}')
        good = await client.post("/v1/recordings", content=msgspec.msgpack.encode(Batch(1, [row])))
        bad = await client.post("/v1/recordings", content=b"no batch")
        assert (good.status_code, bad.status_code) == (204, 400)
        assert "no batch of recordings" in bad.json()["error"]["message"]
    assert [row[0] for row in kept(path)] == ["one"]


async def test_otlp_over_grpc_too(tmp_path: Path, free_port: int) -> None:
    settings = ViewerSettings(traces=tmp_path / "traces.sqlite", otlp_grpc=free_port)
    async with running(settings) as client:
        assert (await client.get("/healthz")).status_code == 200
        async with grpc.aio.insecure_channel(f"127.0.0.1:{free_port}") as channel:
            export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
            await export(made.request(made.phone_call("two")).SerializeToString())
    assert [row[0] for row in kept(settings.traces)] == ["two"]


async def test_a_key_is_wanted_for_all_of_it(tmp_path: Path) -> None:
    settings = ViewerSettings(traces=tmp_path / "traces.sqlite", keys=("sesame",))
    async with running(settings) as client:
        assert (await sent(client, "one")).status_code == 401
        assert (await client.post("/v1/recordings", content=b"")).status_code == 401
        client.headers["authorization"] = "Bearer sesame"
        assert (await sent(client, "one")).status_code == 200


async def test_a_store_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError):
        async with running(ViewerSettings(traces=tmp_path / "file" / "traces.sqlite")):
            pass


async def test_what_is_lost_while_nothing_can_be_written_stands_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: the count cannot be written either."""
    monkeypatch.setattr("chains.records.store.BUSY_MS", 300)
    spans = made.phone_call("call-1", 1)
    body = made.request(spans).SerializeToString()
    async with running(ViewerSettings(traces=tmp_path / "t.sqlite")) as client:
        await client.get("/healthz")
        with Store.open(tmp_path / "t.sqlite") as blocker:
            blocker.connection.execute("BEGIN IMMEDIATE")
            await client.post("/v1/traces", content=body, headers={"content-type": "application/x-protobuf"})

            async def told() -> bool:
                return (await client.get("/api/info")).json()["dropped"] == len(spans)

            await until(told, "the drops were told", seconds=30.0)
            blocker.connection.execute("COMMIT")
        assert (await client.get("/api/info")).json()["drops"][0][2] == len(spans)
