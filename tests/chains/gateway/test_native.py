"""The native websocket from outside: a real server, a real client, frames written by hand."""

from __future__ import annotations

import asyncio
import json
import re
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from chains.serve import Server
from chains.spans import outcome_of
from tests.chains.wire.hosted import eventually

Serve = Callable[..., Awaitable[Server]]
HEADER = "<BBBBIII"


def dial(server: Server, path: str = "/v1/call/run", **options: Any) -> connect:
    return connect(
        server.url.replace("http", "ws") + path, compression=None, max_size=None, close_timeout=0.2, **options
    )


def audio(pcm: np.ndarray[Any, Any], rate: int = 16000, turn: int = 0, code: int = 0) -> bytes:
    """A binary audio frame, laid out by hand as docs/protocol.md says."""
    return struct.pack(HEADER, 1, 0, code, 0, turn, rate, 0) + pcm.tobytes()


async def send(socket: ClientConnection, **frame: Any) -> None:
    await socket.send(json.dumps(frame))


async def receive(socket: ClientConnection) -> Any:
    frame = await socket.recv()
    return json.loads(frame) if isinstance(frame, str) else frame


async def until(socket: ClientConnection, kind: str) -> dict[str, Any]:
    """The next text frame of this type."""
    while True:
        frame = await receive(socket)
        if isinstance(frame, dict) and frame["type"] == kind:
            return frame


async def opened(socket: ClientConnection, **fields: Any) -> dict[str, Any]:
    await send(socket, type="open", **fields)
    return await until(socket, "opened")


async def refused(socket: ClientConnection) -> tuple[dict[str, Any], int]:
    """The error that ends the call, and the close code after it: nothing else may follow."""
    frame = await until(socket, "error")
    with pytest.raises(ConnectionClosed) as closed:
        await socket.recv()
    assert closed.value.rcvd is not None
    return frame["error"], closed.value.rcvd.code


async def test_audio_comes_back_and_the_call_ends_once(serve: Serve) -> None:
    async with dial(await serve()) as socket:
        frame = await opened(socket)
        assert frame["method"] == "run"
        assert [stream["name"] for stream in frame["streams"]] == ["audio"]
        pcm = np.arange(320, dtype="<i2")
        await socket.send(audio(pcm, turn=7))
        echo = await receive(socket)
        assert struct.unpack_from(HEADER, echo) == (1, 0, 0, 0, 7, 16000, 0)
        assert echo[16:] == pcm.tobytes()
        await send(socket, type="end", stream="audio")
        assert (await until(socket, "item"))["value"]["text"] == "1 pieces"
        assert await receive(socket) == {"type": "done"}
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1000


async def test_mulaw_in_and_out_at_8_khz(serve: Serve, watched: Any) -> None:
    async with dial(await serve()) as socket:
        await opened(socket, audio={"rate": 8000, "encoding": "mulaw"})
        sound = np.arange(128, 256, dtype=np.uint8)
        await socket.send(audio(sound, rate=8000, code=1))
        echo = await receive(socket)
        assert struct.unpack_from(HEADER, echo)[2] == 1
        assert echo[16:] == sound.tobytes()
        assert watched.seen[0].pcm.dtype == np.int16


async def test_other_rates_are_converted_both_ways_without_losing_the_tail(serve: Serve, watched: Any) -> None:
    server = await serve()
    async with dial(server) as socket:
        await opened(socket, audio={"rate": 24000})
        second = (np.sin(np.arange(44100) / 44100 * 2 * np.pi * 440) * 9000).astype("<i2")
        for start in range(0, 44100, 882):
            await socket.send(audio(second[start : start + 882], rate=44100))
        await send(socket, type="end")
        samples = 0
        while isinstance(frame := await receive(socket), bytes) or frame["type"] != "done":
            if isinstance(frame, bytes):
                assert struct.unpack_from(HEADER, frame)[5] == 24000
                samples += (len(frame) - 16) // 2
    assert {piece.rate for piece in watched.seen} == {16000}
    assert sum(len(piece.pcm) for piece in watched.seen) == pytest.approx(16000, abs=4)
    assert samples == pytest.approx(24000, abs=8)


