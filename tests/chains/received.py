"""An OTLP receiver on a free port of this machine, and what spans that it has got say."""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Received(threading.Thread):
    """Answers with the next of `answers`, 200 when there is none, and keeps what it took."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(daemon=True)
        self.requests: list[tuple[str, ExportTraceServiceRequest, bytes]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[int] = []
        received = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                encoding = self.headers.get("Content-Encoding", "")
                body = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(encoding, bytes)(body)
                answer = received.answers.pop(0) if received.answers else 200
                if answer == 200:
                    received.headers.append(dict(self.headers))
                    received.requests.append((self.path, ExportTraceServiceRequest.FromString(body), body))
                self.send_response(answer)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def run(self) -> None:
        self.server.serve_forever(poll_interval=0.01)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.join()

    @property
    def spans(self) -> list[Any]:
        return [span for _, request, _ in list(self.requests) for resource in request.resource_spans
                for scope in resource.scope_spans for span in scope.spans]  # fmt: skip

    @property
    def resource(self) -> dict[str, Any]:
        return attributes(self.requests[0][1].resource_spans[0].resource)


@contextmanager
def receiving(port: int = 0) -> Iterator[Received]:
    received = Received(port)
    received.start()
    try:
        yield received
    finally:
        received.close()


def attributes(span: Any) -> dict[str, Any]:
    """The attributes of a span or a resource as plain values."""
    return {one.key: _value(one.value) for one in span.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def length_ms(span: Any) -> float:
    return float(span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
