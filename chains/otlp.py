"""The way of spans to an OTLP endpoint: where it is by the OTEL_* variables, and a bounded queue with a thread behind.

Nothing here holds a caller up: what comes while the queue is full, and what an endpoint does not take in time, is
dropped and counted.
"""

from __future__ import annotations

import atexit
import gzip
import http.client
import importlib
import logging
import re
import socket
import ssl
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from chains.errors import SettingError

T = TypeVar("T")
log = logging.getLogger("chains.otlp")
FLUSH = 2.0
"""Seconds that a flush, and the end of the process, wait for an endpoint at most."""
REST = 50e-6
"""Seconds for which the thread gives way while it encodes: the event loop shares the interpreter with it."""
ANSWER = 65_536
"""Bytes of an answer that are read at most."""
_RETRIED = (429, 502, 503, 504)
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_BACKOFF = (0.25, 4.0)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where spans go, and how: `url` is whole, times are seconds."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    protocol: str = "http/protobuf"
    compression: str = "none"
    timeout: float = 10.0
    certificate: str = ""
    client_certificate: str = ""
    client_key: str = ""
    queue: int = 2048
    batch: int = 512
    delay: float = 5.0


def endpoint_of(environ: Mapping[str, str]) -> Endpoint:
    """What the standard variables say. Raises SettingError for a value that makes no sense."""

    def said(name: str, default: str = "") -> str:
        return environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or environ.get(f"OTEL_EXPORTER_OTLP_{name}") or default

    protocol = said("PROTOCOL", "http/protobuf")
    if protocol not in ("http/protobuf", "grpc"):
        raise SettingError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}", mend="write http/protobuf, or grpc")
    grpc = protocol == "grpc"
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "") or f"http://localhost:{4317 if grpc else 4318}"
    whole = base if grpc else f"{base.rstrip('/')}/v1/traces"
    url = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or whole
    if not is_url(url) and not (grpc and is_url(f"http://{url}")):
        raise SettingError(f"the OTLP endpoint is {url!r}", mend="write http://HOST:4318, or https://HOST")
    compression = said("COMPRESSION", "none")
    if compression not in ("none", "gzip", "deflate"):
        raise SettingError(f"OTEL_EXPORTER_OTLP_COMPRESSION is {compression!r}", mend="write none, gzip or deflate")
    timeout = environ.get("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT") and "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"
    return Endpoint(
        url,
        _headers(said("HEADERS")),
        protocol,
        compression,
        number(environ, timeout or "OTEL_EXPORTER_OTLP_TIMEOUT", 10.0, 0.001, 3600),
        said("CERTIFICATE"),
        said("CLIENT_CERTIFICATE"),
        said("CLIENT_KEY"),
        int(number(environ, "OTEL_BSP_MAX_QUEUE_SIZE", 2048, 1, 1_000_000)),
        int(number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512, 1, 1_000_000)),
        number(environ, "OTEL_BSP_SCHEDULE_DELAY", 5000, 1, 86_400_000) / 1e3,
    )


def is_url(url: str) -> bool:
    """Whether an HTTP client can make something of it."""
    try:
        where = urlsplit(url)
        known = where.scheme in ("http", "https") and bool(where.hostname) and where.port != 0
    except ValueError:
        return False
    return known and all("!" <= character <= "~" for character in url)


def header_can_hold(value: str) -> bool:
    return value.isascii() and value.isprintable()


def _headers(text: str) -> dict[str, str]:
    found = pairs(text)
    entries = [entry for entry in text.split(",") if entry.strip()]
    if len(found) < len(entries) or not all(_TOKEN.fullmatch(n) and header_can_hold(v) for n, v in found.items()):
        raise SettingError(  # without the value: it may be a key
            "OTEL_EXPORTER_OTLP_HEADERS holds what is no header",
            mend="write NAME=VALUE,NAME=VALUE, each name once, values in one line of ASCII",
        )
    return found


def pairs(text: str) -> dict[str, str]:
    """`name=value,name=value` with percent-encoded values, as the standard variables write headers and attributes."""
    split = (entry.partition("=") for entry in text.split(",") if "=" in entry)
    return {unquote(name.strip()): unquote(value.strip()) for name, _, value in split}


def number(
    environ: Mapping[str, str], name: str, default: float, least: float = 0.0, most: float = float("inf")
) -> float:
    """A variable that holds a number within these bounds. Raises SettingError for anything else."""
    try:
        value = float(environ.get(name) or default)
    except ValueError:
        value = -1.0
    if not least <= value <= most or value == float("inf"):
        bound = f"from {least:g} up" if most == float("inf") else f"from {least:g} to {most:.15g}"
        raise SettingError(f"{name} is {environ.get(name)!r}", mend=f"write a number {bound}")
    return value


