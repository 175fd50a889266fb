"""Where `chains trace` reads: a store that lies here, or the viewer at a URL. Both answer alike, as the page's API."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx

from chains.cli.view import traces
from chains.errors import ChainsError, InvalidValue, NotFound, SettingError, Unauthenticated, Unavailable

LOCAL = "http://127.0.0.1"
PATIENCE_S = 30.0
LOOKED = 50


class Traces:
    """The API of a viewer."""

    def __init__(self, client: httpx.AsyncClient, where: str) -> None:
        self._client = client
        self.where = where

    async def get(self, path: str, **parameters: Any) -> Any:
        """What is answered there, from JSON; parameters that are None or "" are left out. Raises ChainsError."""
        return (await self._answer("GET", path, parameters)).json()

    async def text(self, path: str) -> str:
        return (await self._answer("GET", path, {})).text

    async def delete(self, id: str, *, recording: bool) -> None:
        """Take the call out of the store, or what was recorded of it alone."""
        await self._answer("DELETE", f"/api/calls/{quoted(id)}", {"recording": int(recording)})

    async def _answer(self, method: str, path: str, parameters: Mapping[str, Any]) -> httpx.Response:
        given = {name: value for name, value in parameters.items() if value not in (None, "")}
        try:
            response = await self._client.request(method, path, params=given)
        except httpx.InvalidURL:
            raise SettingError(f"--url {self.where} is no URL", mend="write e.g. http://127.0.0.1:8001") from None
        except httpx.HTTPError as error:
            raise Unavailable(
                f"no viewer answers at {self.where}: {str(error) or type(error).__name__}",
                mend="look at --url, or leave it out to read the store of this machine",
            ) from None
        if response.status_code >= 400:
            raise _told(response)
        return response

    async def find(self, wanted: str) -> str:
        """The id of a call: an id, what one begins with, or `last` and `slowest`, which are no work that another call
        left to be done after its end. Raises NotFound and SettingError.
        """
        if not wanted:
            raise SettingError("no call is named", mend="give its id, what it begins with, last or slowest")
        if wanted not in ("last", "slowest"):
            return wanted
        sort = "started" if wanted == "last" else "slowest"
        found = await self.get("/api/calls", sort=sort, limit=LOOKED)
        if not found["rows"]:
            raise NotFound(f"there is no call in {self.where}", mend="make one: chains run FILE, then call it")
        ids = [str(row[found["columns"].index("id")]) for row in found["rows"]]
        return next((id for id in ids if "-after-" not in id), ids[0])

    async def call(self, wanted: str) -> dict[str, Any]:
        """/api/calls/ID of the call that is meant."""
        answer: dict[str, Any] = await self.get(f"/api/calls/{quoted(await self.find(wanted))}")
        return answer


def quoted(id: str) -> str:
    from urllib.parse import quote

    return quote(id, safe="")


def _told(response: httpx.Response) -> ChainsError:
    """What the viewer says is wrong, as an error of ours."""
    kinds: dict[int, type[ChainsError]] = {400: InvalidValue, 401: Unauthenticated, 403: Unauthenticated, 404: NotFound}
    kind = kinds.get(response.status_code, Unavailable)
    try:
        error = response.json()["error"]
        return kind(str(error["message"]), mend=str(error.get("mend", "")))
    except (ValueError, KeyError, TypeError):
        return Unavailable(f"{response.url.host} answers {response.status_code}", mend="is that a viewer of chains?")


@asynccontextmanager
async def opened(arguments: argparse.Namespace) -> AsyncIterator[Traces]:
    """The store that is meant (--traces, or the user's), or the viewer at --url. Raises NotFound, SettingError."""
    async with AsyncExitStack() as stack:
        if arguments.url:
            headers = {"authorization": f"Bearer {arguments.key}"} if arguments.key else {}
            client = httpx.AsyncClient(base_url=arguments.url, headers=headers, timeout=PATIENCE_S)
            yield Traces(await stack.enter_async_context(client), arguments.url)
            return
        path = traces(arguments.traces)
        if not path.is_file():
            raise NotFound(
                f"no call has been kept in {path}", mend="run a chain (chains run FILE) and call it, or give --traces"
            )
        from chains.viewer import forgetting
        from chains.viewer.settings import ViewerSettings
        from chains.viewer.web import create_app

        app = create_app(path, ViewerSettings(traces=path), routes=forgetting.routes(path))
        await stack.enter_async_context(app.router.lifespan_context(app))
        transport = httpx.ASGITransport(app)
        client = httpx.AsyncClient(base_url=LOCAL, transport=transport, timeout=PATIENCE_S)
        yield Traces(await stack.enter_async_context(client), str(path))
