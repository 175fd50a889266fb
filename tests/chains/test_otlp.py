"""The way to an OTLP endpoint: what the standard variables say, what happens when it is slow, gone, or back."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from chains.errors import SettingError
from chains.otlp import FLUSH, Batches, Endpoint, endpoint_of, post
from tests.chains.received import receiving


def named(items: Sequence[str], rest: Callable[[], None]) -> bytes:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for item in items:
        scope.spans.add().name = item
        rest()
    body: bytes = request.SerializeToString()
    return body


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_the_standard_variables_say_where_and_how() -> None:
    assert endpoint_of({}) == Endpoint("http://localhost:4318/v1/traces")
    grpc = endpoint_of({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"})
    assert (grpc.url, grpc.protocol) == ("http://localhost:4317", "grpc")
    found = endpoint_of(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "https://collector:4318/base/",
            "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b,x=1=2",
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "3",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "9",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_EXPORTER_OTLP_CERTIFICATE": "/ca.pem",
            "OTEL_BSP_MAX_QUEUE_SIZE": "10",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "5",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
    )
    assert found == Endpoint(
        "https://collector:4318/base/v1/traces", {"api-key": "a b", "x": "1=2"}, compression="gzip", timeout=3.0,
        certificate="/ca.pem", queue=10, batch=5, delay=0.1,
    )  # fmt: skip
    own = endpoint_of({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a/b", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"})
    assert own.url == "http://a/b", "as it is"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", ["http/json"]),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", ["collector:4318", "http://h:99999", "http://h:abc", "http://[::1", "http://:1",
                                         "http://h/a b", "http://h/\r\n", "http://h:0", "http://h/\u00fc"]),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ["ftp://h", "http://"]),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", ["zip"]),
        ("OTEL_EXPORTER_OTLP_HEADERS", ["key", "key=a%0D%0Ab", "key=a\nb", "key=\u20ac", "a b=c", "=c", "a=1,a=2"]),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", ["-1", "0", "1e15", "inf", "nan"]),
        ("OTEL_BSP_SCHEDULE_DELAY", ["soon", "0", "1e15", "-5", "nan"]),
        ("OTEL_BSP_MAX_QUEUE_SIZE", ["0", "many", "1e300"]),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", ["0", "1e300"]),
    ],
)  # fmt: skip
def test_a_variable_that_makes_no_sense_is_an_error(name: str, values: list[str]) -> None:
    for value in values:
        with pytest.raises(SettingError, match="write") as told:
            endpoint_of({name: value})
        assert not name.endswith("HEADERS") or "20ac" not in ascii(told.value), "it may be a key"


@pytest.mark.parametrize("name", ["certificate", "client_certificate"])
def test_certificates_that_are_not_there_are_an_error_at_the_start(name: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for file in ("/nope.pem", str(empty)):
        with pytest.raises(SettingError, match="PEM") as told:
            Batches(replace(Endpoint("https://localhost/v1/traces"), **{name: file}), named)
        assert file in str(told.value)


@pytest.mark.skipif(find_spec("opentelemetry.exporter.otlp.proto") is None, reason="no exporter at all")
def test_grpc_without_its_exporter_says_what_to_install() -> None:
    try:
        installed = find_spec("opentelemetry.exporter.otlp.proto.grpc") is not None
    except ModuleNotFoundError:
        installed = False
    if installed:
        pytest.skip("the exporter for gRPC is installed")
    with pytest.raises(SettingError, match="pip install opentelemetry-exporter-otlp-proto-grpc"):
        Batches(Endpoint("http://localhost:4317", protocol="grpc"), named)


def test_a_flush_sends_what_is_queued_and_batches_are_bounded() -> None:
    with receiving() as received:
        batches = Batches(Endpoint(f"{received.url}/v1/traces", batch=4, delay=60.0), named)
        for number in range(10):
            batches.put(str(number))
        assert batches.flush()
        assert [span.name for span in received.spans] == [str(number) for number in range(10)]
        assert max(len(one.resource_spans[0].scope_spans[0].spans) for _, one, _ in received.requests) <= 4
        batches.put("last")
        batches.close()
        assert received.spans[-1].name == "last"
        batches.put("late")
        assert batches.dropped == 1, "after the end nothing is sent, and that is counted"


def test_an_endpoint_that_is_busy_is_asked_again() -> None:
    with receiving() as received:
        received.answers = [503, 429]
        batches = Batches(Endpoint(f"{received.url}/v1/traces", delay=60.0), named)
        batches.put("patient")
        assert batches.flush()
        assert [span.name for span in received.spans] == ["patient"] and batches.dropped == 0
        batches.close()


def test_an_endpoint_that_refuses_is_not_asked_again() -> None:
    with receiving() as received:
        received.answers = [400]
        batches = Batches(Endpoint(f"{received.url}/v1/traces", delay=60.0), named)
        batches.put("bad")
        assert batches.flush()
        assert received.spans == [] and batches.dropped == 1
        batches.close()


def test_an_endpoint_that_is_gone_is_said_once_and_that_it_is_back_too(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    endpoint = Endpoint(f"http://user:secret@127.0.0.1:{port}/v1/traces", timeout=0.1, delay=60.0)
    with caplog.at_level(logging.INFO, "chains.otlp"):
        batches = Batches(endpoint, named)
        for _ in range(3):
            batches.put("lost")
            assert batches.flush()
        assert batches.dropped == 3
        with receiving(port) as received:
            batches.put("found")
            assert batches.flush()
            assert [span.name for span in received.spans] == ["found"]
        batches.close()
    told = [record.message for record in caplog.records]
    assert len(told) == 2 and "refused" in told[0] and "again; 3 were dropped" in told[1]
    assert not any("secret" in line for line in told)


def test_an_endpoint_that_never_answers_holds_nobody_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        batches = Batches(Endpoint(f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces", queue=8, batch=1), named)
        start = time.monotonic()
        for _ in range(1_000):
            batches.put("waits")
        assert time.monotonic() - start < 1.0 and batches.dropped >= 990
        start = time.monotonic()
        batches.close()
        assert time.monotonic() - start < FLUSH + 1.0


def test_a_batch_that_cannot_be_encoded_is_lost_alone() -> None:
    def picky(items: Sequence[str], rest: Callable[[], None]) -> bytes:
        if "bad" in items:
            raise ValueError("no such thing")
        return named(items, rest)

    with receiving() as received:
        batches = Batches(Endpoint(f"{received.url}/v1/traces", batch=1, delay=60.0), picky)
        for item in ("bad", "good"):
            batches.put(item)
        assert batches.flush()
        assert [span.name for span in received.spans] == ["good"] and batches.dropped == 1
        batches.close()


def answering_badly(answer: bytes, again: bytes, pause: float) -> tuple[socket.socket, str]:
    """A server on a free port that says `answer` and then `again` for ever."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                asking, _ = listening.accept()
                threading.Thread(target=talk, args=(asking,), daemon=True).start()

    def talk(asking: socket.socket) -> None:
        with asking, suppress(OSError):
            asking.recv(65_536)
            asking.sendall(answer)
            while True:
                asking.sendall(again)
                ended.wait(pause)

    ended = threading.Event()
    threading.Thread(target=serve, daemon=True).start()
    return listening, f"http://127.0.0.1:{listening.getsockname()[1]}/v1/traces"


