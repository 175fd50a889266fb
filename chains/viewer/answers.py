"""What the viewer answers with: JSON, compressed where that pays, and errors with their mend."""

from __future__ import annotations

import gzip
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from chains.errors import ChainsError
from chains.protocol import error_fields

WORTH = 2_048  # bytes from which compressing pays


def error_response(error: BaseException, status: int | None = None) -> Response:
    """{"error": {"type", "message", "mend"}} with the error's HTTP status, or with `status`."""
    code = error.http if isinstance(error, ChainsError) else 500
    headers = {"retry-after": "1"} if isinstance(error, ChainsError) and error.retryable else {}
    if code == 401 and status is None:
        headers["www-authenticate"] = "Bearer"
    body = msgspec.json.encode({"error": error_fields(error)})
    return Response(body, status or code, headers, "application/json")


def encode(value: Any, compress: bool) -> tuple[bytes, bool]:
    """The value as JSON, and whether it is compressed. Takes long for large ones: belongs into a thread."""
    body = msgspec.json.encode(value)
    if compress and len(body) >= WORTH:
        return gzip.compress(body, 1), True
    return body, False


def takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def encoded_response(body: bytes, compressed: bool) -> Response:
    headers = {"vary": "accept-encoding"}
    if compressed:
        headers["content-encoding"] = "gzip"
    return Response(body, 200, headers, "application/json")
