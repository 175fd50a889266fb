"""Bodies of requests, read with a limit: of each, and of all that are in hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from chains.errors import LimitExceeded, Overloaded


class Bodies:
    """`async with bodies.of(request) as body`: its bytes count until the block is left, not only while they come.

    LimitExceeded past `longest` bytes, Overloaded when all together are more than `together`.
    """

    def __init__(self, longest: int, together: int) -> None:
        self._longest = longest
        self._together = together
        self._held = 0

    @asynccontextmanager
    async def of(self, request: Request) -> AsyncIterator[bytes]:
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and len(declared) < 20 and int(declared) > self._longest:
            raise too_large(self._longest)
        body = bytearray()
        size = 0
        try:
            async for piece in request.stream():
                body += piece
                size += len(piece)
                self._held += len(piece)
                if size > self._longest:
                    raise too_large(self._longest)
                if self._held > self._together:
                    raise Overloaded("too many requests are in hand", mend="send again in a moment")
            whole = bytes(body)
            body.clear()
            yield whole
        finally:
            self._held -= size


def too_large(limit: int) -> LimitExceeded:
    return LimitExceeded(f"a request of more than {limit} bytes", mend="send less in a request")
