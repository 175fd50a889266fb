"""What was heard of a recorded call: as WAV, any part of it, and how loud it was."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from chains.errors import NotFound
from chains.records import recordings
from chains.records.lookup import find
from chains.viewer.answers import encode, encoded_response, takes_gzip
from chains.viewer.parameters import Parameters
from chains.viewer.reading import Connection, Reader

PIECE = 1 << 20  # bytes that are rendered at a time
SIDES = ("both", "caller", "reply")
BINS, MOST_BINS = 2_000, 20_000
_RANGE = re.compile(r"bytes=(\d{1,15})?-(\d{1,15})?")


class Sound:
    """The routes of /api/calls/ID/audio.wav and /peaks."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/api/calls/{id}/audio.wav", self.wav),
            Route("/api/calls/{id}/peaks", self.peaks),
        ]

    async def peaks(self, request: Request) -> Response:
        given = Parameters(request.query_params, ("side", "bins"))
        side = given.one_of("side", SIDES, "both")
        bins = min(given.whole("bins", BINS), MOST_BINS)
        compress = takes_gzip(request)
        found = await self._reader.ask(
            lambda connection: encode(_peaks(connection, request.path_params["id"], side, bins), compress)
        )
        return encoded_response(*found)

    async def wav(self, request: Request) -> Response:
        """The whole of it, or the range that was asked for; of an open range a piece, after which more is asked for."""
        side = Parameters(request.query_params, ("side",)).one_of("side", SIDES, "both")
        id = request.path_params["id"]
        total = await self._reader.ask(_size, id, side)
        headers = {"accept-ranges": "bytes", "content-disposition": "inline"}
        asked = _RANGE.fullmatch(request.headers.get("range", ""))
        if asked is None or asked[1] == asked[2] is None:
            headers["content-length"] = str(total)
            body = self._pieces(id, side, 0, total) if request.method == "GET" else ()
            return StreamingResponse(body, 200, headers, "audio/wav")
        if asked[1] is None:  # the last so many bytes
            start, stop = max(0, total - int(asked[2])), total
        else:
            start = int(asked[1])
            stop = min(total, int(asked[2]) + 1) if asked[2] is not None else min(total, start + PIECE)
        if start >= stop:
            return Response(status_code=416, headers={"content-range": f"bytes */{total}"})
        headers["content-range"] = f"bytes {start}-{stop - 1}/{total}"
        headers["content-length"] = str(stop - start)
        return StreamingResponse(self._pieces(id, side, start, stop), 206, headers, "audio/wav")

    async def _pieces(self, id: str, side: str, start: int, stop: int) -> AsyncIterator[bytes]:
        for at in range(start, stop, PIECE):
            yield await self._reader.ask(_piece, id, side, at, min(stop, at + PIECE))


def _peaks(connection: Connection, id: str, side: str, bins: int) -> dict[str, Any]:
    return recordings.peaks(connection, find(connection, id).row, side, bins)


def _size(connection: Connection, id: str, side: str) -> int:
    row = find(connection, id).row
    if not recordings.wav_size(connection, row, side):
        raise NotFound(
            f"nothing was recorded of call {id[:60]!r}", mend="serve the chain with --record to hear its calls"
        )
    return recordings.wav(connection, row, side, 0, 0).total


def _piece(connection: Connection, id: str, side: str, start: int, stop: int) -> bytes:
    """Bytes of a recording that was removed meanwhile, or grew, keep the length that was promised."""
    found = recordings.wav(connection, find(connection, id).row, side, start, stop).data
    return found.ljust(stop - start, b"\0")
