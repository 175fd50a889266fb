"""The gateway as one ASGI app: any chain answers on the websocket, over HTTP and as a stream of events."""

from __future__ import annotations

import html
import inspect
import json
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from chains.dsl.signature import Method, Param
from chains.errors import ChainsError, NotFound, ProtocolError
from chains.gateway import native
from chains.gateway.http import CallEndpoint, error_response
from chains.gateway.session import Gateway, GatewaySettings
from chains.metrics import CONTENT_TYPE
from chains.runtime.deployment import Runtime

PATHS = "/v1/call/{method}, /v1/chain, /healthz, /metrics and /"


def create_app(runtime: Runtime, settings: GatewaySettings | None = None) -> Starlette:
    """The ASGI app that serves a started runtime; its `state.gateway` is the Gateway (for draining)."""
    gateway = Gateway(runtime, settings or GatewaySettings())
    call = CallEndpoint(gateway)

    async def websocket(socket: WebSocket) -> None:
        await native.serve(gateway, socket)

    async def healthz(request: Request) -> Response:
        return _health(gateway)

    async def chain(request: Request) -> Response:
        gateway.authorise(request.headers.get("authorization", ""))
        return Response(msgspec.json.encode(describe(gateway)), media_type="application/json")

    async def metrics(request: Request) -> Response:
        gateway.authorise(request.headers.get("authorization", ""))
        return Response(gateway.metrics.text(), media_type=CONTENT_TYPE)

    async def index(request: Request) -> Response:
        gateway.authorise(request.headers.get("authorization", ""))
        return HTMLResponse(_page(gateway, f"{request.url.scheme}://{request.url.netloc}"))

    async def failed(request: Request, error: Exception) -> Response:
        return error_response(error, gateway.settings.debug)

    app = Starlette(
        routes=[
            Route("/", index),
            Route("/healthz", healthz),
            Route("/metrics", metrics),
            Route("/v1/chain", chain),
            Route("/v1/call", call, methods=["POST"]),
            Route("/v1/call/{method}", call, methods=["POST"]),
            WebSocketRoute("/v1/call", websocket),
            WebSocketRoute("/v1/call/{method}", websocket),
        ],
        exception_handlers={ChainsError: failed, HTTPException: _no_route},
    )
    app.state.gateway = gateway
    return app


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    found: ChainsError
    if status == 405:
        found = ProtocolError(f"{request.method} is not for {request.url.path}", mend="POST to /v1/call/{method}")
    else:
        found = NotFound(f"there is nothing at {request.url.path}", mend=f"the paths are {PATHS}")
    response = error_response(found)
    response.status_code = status
    return response


def _health(gateway: Gateway) -> Response:
    """200 while work can start and moves; 503 with the reason otherwise."""
    health = gateway.runtime.health()
    ok = health.ok and not gateway.draining
    why = "the server is shutting down" if gateway.draining else health.why
    replicas = [msgspec.to_builtins(replica) for replica in health.replicas]
    body = {"ok": ok, "why": "" if ok else why, "calls": len(gateway.calls), "replicas": replicas}
    return Response(msgspec.json.encode(body), 200 if ok else 503, media_type="application/json")


def describe(gateway: Gateway) -> dict[str, Any]:
    """The chain for machines: its graph, what each method of the entry takes and gives, as JSON schema."""
    graph = gateway.runtime.graph
    methods = {name: method.schema() for name, method in gateway.methods.items()}
    return {"entry": graph.entry, "methods": methods, "graph": graph.to_json()}


def _page(gateway: Gateway, url: str) -> str:
    rows = "".join(
        f"<h2>{html.escape(name)}</h2><p>{html.escape(method.shape)}</p>"
        f"<pre>{html.escape(example(url, method, bool(gateway.settings.keys)))}</pre>"
        for name, method in gateway.methods.items()
    )
    entry = html.escape(gateway.runtime.graph.entry)
    return (
        f"<!doctype html><meta charset=utf-8><title>{entry}</title>"
        "<style>body{font:16px/1.5 system-ui;max-width:50em;margin:2em auto;padding:0 1em}"
        "pre{background:#f4f4f4;padding:.6em;overflow-x:auto}</style>"
        f"<h1>{entry}</h1>{rows}"
        '<p><a href="/v1/chain">the chain as JSON</a>, <a href="/healthz">its health</a>, '
        '<a href="/metrics">its figures for Prometheus</a></p>'
    )


def example(url: str, method: Method, key: bool = False) -> str:
    """A curl line that calls the method; for a stream of audio, the line that dials it."""
    auth = " -H 'authorization: Bearer KEY'" * key
    if any(param.stream and "Audio" in str(param.annotation) for param in method.params):
        websocket = url.replace("http", "ws", 1)
        return f"chains dial {websocket}/v1/call/{method.name} --wav in.wav --out out.wav" + " --key KEY" * key
    arguments = json.dumps({param.name: _sample(param) for param in method.params if not _optional(param)})
    buffer = " -N" if method.streams_out else ""
    return f"curl{buffer} {url}/v1/call/{method.name}{auth} -H 'content-type: application/json' -d '{arguments}'"


def _optional(param: Param) -> bool:
    return param.default is not inspect.Parameter.empty


def _sample(param: Param) -> Any:
    samples: dict[Any, Any] = {
        str: "hello",
        int: 1,
        float: 1.0,
        bool: True,
        bytes: "aGVsbG8=",
        list: [],
        dict: {},
    }
    value = samples.get(param.checker.annotation)
    if value is None:
        kind = param.checker.schema().get("type", "")
        value = {"string": "hello", "integer": 1, "number": 1.0, "boolean": True, "array": []}.get(kind, {})
    return [value] if param.stream else value