async def test_streams_of_tensors_and_of_text(serve: Serve) -> None:
    server = await serve()
    async with dial(server, "/v1/call/tensors") as socket:
        await opened(socket)
        head = struct.pack(HEADER, 2, 0, 9, 2, 3, 0, 1) + b"x".ljust(8, b"\0") + struct.pack("<2Q", 2, 3)
        await socket.send(head + np.ones((2, 3), "<f4").tobytes())
        assert (await receive(socket))[len(head) :] == np.full((2, 3), 2, "<f4").tobytes()
    async with dial(server, "/v1/call/words") as socket:
        await opened(socket)
        await send(socket, type="item", stream=0, kind="text", value={"text": "soup"})
        assert (await until(socket, "item"))["value"]["text"] == "SOUP"


async def test_one_result_is_one_item(serve: Serve) -> None:
    async with dial(await serve(), "/v1/call") as socket:
        await opened(socket, method="shout", arguments={"text": "soup"})
        item = await receive(socket)
        assert (item["type"], item["kind"], item["value"]) == ("item", "value", "SOUP")
        assert (await receive(socket))["type"] == "done"


BAD_BEGINNINGS: list[tuple[str | bytes, str, int, str]] = [
    ("{junk", "ProtocolError", 1002, "not JSON"),
    ("[1, 2]", "ProtocolError", 1002, "not understood"),
    ('{"type": "opne"}', "ProtocolError", 1002, "opne"),
    ('{"type": "open", "windw": 5}', "ProtocolError", 1002, "windw"),
    ('{"type": "end"}', "ProtocolError", 1002, "not an open frame"),
    (b"\x01" + bytes(15), "ProtocolError", 1002, "before the open frame"),
    ('{"type": "open", "arguments": {"adio": []}}', "InvalidValue", 1007, "adio"),
    ('{"type": "open", "method": "shout"}', "ProtocolError", 1002, "shout"),
    ('{"type": "open", "audio": {"rate": 9}}', "ProtocolError", 1002, "rate"),
]


async def test_a_bad_beginning_is_told_and_closed(serve: Serve) -> None:
    server = await serve()
    for first, type_name, code, says in BAD_BEGINNINGS:
        async with dial(server) as socket:
            await socket.send(first)
            error, closed = await refused(socket)
        assert (error["type"], closed) == (type_name, code), first
        assert says in error["message"], first
        assert error["mend"], first


async def test_an_unknown_method_lists_what_there_is_and_the_nearest(serve: Serve) -> None:
    async with dial(await serve(), "/v1/call/shuot") as socket:
        await send(socket, type="open")
        error, code = await refused(socket)
    assert (error["type"], code) == ("NotFound", 1008)
    assert "did you mean shout" in error["mend"] and "nap" in error["mend"]


BAD_FRAMES: list[tuple[str | bytes, str]] = [
    ("{junk", "not JSON"),
    (b"\x09" + bytes(15), "kind 9"),
    (b"\x01\x00\x00", "shorter than the header"),
    (struct.pack(HEADER, 1, 0, 0, 0, 0, 16000, 0) + b"\0", "no whole number"),
    (struct.pack(HEADER, 1, 0, 0, 0, 0, 77, 0) + b"\0\0", "77"),
    (struct.pack(HEADER, 1, 4, 0, 0, 0, 16000, 0) + b"\0\0", "no stream 4"),
    (struct.pack(HEADER, 2, 0, 9, 1, 0, 0, 0) + struct.pack("<Q", 1 << 60), "bytes"),
    ('{"type": "item", "value": 5}', "int 5"),
    ('{"type": "open"}', "second open"),
    ('{"type": "end", "stream": "vido"}', "vido"),
    ('{"type": "played", "turn": -1, "ms": 5}', "turn"),
]


async def test_a_bad_frame_within_a_call_ends_it_with_what_is_wrong(serve: Serve, watched: Any) -> None:
    server = await serve()
    for frame, says in BAD_FRAMES:
        watched.began.clear()
        watched.left.clear()
        async with dial(server) as socket:
            await opened(socket)
            await watched.event(watched.began, "run").wait()
            await socket.send(frame)
            error, code = await refused(socket)
            assert code in (1002, 1007), frame
            assert says in error["message"] + error["mend"], frame
        await asyncio.wait_for(watched.event(watched.left, "run").wait(), 1)