class Refused(Exception):
    """The endpoint does not take a batch; `again`: it may, a little later."""

    def __init__(self, why: str, *, again: bool) -> None:
        super().__init__(why)
        self.again = again


class Sender(Protocol):
    """Sends one encoded ExportTraceServiceRequest. Raises Refused."""

    def send(self, body: bytes, timeout: float) -> None: ...
    def close(self) -> None: ...


def post(
    connection: http.client.HTTPConnection, path: str, body: bytes, headers: Mapping[str, str], seconds: float
) -> tuple[int, str]:
    """(status, reason) of an answer that has come whole within so many seconds, however slowly its bytes come; of its
    body no more is read than ANSWER bytes. Raises OSError or HTTPException; then the connection is to be closed.
    """
    until, late = time.monotonic() + seconds, threading.Event()
    connection.timeout = seconds
    if connection.sock is None:
        connection.connect()
    line = connection.sock  # http.client lets go of it when an answer has no length
    line.settimeout(seconds)

    def give_up() -> None:
        late.set()
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, until - time.monotonic()), give_up)
    timer.daemon = True
    timer.start()
    try:
        connection.request("POST", path, body, dict(headers))
        answer = connection.getresponse()
        if len(answer.read(ANSWER)) == ANSWER:
            connection.close()
    except (OSError, http.client.HTTPException):
        if late.is_set():
            raise TimeoutError("timed out") from None
        raise
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError("timed out")
    return answer.status, answer.reason