@pytest.mark.parametrize(
    ("answer", "again", "pause"),
    [
        (b"", b"H", 0.02),
        (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n", 0.02),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x", 0.02),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 0.02),
    ],
)
def test_an_answer_that_trickles_has_no_more_time_than_another(
    answer: bytes, again: bytes, pause: float, caplog: pytest.LogCaptureFixture
) -> None:
    listening, url = answering_badly(answer, again, pause)
    with listening:
        batches = Batches(Endpoint(url, timeout=0.3, delay=60.0), named)
        batches.put("waits")
        assert batches.flush(5.0)
        assert batches.dropped == 1 and "does not take spans" in caplog.text
        batches.close()


@pytest.mark.parametrize("head", [b"", b"Transfer-Encoding: chunked\r\n"])
def test_of_an_answer_without_end_a_little_is_read(head: bytes) -> None:
    piece = b"x" * 100_000
    listening, url = answering_badly(
        b"HTTP/1.1 200 OK\r\n" + head + b"\r\n", b"%x\r\n%b\r\n" % (len(piece), piece) if head else piece, 0.0
    )
    with listening:
        where = urlsplit(url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port)
        assert post(connection, where.path, b"", {}, 10.0) == (200, "OK")
        assert connection.sock is None, "what else comes on it is not the answer to the next"
