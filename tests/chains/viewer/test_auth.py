"""Who may look, and from where."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.chains.records import made
from tests.chains.viewer.served import error, serving

KEY = "a-key-of-the-house"
HTML = {"accept": "text/html,*/*"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made.stored(tmp_path / "t.sqlite", made.phone_call("call-0", 1))
    return tmp_path / "t.sqlite"


async def test_a_key_opens_by_header(path: Path) -> None:
    async with serving(path, keys=(KEY, "another")) as client:
        for url in ("/api/calls", "/api/live", "/ui/main.js", "/calls/call-0.json"):
            assert "this viewer wants a key" in await error(client, url, 401)
        for wrong in ("nonsense", KEY[:-1], KEY + "x", "x", "ключ"):
            answer = await client.get("/api/calls", headers={"authorization": f"Bearer {wrong}".encode()})
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        for right in (KEY, "another"):
            assert (await client.get("/api/calls", headers={"authorization": f"bearer {right}"})).status_code == 200
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/api/info", headers={"authorization": f"Bearer {KEY}"})).json()["keyed"] is True


async def test_a_link_with_the_key_sets_a_cookie_that_does_not_hold_it(path: Path) -> None:
    async with serving(path, keys=(KEY,)) as client:
        answer = await client.get(f"/calls/call-0?turn=1&key={KEY}&view=path")
        assert answer.status_code == 303 and answer.headers["location"] == "/calls/call-0?turn=1&view=path"
        cookie = answer.headers["set-cookie"]
        assert KEY not in cookie and "HttpOnly" in cookie and "SameSite=lax" in cookie
        assert (await client.get("/api/calls")).status_code == 200
        client.cookies.clear()
        assert (await client.get("/api/calls")).status_code == 401
        assert (await client.get("/?key=wrong", headers=HTML)).status_code == 401


async def test_a_redirect_never_leaves_this_site(path: Path) -> None:
    async with serving(path, keys=(KEY,)) as client:
        for way in ("//evil.example/", "/\\evil.example", "//evil.example/%2e%2e"):
            answer = await client.get(f"{way}?key={KEY}")
            where = answer.headers.get("location", "/")
            assert where.startswith("/") and not where.startswith(("//", "/\\"))
            form = await client.post("/key", data={"key": KEY, "next": way})
            assert form.status_code == 303 and form.headers["location"] == "/"


async def test_a_browser_without_a_key_is_asked_for_it(path: Path) -> None:
    async with serving(path, keys=(KEY,)) as client:
        page = await client.get('/calls/"><script>alert(1)</script>', headers=HTML)
        assert page.status_code == 401 and "wants a key" in page.text and "<script>" not in page.text
        wrong = await client.post("/key", data={"key": "guess", "next": "/chain"})
        assert wrong.status_code == 401 and "not one of this viewer's keys" in wrong.text
        right = await client.post("/key", data={"key": KEY, "next": "/chain"})
        assert right.status_code == 303 and right.headers["location"] == "/chain"
        assert (await client.get("/api/calls")).status_code == 200
        assert (await client.post("/key", content=b"key=" + b"x" * 20_000)).status_code == 401


async def test_without_a_key_only_this_machines_names_are_answered(path: Path) -> None:
    """A page of evil.example whose name was pointed at 127.0.0.1 sends that name as Host."""
    async with serving(path) as client:
        port = client.base_url.port
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", "localhost", f"[::1]:{port}", "x.localhost"):
            assert (await client.get("/api/calls", headers={"host": host})).status_code == 200
        for host in (
            f"evil.example:{port}",
            "127.0.0.1.evil.example",
            "10.0.0.7",
            "localhost.evil.example",
            "[bad",
            "",
        ):
            assert "names of this machine alone" in await error(client, "/api/calls", 403, headers={"host": host})
    async with serving(path, keys=(KEY,)) as client:  # behind a proxy, under its name
        headers = {"host": "traces.example", "authorization": f"Bearer {KEY}"}
        assert (await client.get("/api/calls", headers=headers)).status_code == 200


async def test_pages_of_other_sites_may_not_post(path: Path) -> None:
    body = made.request(made.phone_call("posted", 1)).SerializeToString()
    async with serving(path) as client:
        port = client.base_url.port

        async def post(**headers: str) -> httpx.Response:
            sent = {"content-type": "application/x-protobuf", **headers}
            return await client.post("/v1/traces", content=body, headers=sent)

        for origin in ("https://evil.example", "null", f"http://127.0.0.1:{port}.evil.example", "http://localhost:1"):
            answer = await post(origin=origin)
            assert answer.status_code == 403 and "pages of other sites may not post" in answer.text
        assert (await post(origin=f"http://127.0.0.1:{port}")).status_code == 200
        assert (await post()).status_code == 200


async def test_nothing_may_be_posted_without_the_key(path: Path) -> None:
    async with serving(path, keys=(KEY,)) as client:
        for url in ("/v1/traces", "/v1/recordings"):
            assert (await client.post(url, content=b"x")).status_code == 401


async def test_answers_carry_what_keeps_a_browser_safe(path: Path) -> None:
    async with serving(path) as client:
        for url in ("/", "/api/calls", "/nothing", "/api/calls/nobody"):
            headers = (await client.get(url)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
            assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert "access-control-allow-origin" not in headers and "server" not in headers
