"""The pages around the calls: the chain described, its health, the list of methods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx

from chains.serve import Server

Serve = Callable[..., Awaitable[Server]]


async def get(server: Server, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.url) as client:
        return await client.get(path, headers=headers)


async def test_the_chain_is_described_for_machines(serve: Serve) -> None:
    chain = (await get(await serve(), "/v1/chain")).json()
    assert chain["entry"] == "Parlour"
    assert "Parlour" in chain["graph"]["nodes"]
    shout = chain["methods"]["shout"]
    assert shout["params"]["text"]["schema"] == {"type": "string"}
    assert (shout["params"]["text"]["required"], shout["params"]["times"]["required"]) == (True, False)
    assert chain["methods"]["run"]["params"]["audio"]["stream"]


async def test_health_says_ok_and_while_stopping_why_not(serve: Serve) -> None:
    server = await serve()
    healthy = await get(server, "/healthz")
    assert healthy.status_code == 200 and healthy.json()["ok"]
    server.gateway.draining = True
    stopping = await get(server, "/healthz")
    assert (stopping.status_code, stopping.json()["why"]) == (503, "the server is shutting down")


async def test_health_fails_when_a_replica_has_gone(serve: Serve) -> None:
    server = await serve()
    await server.runtime.kill("Parlour", 0)
    answer = await get(server, "/healthz")
    assert answer.status_code == 503
    assert "Parlour" in answer.json()["why"]


async def test_the_page_lists_each_method_with_a_line_to_try(serve: Serve) -> None:
    server = await serve()
    page = (await get(server, "/")).text
    for name in server.gateway.methods:
        assert f"<h2>{name}</h2>" in page
    assert f"curl {server.url}/v1/call/shout" in page
    assert "chains dial ws://" in page
    assert "&#x27;{&quot;text&quot;: &quot;hello&quot;}&#x27;" in page


async def test_other_paths_and_verbs_say_what_there_is(serve: Serve) -> None:
    server = await serve()
    missing = await get(server, "/v2/call")
    assert missing.status_code == 404 and "/v1/chain" in missing.json()["error"]["mend"]
    wrong = await get(server, "/v1/call/shout")
    assert wrong.status_code == 405 and "POST" in wrong.json()["error"]["mend"]


async def test_the_description_wants_the_key_and_health_does_not(serve: Serve) -> None:
    server = await serve(keys=("sesame",))
    assert (await get(server, "/v1/chain")).status_code == 401
    assert (await get(server, "/")).status_code == 401
    assert (await get(server, "/v1/chain", authorization="Bearer sesame")).status_code == 200
    assert (await get(server, "/healthz")).status_code == 200
