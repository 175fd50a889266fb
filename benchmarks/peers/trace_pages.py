"""Pages of other tracing tools, fed with spans of ours: otel-desktop-viewer's and Jaeger's.

The page is the tool's own, built, in a folder that an environment variable names. Its server is not: a small one stands
in for it, which has every answer ready in memory. So what is measured of a peer is its page alone, without its queries.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import multiprocessing
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvicorn

from tests.chains.records import made

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
SERVICE = made.RESOURCE["service.name"]
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
RPC = "/rpc"


@dataclass(frozen=True, slots=True)
class Sight:
    """Where a page draws rows: it is there when they fill the scroller, and the count (if given) is said."""

    path: str
    scroller: str
    rows: str
    also: str = "true"


@dataclass(frozen=True, slots=True)
class Answers:
    """What the stand-in says: JSON by path (Jaeger), or by the method that is called and its trace (the other)."""

    by_path: dict[str, bytes] = field(default_factory=dict)
    by_method: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Peer:
    """A tool's page: `folder` is named by `variable`. `packed`: its server compresses what it sends. `listed`: how many
    traces it lists where it does not list all; the newest then.
    """

    name: str
    variable: str
    packed: bool
    listed: int | None
    answers: Callable[[Sequence[Summary], Sequence[made.Span]], Answers]
    calls: Sight
    call: Callable[[str], Sight]

    def prepared(self, traces: Sequence[Summary], spans: Sequence[made.Span]) -> Answers:
        """Its answers to who asks for the list of these traces, and for the one trace."""
        newest = sorted(traces, key=lambda one: -one.start)
        return self.answers(newest[: self.listed], spans)

    @property
    def folder(self) -> Path | None:
        """None, and a line that says so, where the page is not at hand."""
        named = os.environ.get(self.variable, "")
        if named and (Path(named) / "index.html").is_file():
            return Path(named)
        print(f"{self.name} is left out: name the folder of its built page in {self.variable}", file=sys.stderr)
        return None


@dataclass(frozen=True, slots=True)
class Summary:
    """A trace as a list shows it; times in ns since 1970."""

    trace: str
    name: str
    start: int
    end: int
    spans: int
    errors: int

    @classmethod
    def of(cls, spans: Sequence[made.Span]) -> Summary:
        root = next(span for span in spans if not span.parent)
        failed = sum(span.status == 2 for span in spans)
        return cls(root.trace.hex(), root.name, root.start, max(span.end for span in spans), len(spans), failed)


def desktop_answers(listed: Sequence[Summary], spans: Sequence[made.Span]) -> Answers:
    """otel-desktop-viewer: JSON-RPC; times as text in ns, spans in the tree's order with their depth."""
    summaries = [
        {
            "traceID": one.trace, "hasRootSpan": True, "rootSpan": {"serviceName": SERVICE, "name": one.name},
            "startTime": str(one.start), "durationNs": str(one.end - one.start), "spanCount": one.spans,
            "errorCount": one.errors,
        }
        for one in listed
    ]  # fmt: skip
    counts = {
        "traceCount": len(listed),
        "spanCount": sum(one.spans for one in listed),
        "serviceCount": 1,
        "errorCount": 0,
    }
    stats = {
        "storage": {"sizeBytes": 0, "maxSizeBytes": 0}, "traces": {**counts, "lastReceived": None},
        "logs": {"logCount": 0, "errorCount": 0, "lastReceived": None},
        "metrics": {"metricCount": 0, "dataPointCount": 0, "lastReceived": None},
    }  # fmt: skip
    start = min(span.start for span in spans)
    resource = [_named(*pair) for pair in made.RESOURCE.items()]
    trace = {
        "traceID": spans[0].trace.hex(), "traceStart": str(start), "unplacedSpanCount": 0,
        "resources": {"1": {"attributes": resource, "droppedAttributesCount": 0}},
        "scopes": {"1": {"name": "chains", "version": "", "attributes": [], "droppedAttributesCount": 0}},
        "spans": [
            {"spanData": _desktop_span(span, start), "depth": depth, "matched": True} for span, depth in _tree(spans)
        ],
    }  # fmt: skip
    said = {"searchTraces": summaries, "getStats": stats, "searchSpans": trace}
    return Answers(by_method={name: json.dumps(value).encode() for name, value in said.items()})