class HttpSender:
    """OTLP over HTTP, on one connection that is kept."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        where = urlsplit(endpoint.url)
        self._path = (where.path or "/") + (f"?{where.query}" if where.query else "")
        self._connection: http.client.HTTPConnection
        if where.scheme == "https":
            context = _context(endpoint)
            self._connection = http.client.HTTPSConnection(where.hostname or "", where.port, context=context)
        else:
            self._connection = http.client.HTTPConnection(where.hostname or "", where.port)
        self._headers = {"Content-Type": "application/x-protobuf", "User-Agent": "chains-otlp", **endpoint.headers}
        if endpoint.compression != "none":
            self._headers["Content-Encoding"] = endpoint.compression

    def send(self, body: bytes, timeout: float) -> None:
        if self._endpoint.compression == "gzip":
            body = gzip.compress(body, 6)
        elif self._endpoint.compression == "deflate":
            body = zlib.compress(body)
        kept = self._connection.sock is not None
        try:
            status, reason = self._post(body, timeout)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            if not kept or isinstance(error, TimeoutError):
                raise Refused(_named(error), again=True) from None
            try:  # the endpoint had closed a connection that was not in use
                status, reason = self._post(body, timeout)
            except (OSError, http.client.HTTPException) as last:
                self._connection.close()
                raise Refused(_named(last), again=True) from None
        if not 200 <= status < 300:
            raise Refused(f"it answered {status} {reason}", again=status in _RETRIED)

    def _post(self, body: bytes, timeout: float) -> tuple[int, str]:
        return post(self._connection, self._path, body, self._headers, timeout)

    def close(self) -> None:
        self._connection.close()


def _context(endpoint: Endpoint) -> ssl.SSLContext:
    files = ", ".join(filter(None, (endpoint.certificate, endpoint.client_certificate, endpoint.client_key)))
    try:
        context = ssl.create_default_context(cafile=endpoint.certificate or None)
        if endpoint.client_certificate:  # a password is never asked for at the terminal
            context.load_cert_chain(endpoint.client_certificate, endpoint.client_key or None, password="")
    except OSError as error:
        raise SettingError(
            f"the certificates for OTLP cannot be read ({files}): {_named(error)}",
            mend="let OTEL_EXPORTER_OTLP_CERTIFICATE, _CLIENT_CERTIFICATE and _CLIENT_KEY name PEM files",
        ) from None
    return context


def _named(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class GrpcSender:
    """OTLP over gRPC, by OpenTelemetry's own exporter, which reads the OTEL_* variables itself. Raises SettingError
    where that is not installed.
    """

    def __init__(self) -> None:
        name = "opentelemetry.exporter.otlp.proto.grpc.trace_exporter"
        try:
            exporter = importlib.import_module(name).OTLPSpanExporter
        except ImportError:
            raise SettingError(
                "OTEL_EXPORTER_OTLP_PROTOCOL is grpc, but OpenTelemetry's exporter for it is not installed",
                mend="pip install opentelemetry-exporter-otlp-proto-grpc, or write http/protobuf",
            ) from None
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        class Ready(exporter):  # type: ignore[misc, valid-type]  # known at run time alone
            """Is given a request, not spans: it is built already."""

            def _translate_data(self, data: Any) -> Any:
                return data[0]

        self._request = ExportTraceServiceRequest
        self._exporter = Ready()

    def send(self, body: bytes, timeout: float) -> None:
        if self._exporter.export((self._request.FromString(body),)).name != "SUCCESS":
            raise Refused("the gRPC exporter could not deliver", again=False)  # it has tried again by itself

    def close(self) -> None:
        self._exporter.shutdown()


class Batches(Generic[T]):
    """A bounded queue, and the thread that empties it: `encode(items, rest)` makes a request of them, and calls
    `rest()` now and then; `sent()` is called when the endpoint has taken that. `dropped` counts what was lost, because
    the queue was full or the endpoint did not take it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        encode: Callable[[Sequence[T], Callable[[], None]], bytes],
        sent: Callable[[], None] = lambda: None,
        *,
        name: str = "spans",
    ) -> None:
        self.endpoint = endpoint
        self.dropped = 0
        self._encode, self._sent = encode, sent
        self._sender: Sender = GrpcSender() if endpoint.protocol == "grpc" else HttpSender(endpoint)
        self._name = name
        self._queue: deque[T] = deque()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._flushed = threading.Condition()
        self._asked = self._done = 0
        self._deadline = float("inf")
        self._down = False
        self._thread = threading.Thread(target=self._run, name="chains-otlp", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, item: T) -> None:
        """Send it with one of the next batches; drop it when the queue is full."""
        queue = self._queue
        if len(queue) >= self.endpoint.queue or self._closing.is_set():
            self.dropped += 1
            return
        queue.append(item)
        if len(queue) == self.endpoint.batch:
            self._wake.set()

    def flush(self, seconds: float = FLUSH) -> bool:
        """Send what is queued now; whether that was done in so many seconds."""
        with self._flushed:
            self._asked += 1
            ticket = self._asked
            self._wake.set()
            return self._flushed.wait_for(lambda: self._done >= ticket, seconds)

    def close(self) -> None:
        """Send what is left, within FLUSH seconds, and end the thread."""
        atexit.unregister(self.close)
        if not self._closing.is_set():
            self._deadline = time.monotonic() + FLUSH
            self._closing.set()
            self._wake.set()
        self._thread.join(FLUSH + 0.5)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(self.endpoint.delay)
            self._wake.clear()
            self._empty()
        self._empty()
        self.dropped += len(self._queue)
        self._sender.close()

    def _empty(self) -> None:
        """Send all that is queued, and tell those who asked for it before."""
        with self._flushed:
            ticket = self._asked
        queue = self._queue
        while queue and time.monotonic() < self._deadline:
            batch = [queue.popleft() for _ in range(min(len(queue), self.endpoint.batch))]
            try:
                self._deliver(self._encode(batch, _rest), len(batch))
            except Exception as error:  # a batch that cannot be encoded must not end the export of all others
                self._lost(len(batch), f"{type(error).__name__}: {error}")
        with self._flushed:
            self._done = ticket
            self._flushed.notify_all()

    def _deliver(self, body: bytes, items: int) -> None:
        """Send, and again with growing pauses within the endpoint's timeout."""
        until, pause = time.monotonic() + self.endpoint.timeout, _BACKOFF[0]
        while True:
            left = min(until, self._deadline) - time.monotonic()
            try:
                self._sender.send(body, max(0.05, left))
            except Refused as refused:
                if not refused.again or left <= pause or self._closing.is_set():
                    self._lost(items, str(refused))
                    return
                self._closing.wait(pause)
                pause = min(2 * pause, _BACKOFF[1])
            else:
                self._sent()
                if self._down:
                    self._down = False
                    log.info("%s takes %s again; %d were dropped until now", self._shown, self._name, self.dropped)
                return

    def _lost(self, items: int, why: str) -> None:
        self.dropped += items
        if not self._down:
            self._down = True
            log.warning("%s does not take %s (%s): they are dropped until it does", self._shown, self._name, why)

    @property
    def _shown(self) -> str:
        """The endpoint without what may be secret."""
        where = urlsplit(self.endpoint.url)
        host = where.hostname or ""
        return f"{where.scheme}://{host}{f':{where.port}' if where.port else ''}{where.path}"


def _rest() -> None:
    time.sleep(REST)
