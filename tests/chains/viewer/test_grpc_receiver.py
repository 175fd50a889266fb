"""OTLP over gRPC, by a plain client of the standard's service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc import aio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from chains.errors import StartError
from chains.records.intake import Intake
from chains.records.store import Store
from chains.viewer.grpc_receiver import GrpcReceiver
from chains.viewer.receiver import BodyLimits, Receiver
from tests.chains.records import made


@asynccontextmanager
async def server(folder: Path, keys: tuple[str, ...] = (), limits: BodyLimits | None = None) -> AsyncIterator[str]:
    with Intake(folder / "traces.sqlite") as intake:
        receiver = GrpcReceiver(Receiver(intake), keys=keys, limits=limits)
        port = await receiver.start(port=0)
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await receiver.close(0)


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_a_call(tmp_path: Path, compression: grpc.Compression) -> None:
    spans = made.phone_call("call-1", 2)
    bad = made.phone_call("call-2", 1)
    bad[0].trace = b"short"
    async with server(tmp_path) as address, aio.insecure_channel(address, compression=compression) as channel:
        export = TraceServiceStub(channel).Export
        assert (await export(made.request(spans))).partial_success.rejected_spans == 0
        told = (await export(made.request(bad))).partial_success
        assert (told.rejected_spans, told.error_message) == (1, "1 x id of a wrong length")
    with Store.open(tmp_path / "traces.sqlite", readonly=True) as store:
        found = store.connection.execute("SELECT call, spans FROM calls ORDER BY id").fetchall()
    assert found == [("call-1", len(spans)), ("call-2", len(bad) - 1)]


async def test_a_key_is_asked_for(tmp_path: Path) -> None:
    request = made.request(made.phone_call("call-1", 1))
    async with server(tmp_path, keys=("one", "two")) as address, aio.insecure_channel(address) as channel:
        export = TraceServiceStub(channel).Export
        for metadata in (None, (("authorization", "Bearer three"),)):
            with pytest.raises(aio.AioRpcError) as refused:
                await export(request, metadata=metadata)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        await export(request, metadata=(("authorization", "Bearer two"),))


async def test_what_cannot_be_read_or_is_too_large(tmp_path: Path) -> None:
    async with server(tmp_path, limits=BodyLimits(packed=10_000)) as address, aio.insecure_channel(address) as channel:
        raw = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")
        for body, code in (
            (b"\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
            (bytes(20_000), grpc.StatusCode.RESOURCE_EXHAUSTED),
        ):
            with pytest.raises(aio.AioRpcError) as refused:
                await raw(body)
            assert refused.value.code() == code
        assert await raw(b"") == b""


async def test_a_port_that_is_taken(tmp_path: Path) -> None:
    async with server(tmp_path) as address:
        port = int(address.rpartition(":")[2])
        with Intake(tmp_path / "other.sqlite") as intake:
            second = GrpcReceiver(Receiver(intake))
            with pytest.raises(StartError, match=f"port {port}"):
                await second.start(port=port)
            await second.close(0)