def _desktop_span(span: made.Span, start: int) -> dict[str, Any]:
    return {
        "traceState": "", "spanID": span.span.hex(), "parentSpanID": span.parent.hex() or None, "flags": 0,
        "name": span.name, "kind": "Internal", "start": span.start - start, "dur": span.end - span.start,
        "attributes": [_named(*pair) for pair in span.attributes.items()],
        "events": [
            {"name": name, "timestamp": str(at), "droppedAttributesCount": 0, "attributes": []}
            for name, at in span.events
        ],
        "links": [], "r": 1, "s": 1, "droppedAttributesCount": 0, "droppedEventsCount": 0, "droppedLinksCount": 0,
        "statusCode": ("Unset", "Ok", "Error")[span.status], "statusMessage": "",
    }  # fmt: skip


def _named(key: str, value: Any) -> dict[str, str]:
    kind = {bool: "bool", int: "int64", float: "float64"}.get(type(value), "string")
    return {"key": key, "value": str(value).lower() if kind == "bool" else str(value), "type": kind}


def _tree(spans: Sequence[made.Span]) -> Iterator[tuple[made.Span, int]]:
    """Each span with its depth, a parent before its children, these by their start."""
    below: dict[bytes, list[made.Span]] = {}
    for span in sorted(spans, key=lambda span: -span.start):
        below.setdefault(span.parent, []).append(span)
    waiting = [(span, 0) for span in below.get(b"", [])]
    while waiting:
        span, depth = waiting.pop()
        yield span, depth
        waiting += [(child, depth + 1) for child in below.get(span.span, [])]


def jaeger_answers(listed: Sequence[Summary], spans: Sequence[made.Span]) -> Answers:
    """Jaeger's query service: summaries by its third API, a whole trace by its first; times in us."""
    summaries = [
        {
            "traceId": one.trace, "rootServiceName": SERVICE, "rootOperationName": one.name,
            "minStartTimeUnixNano": str(one.start), "maxEndTimeUnixNano": str(one.end), "spanCount": one.spans,
            "errorSpanCount": one.errors, "orphanSpanCount": 0,
            "services": [{"name": SERVICE, "spanCount": one.spans, "errorSpanCount": one.errors}],
        }
        for one in listed
    ]  # fmt: skip
    trace = spans[0].trace.hex()
    process = {"serviceName": SERVICE, "tags": [_tag(*pair) for pair in made.RESOURCE.items()]}
    whole = {"traceID": trace, "spans": [_jaeger_span(span) for span in spans], "processes": {"p1": process}}
    names = sorted({span.name for span in spans})
    said = {
        "/api/services": {"data": [SERVICE], "total": 1, "limit": 0, "offset": 0, "errors": None},
        f"/api/services/{SERVICE}/operations": {"data": names, "total": len(names), "errors": None},
        "/api/v3/services": {"services": [SERVICE]},
        "/api/v3/operations": {"operations": [{"name": name, "spanKind": "internal"} for name in names]},
        "/api/v3/trace-summaries": {"summaries": summaries},
        f"/api/traces/{trace}": {"data": [whole], "total": 0, "limit": 0, "offset": 0, "errors": None},
    }
    return Answers(by_path={path: json.dumps(value).encode() for path, value in said.items()})


