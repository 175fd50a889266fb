"""The viewer as one ASGI app: the API over the store, what happens live, the page and its exports."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from chains.errors import ChainsError, InvalidValue, NotFound, ProtocolError, Unavailable
from chains.records import call, calls, chain, compare, overview, span, why
from chains.records.figures import Wanted
from chains.viewer import export, ui_files
from chains.viewer.answers import encode, encoded_response, error_response, takes_gzip
from chains.viewer.auth import Guard
from chains.viewer.live import Feed, Untold
from chains.viewer.parameters import FILTER, Parameters
from chains.viewer.reading import Connection, Reader
from chains.viewer.settings import ViewerSettings
from chains.viewer.sound import Sound

P = ParamSpec("P")
PATHS = "/, /calls/ID, /chain, /compare, and /api/{info,calls,strip,chain,compare,live}"
DRAWN = 1_000  # spans of a call up to which all bars' insides are sent along; of larger ones the page asks for some
PAGES = ("/", "/calls", "/calls/{id}", "/chain", "/compare", "/info")


def create_app(
    traces: Path, settings: ViewerSettings, *, routes: Sequence[BaseRoute] = (), untold: Untold = dict
) -> Starlette:
    """The app over the store at `traces`, which must be there. `routes` are what takes spans and recordings in; they
    stand behind the same guard. `untold` gives the drops that are not in the store. Raises SettingError.
    """
    reader = Reader(traces)
    feed = Feed(reader, untold)
    api = Api(reader, settings, untold)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await feed.close()
        reader.close()

    async def live(request: Request) -> Response:
        Parameters(request.query_params, ())
        return StreamingResponse(
            await feed.events(), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
        )

    app = Starlette(
        routes=[
            Route("/healthz", _health),
            Route("/api/live", live),
            *api.routes(),
            *Sound(reader).routes(),
            *routes,
            Route("/ui/{name}", _file),
            *(Route(path, _page) for path in PAGES),
        ],
        middleware=[Middleware(Guard, settings=settings)],
        exception_handlers={ChainsError: _failed, HTTPException: _no_route, Exception: _broken},
        lifespan=lifespan,
    )
    app.state.feed = feed
    return app


class Api:
    """The questions that the page asks, each answered from the store in a thread."""

    def __init__(self, reader: Reader, settings: ViewerSettings, untold: Untold) -> None:
        self._reader = reader
        self._untold = untold
        self._settings = settings

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/api/info", self.info),
            Route("/api/calls", self.calls),
            Route("/api/strip", self.strip),
            Route("/api/calls/{id}", self.call),
            Route("/api/calls/{id}/segments", self.segments),
            Route("/api/calls/{id}/findings", self.findings),
            Route("/api/calls/{id}/spans/{span}", self.span),
            Route("/api/chain", self.chain),
            Route("/api/compare", self.compare),
            Route("/calls/{id}.json", self.as_json),
            Route("/calls/{id}.html", self.as_html),
        ]

    async def info(self, request: Request) -> Response:
        Parameters(request.query_params, ())
        return await self._answer(request, self._info)

    def _info(self, connection: Connection) -> dict[str, Any]:
        found = overview.with_untold(overview.info(connection), self._untold())
        return {"version": _version(), "keyed": bool(self._settings.keys), **found}

    async def calls(self, request: Request) -> Response:
        given = Parameters(request.query_params, (*FILTER, "sort", "limit", "cursor"))
        wanted = given.filter(_now())
        return await self._answer(
            request,
            calls.page,
            wanted,
            sort=given.one_of("sort", calls.SORTS, "started"),
            limit=given.whole("limit", 200),
            cursor=given.text("cursor"),
        )

    async def strip(self, request: Request) -> Response:
        given = Parameters(request.query_params, (*FILTER, "bins"))
        return await self._answer(request, calls.strip, given.filter(_now()), given.whole("bins", 96))

    async def call(self, request: Request) -> Response:
        given = Parameters(request.query_params, ("after",))
        return await self._answer(request, call.detail, request.path_params["id"], given.whole("after", 0), DRAWN)

    async def segments(self, request: Request) -> Response:
        rows = _whole_numbers(Parameters(request.query_params, ("rows",)).text("rows"))
        return await self._answer(request, _segments, request.path_params["id"], rows)

    async def span(self, request: Request) -> Response:
        Parameters(request.query_params, ())
        return await self._answer(request, span.span, request.path_params["id"], request.path_params["span"])

    async def findings(self, request: Request) -> Response:
        Parameters(request.query_params, ())
        return await self._answer(request, why.findings, request.path_params["id"])

    async def chain(self, request: Request) -> Response:
        given = Parameters(request.query_params, ("chain", "app", "version", "from", "to"))
        if not given.text("chain"):
            raise InvalidValue("no chain is named", mend="add chain=NAME; /api/info lists them")
        wanted = Wanted(given.text("chain"), given.text("app"), given.text("version"), given.range(_now()))
        return await self._answer(request, chain.summary, wanted)

    async def compare(self, request: Request) -> Response:
        given = Parameters(request.query_params, ("a", "b"))
        return await self._answer(request, compare.compare, given.text("a"), given.text("b"), _now())

    async def as_json(self, request: Request) -> Response:
        Parameters(request.query_params, ())
        response = await self._answer(request, export.document, request.path_params["id"])
        response.headers.update(export.headers(request.path_params["id"], "json"))
        return response

    async def as_html(self, request: Request) -> Response:
        Parameters(request.query_params, ())
        page = await self._reader.ask(export.page, request.path_params["id"])
        return Response(page, 200, export.headers(request.path_params["id"], "html"), "text/html; charset=utf-8")

    async def _answer(
        self, request: Request, fn: Callable[Concatenate[Connection, P], Any], *args: P.args, **kwargs: P.kwargs
    ) -> Response:
        compress = takes_gzip(request)
        body, compressed = await self._reader.ask(lambda connection: encode(fn(connection, *args, **kwargs), compress))
        return encoded_response(body, compressed)


def _segments(connection: Connection, id: str, rows: Sequence[int]) -> dict[str, Any]:
    return {"rows": span.segments_of(connection, id, rows)}


def _whole_numbers(text: str) -> list[int]:
    words = [word for word in text.split(",") if word]
    if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
        raise InvalidValue("rows are no list of numbers", mend="write rows=1,2,3")
    return [int(word) for word in words]


def _now() -> float:
    return time.time_ns() / 1e6


def _version() -> str:
    try:
        return version("chains-serve")
    except PackageNotFoundError:
        return "unknown"


async def _health(request: Request) -> Response:
    return JSONResponse({"ok": True})


async def _file(request: Request) -> Response:
    return ui_files.respond(request, request.path_params["name"])


async def _page(request: Request) -> Response:
    return ui_files.respond(request, "index.html")


async def _failed(request: Request, error: Exception) -> Response:
    """A wrong parameter is the request's fault as a whole (400), not that of a body that was understood (422)."""
    return error_response(error, status=400 if isinstance(error, InvalidValue) else None)


async def _broken(request: Request, error: Exception) -> Response:
    """A fault of ours; its trace is in the log."""
    return error_response(Unavailable("the viewer failed over this request", mend="its log says why"), status=500)


async def _no_route(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 405:
        allowed = (getattr(error, "headers", None) or {}).get("Allow", "GET")
        wrong: ChainsError = ProtocolError(f"{request.method} is not for {request.url.path}", mend=f"use {allowed}")
    else:
        wrong = NotFound(f"there is nothing at {request.url.path}", mend=f"the paths are {PATHS}")
    return error_response(wrong, status)