async def test_a_frame_of_10_mb_is_refused_with_the_limit_and_its_setting(serve: Serve) -> None:
    async with dial(await serve()) as socket:
        await opened(socket)
        await socket.send(audio(np.zeros(5_000_000, "<i2")))
        error, code = await refused(socket)
    assert (error["type"], code) == ("LimitExceeded", 1009)
    assert "1048576" in error["message"] and "max_frame" in error["mend"]


async def test_a_frame_past_what_is_ever_read_closes_with_1009(serve: Serve) -> None:
    async with dial(await serve()) as socket:
        await opened(socket)
        with pytest.raises(ConnectionClosed) as closed:
            await socket.send(bytes(40 << 20))
            await socket.recv()
        assert closed.value.rcvd is None or closed.value.rcvd.code == 1009


@pytest.mark.parametrize("method", ["run", "nap", "drip", "flood", "interrupted"])
async def test_a_hang_up_cancels_within_50_ms(serve: Serve, watched: Any, method: str) -> None:
    server = await serve()
    async with dial(server, f"/v1/call/{method}") as socket:
        await opened(socket)
        await watched.event(watched.began, method).wait()
        if method == "run":
            await socket.send(audio(np.zeros(320, "<i2")))
        call = watched.call
        left = time.perf_counter()
        socket.transport.abort()
        cancelled = asyncio.Event()
        call.on_cancel(lambda reason: cancelled.set())
        await asyncio.wait_for(cancelled.wait(), 1)
        if method != "interrupted":
            await asyncio.wait_for(watched.event(watched.left, method).wait(), 1)
        assert time.perf_counter() - left < 0.05
    assert call.reason == "hang-up"
    assert await server.gateway.quiet(1)
    assert not server.gateway.calls


async def test_cancel_by_the_client_has_its_own_terminal_frame(serve: Serve) -> None:
    async with dial(await serve(), "/v1/call/drip") as socket:
        await opened(socket)
        await send(socket, type="cancel", reason="changed my mind")
        assert await until(socket, "cancelled") == {"type": "cancelled", "reason": "changed my mind"}
        with pytest.raises(ConnectionClosed):
            await socket.recv()


async def test_a_cancelled_turn_is_cleared_and_its_waiting_frames_are_dropped(serve: Serve, watched: Any) -> None:
    async with dial(await serve(), "/v1/call/interrupted") as socket:
        await opened(socket, window=1)
        assert (await until(socket, "turn"))["state"] == "started"
        first = await receive(socket)
        assert struct.unpack_from(HEADER, first)[4] == 1
        await send(socket, type="played", turn=1, ms=120)
        await watched.call.played.reached(1, 120)
        # the second frame of turn 1 waits for credit here, and is never to be heard
        watched.turn.cancel("barge-in")
        assert (await receive(socket)) == {"type": "clear", "turn": 1}
        await send(socket, type="credit", bytes=100_000)
        frames = []
        while not isinstance(frame := await receive(socket), dict) or frame["type"] != "done":
            frames.append(frame)
        turns = [struct.unpack_from(HEADER, frame)[4] for frame in frames if isinstance(frame, bytes)]
        assert turns == [2]
        assert next(f for f in frames if isinstance(f, dict) and f["type"] == "item")["value"]["data"] == {"ms": 120}


async def test_a_client_that_gives_no_credit_stops_the_producer(serve: Serve, watched: Any) -> None:
    async with dial(await serve(), "/v1/call/flood") as socket:
        await opened(socket, window=50_000)
        got = 0
        for _ in range(7):
            got += len(await socket.recv())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(socket.recv(), 0.2)
        made = watched.made
        assert 50_000 <= got < 50_000 + 8016
        # what was made and not sent lies in the hop's own window, and no more is made
        assert made * 8000 < got + 262_144 + 3 * 8016
        await send(socket, type="credit", bytes=8016)
        await socket.recv()


async def test_a_reader_that_stops_reading_stops_the_producer(serve: Serve, watched: Any) -> None:
    async with dial(await serve(), "/v1/call/flood", max_queue=1) as socket:
        await opened(socket)
        before, made = -1, 0
        while made != before:
            before = made
            await asyncio.wait_for(_still(watched), 5)
            made = watched.made
        # kernel buffers of both ends are in here as well
        assert made * 8000 < 24 << 20
        for _ in range(made):
            await socket.recv()
        assert watched.made > made