def _jaeger_span(span: made.Span) -> dict[str, Any]:
    above = [{"refType": "CHILD_OF", "traceID": span.trace.hex(), "spanID": span.parent.hex()}] if span.parent else []
    marks = [
        {"timestamp": at // 1_000, "fields": [{"key": "event", "type": "string", "value": name}]}
        for name, at in span.events
    ]
    return {
        "traceID": span.trace.hex(), "spanID": span.span.hex(), "operationName": span.name, "references": above,
        "startTime": span.start // 1_000, "duration": (span.end - span.start) // 1_000,
        "tags": [_tag(*pair) for pair in span.attributes.items()], "logs": marks, "processID": "p1", "warnings": None,
    }  # fmt: skip


def _tag(key: str, value: Any) -> dict[str, Any]:
    kind = {bool: "bool", int: "int64", float: "float64"}.get(type(value), "string")
    return {"key": key, "type": kind, "value": value}


VIEWPORT = ".signal-drawer__vlist-viewport"
DESKTOP = Peer(
    name="otel-desktop-viewer",
    variable="CHAINS_OTEL_DESKTOP_VIEWER",
    packed=False,
    listed=None,
    answers=desktop_answers,
    calls=Sight("/traces", VIEWPORT, f"{VIEWPORT} [data-original-index]"),
    call=lambda trace: Sight(f"/traces/{trace}", ".waterfall-vlist-viewport", "tr[data-span-id]"),
)
JAEGER = Peer(
    name="Jaeger",
    variable="CHAINS_JAEGER_UI",
    packed=True,
    listed=20,
    answers=jaeger_answers,
    calls=Sight(f"/search?service={SERVICE}&limit=20&lookback=custom", "body", ".ant-table-row, .ResultItem"),
    call=lambda trace: Sight(f"/trace/{trace}", "body", ".span-row"),
)
PEERS = (DESKTOP, JAEGER)


@contextmanager
def served(peer: Peer, folder: Path, answers: Answers) -> Iterator[str]:
    """The page and its answers in a process of their own; gives the address."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(folder, answers, peer.packed, there), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.kill()
        process.join()


def _serve(folder: Path, answers: Answers, packed: bool, there: Connection) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    there.send(listening.getsockname()[1])
    app = StandIn(folder, answers, packed)
    config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off")
    asyncio.run(uvicorn.Server(config).serve([listening]))


class StandIn:
    """Files and answers out of memory, compressed beforehand where the peer's own server compresses."""

    def __init__(self, folder: Path, answers: Answers, packed: bool) -> None:
        files = {f"/{path.relative_to(folder)}": path for path in folder.rglob("*") if path.is_file()}
        self.packed = packed
        self._files = {name: (self._pack(path.read_bytes()), path.suffix) for name, path in files.items()}
        self._paths = {name: self._pack(body) for name, body in answers.by_path.items()}
        self._methods = answers.by_method

    def _pack(self, body: bytes) -> bytes:
        return gzip.compress(body, 6) if self.packed else body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == RPC:
            await self._send(send, await self._called(receive), "application/json", packed=False)
        elif path in self._paths:
            await self._send(send, self._paths[path], "application/json", packed=self.packed)
        elif path.startswith("/api"):
            await self._send(send, b'{"data": [], "errors": null}', "application/json", packed=False)
        else:
            body, suffix = self._files.get(path, self._files["/index.html"])
            kept = b"no-cache" if suffix == ".html" else b"public, max-age=31536000, immutable"
            kind = TYPES.get(suffix, "application/octet-stream")
            await self._send(send, body, kind, packed=self.packed, kept=kept)

    async def _called(self, receive: Receive) -> bytes:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        asked: Mapping[str, Any] = json.loads(body)
        result = self._methods.get(asked["method"], b"[]")
        return b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (asked["id"], result)

    async def _send(self, send: Send, body: bytes, kind: str, *, packed: bool, kept: bytes = b"no-store") -> None:
        headers = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body)), (b"cache-control", kept)]
        headers += [(b"content-encoding", b"gzip")] if packed else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
