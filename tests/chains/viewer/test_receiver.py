"""OTLP over real sockets: what is answered, what is kept, what is too much."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import uvicorn
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from starlette.applications import Starlette

from chains.errors import LimitExceeded, ProtocolError
from chains.records.intake import Intake, Limits
from chains.records.store import Store
from chains.viewer.receiver import JSON, PROTOBUF, BodyLimits, Receiver, status, unpacked
from tests.chains.records import made
from tests.chains.records.test_intake import Held
from tests.chains.viewer.dense import dense
from tests.chains.viewer.test_otlp_json import EXAMPLE
from tests.chains.wire.hosted import eventually


@dataclass
class Site:
    """A receiver that listens."""

    url: str
    intake: Intake
    receiver: Receiver
    path: Path

    def one(self, query: str) -> tuple[object, ...]:
        assert self.intake.flush()
        with Store.open(self.path, readonly=True) as store:
            found: tuple[object, ...] = store.connection.execute(query).fetchone()
            return found


@asynccontextmanager
async def site(folder: Path, limits: Limits | None = None, bodies: BodyLimits | None = None) -> AsyncIterator[Site]:
    path = folder / "traces.sqlite"
    with Intake(path, limits=limits) as intake:
        receiver = Receiver(intake, bodies)
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            Starlette(routes=receiver.routes()), log_level="error", access_log=False, lifespan="off"
        )
        server = uvicorn.Server(config)
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        try:
            yield Site(f"http://127.0.0.1:{listening.getsockname()[1]}/v1/traces", intake, receiver, path)
        finally:
            server.should_exit = True
            await serving


async def post(url: str, body: bytes, kind: str = PROTOBUF, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        sent = {"content-type": kind} | {name.replace("_", "-"): value for name, value in headers.items()}
        return await client.post(url, content=body, headers=sent, timeout=30)


def partial(answer: httpx.Response) -> tuple[int, str]:
    assert answer.status_code == 200 and answer.headers["content-type"] == PROTOBUF
    found = ExportTraceServiceResponse.FromString(answer.content).partial_success
    return found.rejected_spans, found.error_message


SPANS = made.phone_call("call-1", 2)
BODY = made.request(SPANS).SerializeToString()


@pytest.mark.parametrize("packing", ["", "gzip", "deflate"])
async def test_a_call_in_protobuf(tmp_path: Path, packing: str) -> None:
    body = {"": BODY, "gzip": gzip.compress(BODY), "deflate": zlib.compress(BODY)}[packing]
    async with site(tmp_path) as one:
        answer = await post(one.url, body, **({"content_encoding": packing} if packing else {}))
        assert partial(answer) == (0, "") and answer.content == b""
        assert one.one("SELECT call, outcome, spans FROM calls") == ("call-1", "done", len(SPANS))


async def test_a_trace_in_json(tmp_path: Path) -> None:
    async with site(tmp_path) as one:
        answer = await post(one.url, gzip.compress(json.dumps(EXAMPLE).encode()), JSON, content_encoding="gzip")
        assert (answer.status_code, answer.headers["content-type"], answer.json()) == (200, JSON, {})
        bad = json.loads(json.dumps(EXAMPLE))
        bad["resourceSpans"][0]["scopeSpans"][0]["spans"] += [{"spanId": 5}, {"spanId": "ab"}]
        answer = await post(one.url, json.dumps(bad).encode(), "application/json; charset=utf-8")
        assert answer.json()["partialSuccess"]["rejectedSpans"] == "2"
        assert "1 x malformed" in answer.json()["partialSuccess"]["errorMessage"]
        assert one.one("SELECT call, spans FROM calls") == ("5b8efff798038103d269b633813fc60c", 1)
        assert one.one("SELECT sum(count) FROM drops WHERE source = 'my.service'") == (2,)


async def test_bad_spans_are_told_and_the_others_kept(tmp_path: Path) -> None:
    spans = made.phone_call("call-1", 2)
    spans[0].trace, spans[3].end = b"short", 5
    async with site(tmp_path) as one:
        rejected, why = partial(await post(one.url, made.request(spans).SerializeToString()))
        assert (rejected, why) == (2, "1 x id of a wrong length, 1 x end before start")
        assert one.one("SELECT spans FROM calls") == (len(spans) - 2,)
        assert one.one("SELECT sum(count) FROM drops") == (2,)


async def test_what_does_not_fit_is_dropped_and_told_at_once(tmp_path: Path) -> None:
    async with site(tmp_path, Limits(spans=len(SPANS) + 1)) as one:
        one.intake.flush()
        held = Held(one.path)
        answers = [partial(await post(one.url, BODY))]
        while answers[-1] == (0, ""):  # the writer may have taken some out of the queue before it met the lock
            answers.append(partial(await post(one.url, BODY)))
        assert len(answers) in (2, 3, 4) and answers[-1] == (len(SPANS), "queue full")
        held.let_go()
        dropped = sum(rejected for rejected, _ in answers)
        assert one.one("SELECT source, reason, count FROM drops") == ("PhoneCall (gateway:4711)", "queue full", dropped)
        assert partial(await post(one.url, made.request(made.phone_call("b", 1)).SerializeToString())) == (0, "")
        assert one.one("SELECT count(*) FROM calls") == (2,)


@pytest.mark.parametrize(
    "body, kind, packing, status, words",
    [
        (b"x", "text/plain", "", 415, "text/plain"),
        (b"x", "", "", 415, "(none)"),
        (BODY, PROTOBUF, "br", 415, "packed as br"),
        (b"\xff\xff\xff", PROTOBUF, "", 400, "no OTLP"),
        (BODY[:-3], PROTOBUF, "", 400, "no OTLP"),
        (b"{", JSON, "", 400, "no JSON"),
        (BODY, PROTOBUF, "gzip", 400, "cannot be unpacked"),
        (gzip.compress(BODY)[:-9], PROTOBUF, "gzip", 400, "cut off"),
        (b"x" * 200_000, PROTOBUF, "", 413, "100000 bytes"),
        (gzip.compress(bytes(10_000_000)), PROTOBUF, "gzip", 413, "1000000 bytes"),
    ],
)
async def test_what_is_refused_whole(
    tmp_path: Path, body: bytes, kind: str, packing: str, status: int, words: str
) -> None:
    async with site(tmp_path, bodies=BodyLimits(packed=100_000, unpacked=1_000_000)) as one:
        answer = await post(one.url, body, kind, **({"content_encoding": packing} if packing else {}))
        assert answer.status_code == status
        if kind == PROTOBUF:
            assert answer.headers["content-type"] == PROTOBUF
            assert words in Status.FromString(answer.content).message
        else:
            assert answer.headers["content-type"] == JSON and words in answer.json()["message"]
        assert partial(await post(one.url, BODY)) == (0, "")


async def test_a_body_without_a_length_is_bounded_too(tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield bytes(1_000)

    async with site(tmp_path, bodies=BodyLimits(packed=100_000)) as one, httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(one.url, content=chunks(), headers={"content-type": PROTOBUF})
        assert answer.status_code == 413


async def test_a_sender_that_hangs_up_in_the_middle(tmp_path: Path) -> None:
    async with site(tmp_path) as one:
        host, port = one.url.removeprefix("http://").partition("/")[0].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: {PROTOBUF}\r\ncontent-length: 5000\r\n\r\n"
        writer.write(head.encode() + BODY[:100])
        await writer.drain()
        writer.close()
        await reader.read()
        assert partial(await post(one.url, BODY)) == (0, "")


async def test_too_many_bodies_at_once_are_sent_away(tmp_path: Path) -> None:
    async with site(tmp_path, bodies=BodyLimits(together=1_000)) as one:
        answer = await post(one.url, BODY)
        assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
        assert partial(await post(one.url, b"")) == (0, "")


@pytest.mark.parametrize("what", ["groups", "scopes", "spans", "attributes", "events", "attributes of an event"])
async def test_a_small_body_of_endless_parts_that_say_nothing(tmp_path: Path, what: str) -> None:
    """Refused before each of its parts is looked at; a parsed span of two bytes takes two hundred."""
    body = gzip.compress(dense(what, 8_000_000), 1)
    assert len(body) < 100_000
    async with site(tmp_path) as one:
        assert (await post(one.url, body, content_encoding="gzip")).status_code == 413
        assert partial(await post(one.url, BODY)) == (0, "")


@pytest.mark.parametrize("body", [b"{}," * 150_000 + b"{}", b"{}," * 1_100_000 + b"{}", b"[]," * 1_100_000 + b"[]"])
async def test_the_same_in_json(tmp_path: Path, body: bytes) -> None:
    whole = b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + body + b"]}]}]}"
    async with site(tmp_path) as one:
        answer = await post(one.url, gzip.compress(whole, 1), JSON, content_encoding="gzip")
        assert answer.status_code == 413 and one.intake.drops == {}


async def test_what_waits_to_be_decoded_counts_and_the_loop_goes_on(tmp_path: Path) -> None:
    """A body counts until its request is answered, and many packed ones are sent away, not held."""
    async with site(tmp_path, bodies=BodyLimits(waiting=2, together=10 * len(BODY))) as one:
        packed = gzip.compress(BODY)
        async with one.receiver._decoding:  # as if one took very long
            waiting = [asyncio.ensure_future(post(one.url, packed, content_encoding="gzip")) for _ in range(2)]
            await eventually(lambda: one.receiver._waiting == 2)
            assert (await post(one.url, packed, content_encoding="gzip")).status_code == 503
            assert one.receiver._bodies._held == 2 * len(packed)
            assert partial(await post(one.url, BODY)) == (0, "")  # a small one need not wait
        assert [partial(await one) for one in waiting] == [(0, "")] * 2
        await eventually(lambda: one.receiver._bodies._held == 0 and one.receiver._waiting == 0)


def test_a_status_is_that_of_the_standard() -> None:
    for code, message in [(3, "x"), (14, ""), (8, "ö" * 100), (8, "long" * 10_000)]:
        found = Status.FromString(status(code, message))
        assert found.code == code and found.message == message[: 2**14 - 1]


async def test_other_methods(tmp_path: Path) -> None:
    async with site(tmp_path) as one, httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(one.url)).status_code == 405


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
async def test_opentelemetrys_own_exporter(tmp_path: Path, compression: Compression) -> None:
    async with site(tmp_path) as one:
        provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
        exporter = OTLPSpanExporter(endpoint=one.url, compression=compression)
        provider.add_span_processor(SimpleSpanProcessor(exporter))

        def work() -> None:
            tracer = provider.get_tracer("shop")
            with tracer.start_as_current_span("checkout") as span:
                span.set_attribute("items", 3)
                with tracer.start_as_current_span("pay"):
                    pass
            provider.shutdown()

        await asyncio.to_thread(work)
        assert one.one("SELECT method, outcome, spans FROM calls") == ("checkout", "done", 2)


async def test_large_bodies_and_small_ones_at_once(tmp_path: Path) -> None:
    large = made.request(made.many(3_000)).SerializeToString()
    async with site(tmp_path) as one:
        answers = await asyncio.gather(*(post(one.url, body) for body in [large, BODY, large, BODY]))
        assert [partial(answer) for answer in answers] == [(0, "")] * 4
        calls = {span.trace for span in made.many(3_000)}
        assert one.one("SELECT count(*) FROM calls") == (len(calls) + 1,)


def test_unpacking_is_bounded() -> None:
    twice = gzip.compress(b"a" * 100) + gzip.compress(b"b" * 100)  # gzip may be of several members
    assert unpacked(twice, 200) == b"a" * 100 + b"b" * 100
    for limit in (199, 150, 100, 50):
        with pytest.raises(LimitExceeded):
            unpacked(twice, limit)
    with pytest.raises(ProtocolError):
        unpacked(twice + b"rubbish", 1_000)
    assert unpacked(b"", 10) == b""
    with pytest.raises(ProtocolError, match="100 members"):  # each one costs a copy of the rest
        unpacked(gzip.compress(b"") * 101, 1_000)