async def _still(watched: Any) -> None:
    """Return when nothing was made for a tenth of a second."""
    made = -1
    while made != watched.made:
        made = watched.made
        await asyncio.sleep(0.1)


async def test_a_full_input_stream_is_not_read_from_and_nothing_is_lost(serve: Serve, watched: Any) -> None:
    server = await serve(window=100_000, max_frame=100_000)
    async with dial(server, "/v1/call/deaf") as socket:
        await opened(socket)
        frame = audio(np.zeros(20_000, "<i2"))
        sent = 0
        with pytest.raises(TimeoutError):  # heedless of credit: the socket itself must hold this up
            async with asyncio.timeout(1):
                while sent < 5000:
                    await socket.send(frame)
                    sent += 1
        watched.gate.set()
        await send(socket, type="end")
        assert (await until(socket, "item"))["value"] == "heard"
    assert watched.made in (sent, sent + 1)  # the one that was being sent may have gone out


async def test_credit_comes_back_as_the_chain_takes_items(serve: Serve, watched: Any) -> None:
    async with dial(await serve(), "/v1/call/deaf") as socket:
        frame = await opened(socket)
        window = frame["streams"][0]["window"]
        piece = audio(np.zeros(20_000, "<i2"))
        while window > 0:
            await socket.send(piece)
            window -= len(piece)
        watched.gate.set()
        credit = await until(socket, "credit")
        assert credit["stream"] == 0 and credit["bytes"] >= 65_536


async def test_hold_pauses_and_resume_goes_on(serve: Serve, watched: Any) -> None:
    async with dial(await serve(), "/v1/call/flood") as socket:
        await opened(socket, window=8016)
        await socket.recv()
        await send(socket, type="hold")
        await send(socket, type="ping", id=1)
        await until(socket, "pong")
        assert watched.call.held
        made = watched.made
        await send(socket, type="credit", bytes=2_000_000)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                while True:
                    await socket.recv()
        assert watched.made <= made + 1
        await send(socket, type="resume")
        for _ in range(5):
            await asyncio.wait_for(socket.recv(), 1)


async def test_an_idle_caller_is_told_and_closed(serve: Serve) -> None:
    async with dial(await serve(idle_seconds=0.15)) as socket:
        await opened(socket)
        error, code = await refused(socket)
    assert (error["type"], code) == ("DeadlineExceeded", 1011)
    assert "0.15 s" in error["message"] and "idle_seconds" in error["mend"]


async def test_pings_keep_a_call_from_being_idle(serve: Serve) -> None:
    async with dial(await serve(idle_seconds=0.3)) as socket:
        await opened(socket)
        for number in range(5):
            await asyncio.sleep(0.1)  # the time that passes is what is tested
            await send(socket, type="ping", id=number)
            assert await until(socket, "pong") == {"type": "pong", "id": number}


async def test_who_never_opens_and_who_calls_too_long_are_told(serve: Serve) -> None:
    server = await serve(open_seconds=0.1, max_call_seconds=0.2)
    async with dial(server) as socket:
        error, code = await refused(socket)
        assert "open frame" in error["message"] and code == 1011
    async with dial(server, "/v1/call/drip") as socket:
        await opened(socket)
        error, code = await refused(socket)
        assert (error["type"], code) == ("DeadlineExceeded", 1011)


async def test_too_many_connections_are_told_and_closed_with_1013(serve: Serve) -> None:
    server = await serve(max_connections=1)
    async with dial(server) as first:
        await opened(first)
        async with dial(server) as second:
            error, code = await refused(second)
            assert (error["type"], code) == ("Overloaded", 1013)
            assert "max_connections" in error["mend"]
    assert await server.gateway.quiet(1)
    async with dial(server) as third:
        await opened(third)


async def test_two_callers_at_once_hear_each_their_own(serve: Serve) -> None:
    server = await serve()
    async with dial(server) as one, dial(server) as two:
        await opened(one)
        await opened(two)
        for value, socket in ((1, one), (2, two), (3, one), (4, two)):
            await socket.send(audio(np.full(320, value, "<i2")))
        for value, socket in ((1, one), (2, two), (3, one), (4, two)):
            echo = await receive(socket)
            assert np.frombuffer(echo[16:], "<i2")[0] == value


