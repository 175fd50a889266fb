"""Where a gateway is, and what may be wrong on the way to it: each failure as an error of ours."""

from __future__ import annotations

import logging
from urllib.parse import urlsplit

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException

from chains import protocol
from chains.errors import NotFound, SettingError, Unauthenticated, Unavailable

CALL_PATH = "/v1/call"
# At DEBUG the websocket library writes down every frame, and with it what is said.
_quiet = logging.getLogger("chains.client.websocket")
_quiet.setLevel(logging.WARNING)


def address(url: str) -> tuple[str, str]:
    """(http base, default method) of a URL. Raises SettingError for one that is none."""
    parts = urlsplit(url if "://" in url else f"ws://{url}")
    try:
        parts.port  # noqa: B018 - reading it is what checks it
    except ValueError:
        raise SettingError(f"the port in {url!r} is none", mend="write 1 to 65535, e.g. ws://127.0.0.1:8000") from None
    scheme = {"ws": "http", "wss": "https", "http": "http", "https": "https"}.get(parts.scheme)
    if scheme is None or not parts.netloc or not parts.hostname:
        raise bad_url(url)
    prefix, found, method = parts.path.partition(CALL_PATH)
    return f"{scheme}://{parts.netloc}{prefix.rstrip('/')}", method.strip("/") if found else ""


def bearer(key: str) -> dict[str, str]:
    """The header that shows `key`. Raises SettingError for one that no header can carry."""
    if not key:
        return {}
    if not key.isascii() or not key.isprintable():
        raise SettingError(
            "the key is not of printable ASCII characters", mend="copy it again, without quotes or spaces"
        )
    return {"authorization": f"Bearer {key}"}


def bad_url(url: str) -> SettingError:
    return SettingError(f"{url!r} is no address of a gateway", mend="write ws://127.0.0.1:8000 or https://host")


async def dial(base: str, path: str, headers: dict[str, str], timeout: float) -> ClientConnection:
    """An open websocket. Raises Unavailable, Unauthenticated, NotFound or SettingError."""
    uri = base.replace("http", "ws", 1) + path
    try:
        return await open_websocket(
            uri,
            additional_headers=headers,
            max_size=None,
            compression=None,
            open_timeout=timeout,
            close_timeout=2,
            logger=_quiet,
        )
    except InvalidURI:
        raise bad_url(uri) from None
    except InvalidStatus as error:
        raise refused(error.response.status_code, bytes(error.response.body or b""), base) from None
    except (OSError, TimeoutError, WebSocketException) as error:
        raise unreachable(base, error) from None


def unreachable(base: str, error: Exception) -> Unavailable:
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return Unavailable(f"{base} does not answer in time", mend="is the machine up? Raise timeout= if it is slow")
    return Unavailable(f"nothing answers at {base}", mend="start it with `chains run FILE`, or check host and port")


def refused(status: int, body: bytes, base: str) -> BaseException:
    try:
        error = protocol.error_from(msgspec.json.decode(body)["error"])
        if status != 404 or not urlsplit(base).path or "there is nothing at" not in str(error):
            return error
    except (msgspec.DecodeError, KeyError, TypeError):
        pass
    if status in (401, 403):
        return Unauthenticated(f"{base} refused with HTTP {status}", mend="give key=, and list the page's origin")
    if status == 404:
        return NotFound(f"there is no gateway at {base} (HTTP 404)", mend="leave the path out of the URL")
    return Unavailable(f"{base} answered HTTP {status}", mend="is this a Chains gateway, and is it up?")


def broke_off(closed: ConnectionClosed) -> Unavailable:
    reason = f" ({closed.rcvd.code} {closed.rcvd.reason})".replace(" )", ")") if closed.rcvd else ""
    return Unavailable(f"the connection broke off{reason}", mend="call again")
