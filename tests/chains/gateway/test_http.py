"""Calls over HTTP from outside: a real server, a real client."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from chains.gateway.audio import read
from chains.serve import Server

Serve = Callable[..., Awaitable[Server]]


async def post(server: Server, method: str, given: Any = None, **options: Any) -> httpx.Response:
    body = {} if given is None else {"json": given}
    async with httpx.AsyncClient(base_url=server.url) as client:
        return await client.post(f"/v1/call/{method}", **body, **options)


async def test_json_in_and_out(serve: Serve) -> None:
    server = await serve()
    assert (await post(server, "shout", {"text": "soup", "times": 2})).json() == {"result": "SOUPSOUP"}
    answer = await post(server, "order", {"order": {"dish": "soup"}})
    assert answer.json() == {"result": {"dish": "soup", "count": 1}}
    assert answer.headers["x-call-id"]


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_the_callers_trace_goes_on_and_the_answer_names_the_calls_span(serve: Serve, accept: str) -> None:
    server = await serve()
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"traceparent": f"00-{trace}-{span}-00", "tracestate": "vendor=1", "accept": accept}
    answer = await post(server, "shout", {"text": "soup"}, headers=headers)
    call = server.runtime.recorder.calls[-1].call  # type: ignore[attr-defined]  # in-process, as every server here
    assert (call.trace_id, call.parent_span, call.sampled, call.tracestate) == (trace, span, False, "vendor=1")
    assert answer.headers["x-call-id"] == call.id
    assert answer.headers["traceresponse"] == f"00-{trace}-{call.span:016x}-00"
    await post(server, "shout", {"text": "soup"}, headers={"traceparent": "junk", "tracestate": "vendor=1"})
    call = server.runtime.recorder.calls[-1].call  # type: ignore[attr-defined]
    assert call.trace_id != trace and (call.parent_span, call.sampled, call.tracestate) == ("", True, "")


BAD_INPUT: list[tuple[str, dict[str, Any], int, str, str]] = [
    ("shout", {"json": {}}, 422, "InvalidValue", "misses the argument 'text'"),
    ("shout", {"json": {"text": 5}}, 422, "InvalidValue", "int 5"),
    ("shout", {"json": {"text": "a", "tims": 2}}, 422, "InvalidValue", "tims"),
    ("order", {"json": {"order": {"dish": "a", "cont": 2}}}, 422, "InvalidValue", "cont"),
    ("shout", {"content": b"{junk"}, 400, "ProtocolError", "not JSON"),
    ("shout", {"content": b"[" * 100_000}, 400, "ProtocolError", "not JSON"),
    ("shout", {"content": b'{"text":' + b"[" * 100_000 + b"]" * 100_000 + b"}"}, 400, "ProtocolError", "not JSON"),
    ("shout", {"content": b'{"text":' + b"[" * 800 + b"]" * 800 + b"}"}, 422, "InvalidValue", "text"),
    ("order", {"content": b'{"order":' + b'{"a":' * 800 + b"1" + b"}" * 801}, 422, "InvalidValue", "order"),
    ("shout", {"content": b"[]"}, 400, "ProtocolError", "JSON list"),
    ("shout", {"content": b"x", "headers": {"content-type": "text/xml"}}, 415, "MediaError", "text/xml"),
    ("shuot", {"json": {}}, 404, "NotFound", "shuot"),
    ("run", {"content": b"junk", "headers": {"content-type": "audio/wav"}}, 415, "MediaError", "cannot be read"),
    (
        "shout",
        {"content": b"junk", "headers": {"content-type": "audio/wav"}},
        415,
        "MediaError",
        "no stream of audio",
    ),
    ("fail", {"json": {"how": "value"}}, 500, "ValueError", "no such dish"),
]


async def test_bad_input_is_told_with_a_status(serve: Serve) -> None:
    server = await serve()
    for method, options, status, type_name, says in BAD_INPUT:
        answer = await post(server, method, **options)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (status, type_name), (method, options)
        assert says in error["message"]
        assert error["mend"] or type_name == "ValueError"
        assert "Traceback" not in answer.text and "frames" not in error


async def test_a_body_past_the_limit_is_refused_whether_its_length_is_said_or_not(serve: Serve) -> None:
    server = await serve(max_body=10_000)

    async def pieces() -> Any:
        for _ in range(10):
            yield b"x" * 2000

    for content in (b"x" * 20_000, pieces()):
        answer = await post(server, "shout", content=content)
        assert answer.status_code == 413
        assert "10000" in answer.json()["error"]["message"] and "max_body" in answer.json()["error"]["mend"]


async def test_a_stream_comes_as_json_lines_or_as_events(serve: Serve) -> None:
    server = await serve()
    lines = [json.loads(line) for line in (await post(server, "count", {"to": 2})).text.splitlines()]
    assert [line.get("value") for line in lines] == [0, 1, None]
    assert lines[-1] == {"type": "done"}
    answer = await post(server, "count", {"to": 2}, headers={"accept": "text/event-stream"})
    assert answer.headers["content-type"] == "text/event-stream"
    events = [event.split("\n") for event in answer.text.strip().split("\n\n")]
    assert [event[0] for event in events] == ["event: item", "event: item", "event: done"]
    assert json.loads(events[1][1].removeprefix("data: "))["value"] == 1


async def test_items_come_as_they_are_made(serve: Serve) -> None:
    server = await serve()
    client = httpx.AsyncClient(base_url=server.url)
    async with client, client.stream("POST", "/v1/call/drip", json={}) as answer:
        first = await anext(answer.aiter_lines())
        assert json.loads(first)["value"] == "first"


async def test_an_error_after_the_first_item_is_the_last_event(serve: Serve) -> None:
    lines = (await post(await serve(), "fail_late", {})).text.splitlines()
    assert json.loads(lines[0])["value"] == 1
    assert json.loads(lines[1]) == {
        "type": "error",
        "error": {"type": "ValueError", "message": "no such dish", "mend": ""},
    }


async def test_a_recording_goes_in_and_comes_out_as_wav(serve: Serve, watched: Any) -> None:
    tone = (np.sin(np.arange(44100) / 44100 * 2 * np.pi * 440) * 9000).astype(np.int16)
    body = io.BytesIO()
    soundfile.write(body, np.stack([tone, tone], 1), 44100, format="WAV")
    headers = {"content-type": "audio/wav", "accept": "audio/wav"}
    answer = await post(await serve(), "run", content=body.getvalue(), headers=headers)
    assert answer.headers["content-type"] == "audio/wav"
    got = read(answer.content)
    assert (got.rate, len(got.pcm)) == (16000, 16000)
    assert {len(piece.pcm) for piece in watched.seen} == {320}


async def test_items_of_an_input_stream_come_as_a_list(serve: Serve) -> None:
    lines = (await post(await serve(), "words", {"words": [{"text": "a"}, {"text": "b"}]})).text.splitlines()
    assert [json.loads(line)["value"]["text"] for line in lines[:-1]] == ["A", "B"]


@pytest.mark.parametrize(("method", "accept"), [("nap", "*/*"), ("drip", "*/*"), ("drip", "text/event-stream")])
async def test_a_caller_who_leaves_cancels_within_50_ms(serve: Serve, watched: Any, method: str, accept: str) -> None:
    server = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /v1/call/{method} HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\ncontent-length: 2\r\n\r\n{{}}"
    writer.write(head.encode())
    await watched.event(watched.began, method).wait()
    if method == "drip":
        await reader.readuntil(b"first")
    left = time.perf_counter()
    writer.transport.abort()
    await asyncio.wait_for(watched.event(watched.left, method).wait(), 1)
    assert time.perf_counter() - left < 0.05
    assert watched.call.reason == "hang-up"
    assert await server.gateway.quiet(1)


async def test_a_reader_that_stops_reading_stops_the_producer(serve: Serve, watched: Any) -> None:
    server = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1000)
    writer.write(b"POST /v1/call/flood HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
    await reader.readline()
    made = -1
    while made != watched.made:
        made = watched.made
        await asyncio.sleep(0.1)  # until nothing moves any more
    assert 0 < made * 8000 < 24 << 20
    writer.transport.abort()
    await asyncio.wait_for(watched.event(watched.left, "flood").wait(), 1)


async def test_too_many_connections_are_503(serve: Serve, watched: Any) -> None:
    server = await serve(max_connections=1)
    first = asyncio.create_task(post(server, "nap", {}))
    await watched.event(watched.began, "nap").wait()
    answer = await post(server, "shout", {"text": "a"})
    assert answer.status_code == 503 and answer.headers["retry-after"]
    assert "max_connections" in answer.json()["error"]["mend"]
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_keys_and_origins(serve: Serve) -> None:
    server = await serve(keys=("sesame",))
    answer = await post(server, "shout", {"text": "a"})
    assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    fine = await post(server, "shout", {"text": "a"}, headers={"authorization": "Bearer sesame"})
    assert fine.json() == {"result": "A"}
    other = await post(server, "shout", {"text": "a"}, headers={"origin": "https://evil.example"})
    assert other.status_code == 401 and "origins" in other.json()["error"]["mend"]


async def test_a_call_that_lasts_too_long_is_504(serve: Serve) -> None:
    answer = await post(await serve(max_call_seconds=0.1), "nap", {})
    assert answer.status_code == 504
    assert answer.json()["error"]["type"] == "DeadlineExceeded"