async def test_keys_by_header_or_open_frame(serve: Serve) -> None:
    server = await serve(keys=("sesame", "thyme"))
    for headers, key in (({}, ""), ({}, "wrong"), ({"authorization": "Bearer wrong"}, "sesame")):
        async with dial(server, additional_headers=headers) as socket:
            await send(socket, type="open", key=key)
            error, code = await refused(socket)
            assert (error["type"], code) == ("Unauthenticated", 1008)
            assert "sesame" not in json.dumps(error)
    async with dial(server, additional_headers={"authorization": "Bearer thyme"}) as socket:
        await opened(socket)
    async with dial(server) as socket:
        await opened(socket, key="sesame")


async def test_pages_of_other_sites_may_not_call(serve: Serve) -> None:
    server = await serve(origins=("https://clinic.example",))
    with pytest.raises(InvalidStatus) as refusal:
        async with dial(server, origin="https://evil.example"):
            pass
    assert refusal.value.response.status_code == 403
    for origin in ("https://clinic.example", server.url):
        async with dial(server, origin=origin) as socket:
            await opened(socket)


async def test_an_error_of_the_chain_keeps_its_type_and_shows_no_frames(serve: Serve) -> None:
    server = await serve()
    async with dial(server, "/v1/call/fail_late") as socket:
        await opened(socket)
        assert (await receive(socket))["value"] == 1
        error, code = await refused(socket)
    assert error == {"type": "ValueError", "message": "no such dish", "mend": ""}
    assert code == 1011


async def test_with_debug_an_error_shows_the_users_lines(serve: Serve) -> None:
    async with dial(await serve(debug=True), "/v1/call/fail") as socket:
        await opened(socket, arguments={"how": "own"})
        error, _ = await refused(socket)
    assert error["type"].endswith("KitchenFire")
    assert any("parlour.py" in frame for frame in error["frames"])


async def test_200_hang_ups_leave_no_call_and_no_task(serve: Serve, watched: Any) -> None:
    server = await serve()
    before = asyncio.all_tasks()
    for number in range(200):
        async with dial(server, "/v1/call/" + ("run", "drip", "flood", "nap")[number % 4]) as socket:
            await opened(socket)
            if number % 4 in (1, 2):
                socket.transport.abort()
    assert await server.gateway.quiet(2)
    assert not server.gateway.calls
    left: set[Any] = set()
    for _ in range(100):  # the web server and the client need a few rounds of the loop to let go of their sockets
        left = asyncio.all_tasks() - before
        if not left:
            break
        await asyncio.sleep(0.01)
    assert not left
    assert all(load.running == 0 for load in server.runtime.load())


async def _ended(server: Server) -> tuple[str, str]:
    """(what became of the last call, why)"""
    await eventually(lambda: not server.gateway.calls)
    record = server.gateway.runtime.recorder.calls[-1]
    return outcome_of(record), record.call.reason


async def test_to_hang_up_is_how_a_conversation_ends_and_how_one_is_broken_off(serve: Serve, watched: Any) -> None:
    server = await serve()
    async with dial(server, "/v1/call/drip") as socket:
        await opened(socket)
        await until(socket, "item")
    assert await _ended(server) == ("done", "hang-up")
    async with dial(server, "/v1/call/nap") as socket:
        await opened(socket)
        await asyncio.wait_for(watched.event(watched.began, "nap").wait(), 5)
    assert await _ended(server) == ("cancelled", "hang-up"), "nobody has got what was asked for"
    async with dial(server, "/v1/call/drip") as socket:
        await opened(socket)
        await until(socket, "item")
        await send(socket, type="cancel", reason="enough")
        await until(socket, "cancelled")
    assert await _ended(server) == ("cancelled", "enough")
    async with dial(server, "/v1/call/shout") as socket:
        await opened(socket, arguments={"text": "a"})
        await until(socket, "done")
    assert await _ended(server) == ("done", "the call ended"), "who was told of the end hangs up on nothing"
    calls = [
        line for line in server.gateway.metrics.text().decode().splitlines() if "call_duration_seconds_count" in line
    ]
    found = {re.search('outcome="([^"]+)"', line)[1]: float(line.split()[-1]) for line in calls}  # type: ignore[index]
    assert found == {"hang-up": 2, "cancelled": 1, "done": 1}
