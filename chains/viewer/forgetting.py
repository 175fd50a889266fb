"""Somebody's wish to be forgotten: DELETE /api/calls/ID takes a call out of the store."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from chains.errors import InvalidValue, NotFound
from chains.records.recordings import forget
from chains.records.store import Store
from chains.viewer.answers import error_response


def routes(traces: Path) -> list[BaseRoute]:
    """DELETE /api/calls/ID: the call with all that was kept of it; with ?recording=1 what was said alone. 204."""

    async def delete(request: Request) -> Response:
        what = request.query_params.get("recording", "0")
        if what not in ("0", "1"):
            return error_response(InvalidValue(f"recording is {what[:40]!r}", mend="write 1, or leave it out"))
        found = await asyncio.to_thread(_forget, traces, request.path_params["id"], what == "0")
        if not found:
            return error_response(NotFound("there is no such call here", mend="give the whole id of a call"))
        return Response(status_code=204)

    return [Route("/api/calls/{id}", delete, methods=["DELETE"])]


def _forget(traces: Path, id: str, everything: bool) -> bool:
    with Store.open(traces) as store:
        row = store.connection.execute("SELECT id FROM calls WHERE call = ?", (id,)).fetchone()
        if row is not None:
            forget(store.connection, row[0], all=everything)
        return row is not None
