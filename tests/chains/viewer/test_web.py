"""The API over a real socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from chains.records.store import Store
from tests.chains.records import made
from tests.chains.viewer.served import error, serving

WORDS = "the patient is called Ada Lovelace"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.sqlite"


async def test_a_reader_finds_a_call_and_what_made_it_slow(path: Path) -> None:
    spans = list(made.calls(12, slow="LLM-1"))
    async with serving(path, spans) as client:
        info = (await client.get("/api/info")).json()
        assert info["calls"] == 12 and info["spans"] == len(spans) and info["keyed"] is False and info["version"]
        assert info["chains"][0]["chain"] == "PhoneCall"
        page = (await client.get("/api/calls", params={"sort": "slowest", "limit": 3})).json()
        assert len(page["rows"]) == 3 and page["total"] == 12 and page["next"]
        id = page["rows"][0][page["columns"].index("id")]
        body = (await client.get(f"/api/calls/{id}")).json()
        assert body["call"]["id"] == id and body["checks"]["worst_hop_ms"] < 1 and body["checks"]["worst_turn_ms"] < 1
        row = next(row for row in body["spans"] if row[4] == "hop")
        told = (await client.get(f"/api/calls/{id}/spans/{row[1]}")).json()
        assert told["sum_ms"] == pytest.approx(told["ms"], abs=0.01)
        inside = (await client.get(f"/api/calls/{id}/segments", params={"rows": f"{row[0]}"})).json()
        assert list(inside["rows"]) == [str(row[0])]
        assert (await client.get(f"/api/calls/{id}/findings")).json()["findings"][0]["replica"] == "LLM-1"
        chain = (await client.get("/api/chain", params={"chain": "PhoneCall"})).json()
        assert chain["findings"][0]["replica"] == "LLM-1" and ["PhoneCall", "LLM"] in chain["graph"]["edges"]
        both = (await client.get("/api/compare", params={"a": "call:call-1", "b": f"call:{id}"})).json()
        assert {hop["hop"] for hop in both["hops"]} >= {"LLM.stream", "PhoneCall.run"}
        strip = (await client.get("/api/strip", params={"bins": 4})).json()
        assert sum(bin[1] for bin in strip["bins"]) == 12


async def test_what_is_posted_can_be_read(path: Path) -> None:
    async with serving(path) as client:
        body = made.request(made.phone_call("posted")).SerializeToString()
        sent = await client.post("/v1/traces", content=body, headers={"content-type": "application/x-protobuf"})
        assert sent.status_code == 200
        async with asyncio.timeout(10):
            while (await client.get("/api/calls")).json()["total"] == 0:
                pass
        assert (await client.get("/api/calls/posted")).json()["call"]["outcome"] == "done"


@pytest.mark.parametrize(
    ("url", "status", "said"),
    [
        ("/api/calls?stat=live", 400, "there is no parameter 'stat'; there are q, chain"),
        ("/api/calls?state=alive", 400, "choose one of slow, failed"),
        ("/api/calls?state=live&state=slow", 400, "state is given twice"),
        ("/api/calls?limit=many", 400, "limit is 'many'"),
        ("/api/calls?limit=5000", 400, "ask for 1 to 1000"),
        ("/api/calls?turn=1.5", 400, "give a whole number"),
        ("/api/calls?from=noon", 400, "write unix milliseconds"),
        ("/api/calls?cursor=AAAA", 400, "take `next`"),
        ("/api/calls?sort=id", 400, "choose one of started, slowest"),
        ("/api/strip?bins=0", 400, "ask for 1 to 1000"),
        ("/api/calls/nobody", 404, "there is no call 'nobody'"),
        ("/api/calls/call-0?afer=1", 400, "there is no parameter 'afer'; there are after"),
        ("/api/calls/call-0?after=-1", 400, "give a number from 0 on"),
        ("/api/calls/call-0/spans/0000000000000000", 404, "has no span"),
        ("/api/calls/call-0/segments?rows=1,x", 400, "write rows=1,2,3"),
        ("/api/calls/call-0/audio.wav", 404, "nothing was recorded"),
        ("/api/calls/call-0/audio.wav?side=left", 400, "choose one of both, caller, reply"),
        ("/api/chain", 400, "add chain=NAME"),
        ("/api/compare?a=call:call-0", 400, "write call:ID, version:V or range"),
        ("/api/nothing", 404, "the paths are /, /calls/ID"),
        ("/calls/nobody.html", 404, "there is no call 'nobody'"),
        ("/ui/nothing.js", 404, "the page has no file"),
    ],
)
async def test_what_cannot_be_answered_is_refused_with_the_mend(path: Path, url: str, status: int, said: str) -> None:
    async with serving(path, made.phone_call("call-0", 1)) as client:
        assert said in await error(client, url, status)


async def test_other_methods_are_refused(path: Path) -> None:
    async with serving(path, made.phone_call("call-0", 1)) as client:
        for url in ("/api/calls", "/api/chain", "/", "/ui/main.js"):
            answer = await client.delete(url)
            assert answer.status_code == 405 and "GET" in answer.json()["error"]["mend"]
        assert "POST" in await error(client, "/v1/traces", 405)


async def test_a_call_that_grows_is_read_by_what_is_new(path: Path) -> None:
    spans = made.phone_call("call-0", 2)
    async with serving(path, spans[:10]) as client:
        first = (await client.get("/api/calls/call-0")).json()
        assert first["call"]["live"] and len(first["spans"]) == 10
        await asyncio.to_thread(made.stored, path, spans[10:])
        second = (await client.get("/api/calls/call-0", params={"after": first["last"]})).json()
        assert len(second["spans"]) == len(spans) - 10 and not second["call"]["live"]


async def test_large_answers_are_compressed_for_those_who_can_read_that(path: Path) -> None:
    async with serving(path, made.phone_call("call-0", 8)) as client:
        packed = await client.get("/api/calls/call-0")
        plain = await client.get("/api/calls/call-0", headers={"accept-encoding": "identity"})
        assert packed.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
        assert packed.json() == plain.json()
        assert int(packed.headers["content-length"]) * 3 < int(plain.headers["content-length"])
        assert packed.headers["cache-control"] == "no-store" and packed.headers["vary"] == "accept-encoding"


async def test_the_page_answers_on_every_address_that_may_be_shared(path: Path) -> None:
    async with serving(path, made.phone_call("call-0", 1)) as client:
        for url in ("/", "/calls/call-0", "/chain?chain=PhoneCall", "/compare?a=x&b=y", "/info"):
            answer = await client.get(url)
            assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
        assert (await client.get("/healthz")).json() == {"ok": True}


async def test_nothing_that_was_said_is_in_any_answer_unless_it_was_recorded(path: Path) -> None:
    """Instrumentation of others puts prompts and replies into attributes and events."""
    spans = made.phone_call("call-0", 1)
    hop = next(span for span in spans if span.name == "LLM.stream")
    for key in (
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.prompt",
        "llm.prompts.0.content",
        "input.value",
    ):
        hop.attributes[key] = WORDS
    async with serving(path, spans) as client:
        body = (await client.get("/api/calls/call-0")).json()
        urls = [f"/api/calls/call-0/spans/{row[1]}" for row in body["spans"]]
        urls += ["/api/info", "/api/calls", "/api/calls/call-0", "/api/chain?chain=PhoneCall", "/calls/call-0.json"]
        urls += ["/calls/call-0.html", "/api/calls/call-0/findings", "/api/compare?a=call:call-0&b=call:call-0"]
        for url in urls:
            answer = await client.get(url)
            assert answer.status_code == 200 and "Lovelace" not in answer.text, url
        assert (await client.get("/api/calls", params={"q": "Lovelace"})).json()["total"] == 0


async def test_a_fault_of_the_viewer_is_an_error_like_others(path: Path) -> None:
    await asyncio.to_thread(made.stored, path, made.phone_call("call-0", 1))
    with Store.open(path) as store:
        store.connection.execute("UPDATE turns SET path = x'01'")
    async with serving(path) as client:
        assert "the viewer failed over this request; its log says why" in await error(client, "/api/calls/call-0", 500)
        assert (await client.get("/api/calls")).json()["total"] == 1


async def test_many_readers_and_a_writer_do_not_wait_for_each_other(path: Path) -> None:
    async with serving(path, list(made.calls(5))) as client:

        async def read() -> int:
            answers = await asyncio.gather(*(client.get(f"/api/calls/call-{n % 5}") for n in range(40)))
            return sum(answer.status_code == 200 for answer in answers)

        async def write() -> list[httpx.Response]:
            bodies = [made.request(made.phone_call(f"new-{n}", 1)).SerializeToString() for n in range(20)]
            kind = {"content-type": "application/x-protobuf"}
            return [await client.post("/v1/traces", content=body, headers=kind) for body in bodies]

        read_ok, written = await asyncio.gather(read(), write())
        assert read_ok == 40 and all(answer.status_code == 200 for answer in written)
