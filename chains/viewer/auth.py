"""Who may look: a key where one is set, else only by this machine's own names; and no page of another site may post."""

from __future__ import annotations

import hashlib
import hmac
import html
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chains.errors import ChainsError, Unauthenticated
from chains.sockets import is_loopback
from chains.viewer.answers import error_response
from chains.viewer.settings import ViewerSettings

POLICY = (
    "default-src 'self'; img-src 'self' data:; media-src 'self' blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
FORM_BYTES = 8_192


class Guard:
    """ASGI middleware in front of everything, also of what takes spans in."""

    def __init__(self, app: ASGIApp, settings: ViewerSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        response = await self._refusal(scope, receive)
        await (self._app if response is None else response)(scope, receive, hardened)

    async def _refusal(self, scope: Scope, receive: Receive) -> Response | None:
        """What is answered instead of what was asked for; None: it may pass."""
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            self._check_origin(scope["method"], headers)
        except Unauthenticated as error:
            return error_response(error, status=403)
        if not self._settings.keys or scope["path"] == "/healthz":
            return None
        if scope["path"] == "/key" and scope["method"] == "POST":
            return await self._entered(scope, receive)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        shown = dict(query).get("key")
        if shown is not None and self._known(shown):
            rest = urlencode([(name, value) for name, value in query if name != "key"])
            return self._welcome(scope, shown, scope["path"] + ("?" + rest if rest else ""))
        if self._admitted(scope, headers):
            return None
        if scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
            return _form(scope["path"], wrong=shown is not None)
        return error_response(_wanted(shown is not None or "authorization" in headers))

    def _check_host(self, headers: Headers) -> None:
        """Without a key, whoever reaches the port may read: so a name that somebody else points here must not."""
        name = _hostname("//" + headers.get("host", ""))
        if self._settings.loopback and not self._settings.keys and not is_loopback(name):
            raise Unauthenticated(
                f"this page answers to the names of this machine alone, not to {name[:100]!r}",
                mend="open http://127.0.0.1:PORT, or give the viewer a key (--key) to reach it by another name",
            )

    def _check_origin(self, method: str, headers: Headers) -> None:
        origin = headers.get("origin")
        if method in ("GET", "HEAD") or origin is None:
            return
        if _netloc(origin) != headers.get("host", "").lower():
            raise Unauthenticated("pages of other sites may not post here", mend="send it from a program or this page")

    def _admitted(self, scope: Scope, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._known(token.strip()):
            return True
        shown = Request(scope).cookies.get(_cookie(scope), "")
        return _one_of(shown, [_ticket(key) for key in self._settings.keys])

    def _known(self, shown: str) -> bool:
        return _one_of(shown, self._settings.keys)

    async def _entered(self, scope: Scope, receive: Receive) -> Response:
        """The form was sent: a cookie and the way to where the reader was going, or the form again."""
        body = b""
        async for piece in Request(scope, receive).stream():
            body += piece
            if len(body) > FORM_BYTES:
                return _form("/", wrong=True)
        fields = dict(parse_qsl(body.decode("latin-1")))
        way = fields.get("next", "/")
        way = way if way.startswith("/") and not way.startswith(("//", "/\\")) else "/"
        if not self._known(fields.get("key", "")):
            return _form(way, wrong=True)
        return self._welcome(scope, fields["key"], way)

    def _welcome(self, scope: Scope, key: str, way: str) -> Response:
        """A cookie that proves the key without holding it. Lax: a link that a colleague sent must open, too."""
        response = RedirectResponse("/" + way.lstrip("/\\"), 303)
        secure = scope.get("scheme") == "https"
        response.set_cookie(
            _cookie(scope), _ticket(key), max_age=30 * 86_400, httponly=True, samesite="lax", secure=secure
        )
        return response


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # brackets that are no address
        return ""


def _netloc(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


def _one_of(shown: str, known: Sequence[str]) -> bool:
    """All are compared, so that the time says nothing about which one came close."""
    matches = [hmac.compare_digest(shown.encode(), each.encode()) for each in known]
    return any(matches)


def _cookie(scope: Scope) -> str:
    """Cookies know no ports: two viewers of one machine must not overwrite each other's."""
    server = scope.get("server") or ("", 0)
    return f"chains_key_{server[1] or 0}"


def _ticket(key: str) -> str:
    return hmac.new(key.encode(), b"chains viewer", hashlib.sha256).hexdigest()


def _wanted(wrong: bool) -> ChainsError:
    if wrong:
        return Unauthenticated("the key is not one of this viewer's", mend="ask whoever runs it for a key")
    return Unauthenticated(
        "this viewer wants a key",
        mend='send the header "Authorization: Bearer KEY", or open the page once with ?key=KEY',
    )


def _form(way: str, wrong: bool) -> Response:
    line = "<p>That is not one of this viewer's keys.</p>" if wrong else ""
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Chains: key</title><h1>This page wants a key</h1>{line}"
        "<form method=post action=/key><label>Key <input type=password name=key autofocus required></label> "
        f'<input type=hidden name=next value="{html.escape(way)}"><button>Open</button></form>'
    )
    return HTMLResponse(page, 401)
