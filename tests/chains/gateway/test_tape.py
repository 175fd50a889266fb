"""Recording at the gateway, over real sockets into a real store: what is kept, what never is, what a hook changes."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from chains.call import Call
from chains.client import connect
from chains.errors import SettingError
from chains.gateway.tape import Deck, Loose, hook
from chains.messages import Audio, Control, Tensor, Text
from chains.protocol import encode_binary
from chains.records.recorded import Recorded
from chains.records.recordings import incomplete, transcript, wav
from chains.records.render import HEADER
from chains.records.store import Store
from chains.serve import Server
from chains.timing import LoopClock
from tests.chains.gateway.test_native import audio, dial, opened, send, until
from tests.chains.gateway.test_shipping import answering
from tests.chains.records.taped import tone
from tests.chains.viewer.taking import recorded, taking
from tests.chains.wire.hosted import eventually

Serve = Callable[..., Awaitable[Server]]
SECRET = "rutabaga 4417"


def no_digits(item: Recorded) -> Recorded | None:
    """Digits out of what is said, sound silenced, values not kept at all."""
    match item.value:
        case Text(text=words):
            return replace(item, value=replace(item.value, text=re.sub(r"\d", "#", words)))
        case Audio(pcm=pcm):
            return replace(item, value=Audio(np.zeros_like(pcm), item.value.rate, item.value.turn))
    return None if item.kind == "value" else item


def broken(item: Recorded) -> Recorded | None:
    if item.kind == "text":
        raise ValueError(f"cannot read {item.value}")
    return item


async def shipped(server: Server) -> None:
    """All that was recorded is with the viewer."""
    deck = server.gateway.deck
    assert deck is not None
    await asyncio.to_thread(deck.close)


def bytes_of(folder: Path) -> bytes:
    """All that is on the disk: the store, and what SQLite lays beside it."""
    return b"".join(file.read_bytes() for file in folder.iterdir())


def rowid(store: Store, call: str) -> int:
    return int(store.connection.execute("SELECT id FROM calls WHERE call = ?", (call,)).fetchone()[0])


async def test_a_call_of_audio_is_kept_as_it_came_and_went(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    sound = tone(1300)
    async with taking(path) as url:
        server = await serve(record=True, viewer=url)
        async with dial(server) as socket:
            call = (await opened(socket, window=1 << 20))["call"]
            for start in range(0, len(sound), 320):
                await socket.send(audio(sound[start : start + 320], turn=0))
            await send(socket, type="played", turn=1, ms=40)
            await send(socket, type="ping", id=3)
            await send(socket, type="end", stream="audio")
            await until(socket, "done")
        await shipped(server)
    with Store.open(path, readonly=True) as store:
        row = rowid(store, call)
        for side in ("caller", "reply"):
            pcm = np.frombuffer(wav(store.connection, row, side).data[HEADER:], "<i2")
            assert np.array_equal(pcm[pcm != 0], sound[sound != 0])
        kinds = [(side, kind) for side, kind, _ in recorded(store.connection, call) if kind != "audio"]
        assert kinds.count(("caller", "end")) == 1 and kinds.count(("reply", "text")) == 1
        events = [data["event"] for _, kind, data in recorded(store.connection, call) if kind == "event"]
        assert events == ["open", "played", "done", "closed"]
        assert transcript(store.connection, row)[0]["text"] == "65 pieces"
        assert not incomplete(store.connection, row)
        source = store.connection.execute("SELECT recorded, method, trace FROM calls WHERE id = ?", (row,)).fetchone()
        assert source[0] == 1 and len(source[2]) == 16
        assert source[1].removeprefix("Parlour.") == "run", "as the spans say it, if they came first"


async def test_keys_never_leave_the_gateway(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    async with taking(path) as url:
        server = await serve(record=True, viewer=url, viewer_key="key-of-viewer", keys=("key-of-caller",))
        async with dial(server, "/v1/call/shout") as socket:
            await opened(socket, key="key-of-caller", arguments={"text": "hello"})
            await until(socket, "done")
        async with httpx.AsyncClient(headers={"authorization": "Bearer key-of-caller"}) as client:
            await client.post(f"{server.url}/v1/call/shout", json={"text": "again"})
        await shipped(server)
    kept = bytes_of(tmp_path)
    assert b"again" in kept and b"key-of" not in kept


async def test_json_lines_and_a_body_of_audio_are_kept_too(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    sound = Audio(tone(400, 8000), 8000)
    async with taking(path) as url, httpx.AsyncClient() as client:
        server = await serve(record=True, viewer=url)
        unary = await client.post(f"{server.url}/v1/call/shout", json={"text": "hey", "times": 2})
        lines = await client.post(f"{server.url}/v1/call/count", json={"to": 3})
        wave = await client.post(
            f"{server.url}/v1/call/run", content=_wav(sound), headers={"content-type": "audio/wav"}
        )
        await shipped(server)
    with Store.open(path, readonly=True) as store:
        rows = recorded(store.connection, unary.headers["x-call-id"])
        assert rows[0][2]["arguments"] == {"text": "hey", "times": 2}
        assert rows[1] == ("reply", "value", "HEYHEY") and rows[2][2] == {"event": "closed"}
        values = [data for _, kind, data in recorded(store.connection, lines.headers["x-call-id"]) if kind == "value"]
        assert values == [0, 1, 2]
        call = wave.headers["x-call-id"]
        pcm = np.frombuffer(wav(store.connection, rowid(store, call), "caller").data[HEADER:], "<i2")
        first = int(np.flatnonzero(pcm)[0]) - 1  # the tone begins with a 0
        assert np.allclose(pcm[first : first + 3200], sound.pcm, atol=1)
        assert ("caller", "end", b"") in recorded(store.connection, call)


@pytest.mark.slow
async def test_a_long_body_of_audio_is_kept_whole(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    sound = Audio(tone(400_000, 16000), 16000)
    async with taking(path) as url, httpx.AsyncClient(timeout=60) as client:
        server = await serve(record=True, viewer=url, max_body=20 << 20)
        answer = await client.post(
            f"{server.url}/v1/call/run", content=_wav(sound), headers={"content-type": "audio/wav"}
        )
        await asyncio.to_thread(server.gateway.deck.close, 30.0)  # type: ignore[union-attr]
    with Store.open(path, readonly=True) as store:
        row = rowid(store, answer.headers["x-call-id"])
        assert not incomplete(store.connection, row)
        length = store.connection.execute("SELECT sum(ms) FROM recordings WHERE call = ? AND side = 0", (row,))
        assert length.fetchone()[0] == pytest.approx(400_000)


def _wav(sound: Audio) -> bytes:
    from chains.gateway.http import wav_header

    return wav_header(sound.rate) + sound.to_bytes()


async def test_texts_tensors_controls_and_turns(serve: Serve, watched: Any, tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    tensor = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3), "t", 4)
    async with taking(path) as url:
        server = await serve(record=True, viewer=url)
        async with connect(server.url) as client:
            async with client.call("tensors", tensors=iter([tensor])) as call:
                tensors = call.id
                async for _ in call:
                    pass
            async with client.call("words", words=iter([Text("hi", turn=2)])) as call:
                words = call.id
                async for _ in call:
                    pass
            async with client.call("interrupted") as call:
                turns = call.id
                assert isinstance(await anext(call), Audio) and isinstance(await anext(call), Audio)
                watched.turn.cancel("barge-in")
                assert [type(item) async for item in call] == [Audio, Control]
        await shipped(server)
    with Store.open(path, readonly=True) as store:
        frames = [data for _, kind, data in recorded(store.connection, tensors) if kind == "tensor"]
        assert frames == [encode_binary(tensor), encode_binary(Tensor(tensor.data * 2, "t", 4))]
        texts = [(side, data["text"]) for side, kind, data in recorded(store.connection, words) if kind == "text"]
        assert texts == [("caller", "hi"), ("reply", "HI")]
        events = [data for _, kind, data in recorded(store.connection, turns) if kind == "event"]
        assert {"event": "clear", "turn": 1} in events
        assert {"event": "turn", "turn": 2, "state": "started"} in events


async def test_a_hang_up_is_kept(serve: Serve, watched: Any, tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    async with taking(path) as url:
        server = await serve(record=True, viewer=url)
        async with dial(server, "/v1/call/drip") as socket:
            call = (await opened(socket))["call"]
            await until(socket, "item")
        await asyncio.wait_for(watched.event(watched.left, "drip").wait(), 5)
        await eventually(lambda: not server.gateway.calls)
        await shipped(server)
        await asyncio.to_thread(server.gateway.runtime.recorder.flush)
    with Store.open(path, readonly=True) as store:
        events = [data["event"] for _, kind, data in recorded(store.connection, call) if kind == "event"]
        assert events == ["open", "hang-up", "closed"]
        row = store.connection.execute("SELECT outcome, reason, errors FROM calls WHERE call = ?", (call,)).fetchone()
        assert row == ("done", "hang-up", 0), "an ordinary end, and how it came about"


async def test_when_recording_is_off_nothing_that_was_said_is_anywhere(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "traces.sqlite"
    async with taking(path) as url:
        server = await serve(viewer=url)
        await _say(server)
        assert server.gateway.deck is None
    kept = bytes_of(tmp_path)
    assert b"rutabaga" not in kept.lower() and "rutabaga" not in _logged(caplog)


async def test_after_redaction_nothing_that_it_took_out_is_anywhere(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "traces.sqlite"
    async with taking(path) as url:
        server = await serve(record=True, viewer=url, redact=no_digits)
        call = await _say(server)
        async with dial(server) as socket:
            heard = (await opened(socket))["call"]
            await socket.send(audio(tone(100)))
            await send(socket, type="end")
            await until(socket, "done")
        await shipped(server)
    kept = bytes_of(tmp_path)
    assert b"4417" not in kept and "4417" not in _logged(caplog)
    assert b"RUTABAGA ####" in kept
    with Store.open(path, readonly=True) as store:
        assert {data["text"] for _, kind, data in recorded(store.connection, call) if kind == "text"} == {
            "rutabaga ####",
            "RUTABAGA ####",
        }
        assert not any(wav(store.connection, rowid(store, heard), "both").data[HEADER:])
        assert not incomplete(store.connection, rowid(store, heard))


async def test_a_hook_that_fails_keeps_what_it_could_not_read_out_and_says_so_once(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "traces.sqlite"
    async with taking(path) as url:
        server = await serve(record=True, viewer=url, redact=broken)
        call = await _say(server)
        await _say(server)
        await shipped(server)
    said = [record.message for record in caplog.records if "redaction hook" in record.message]
    assert said == ["the redaction hook failed with ValueError; what it fails on is not kept"]
    kept = bytes_of(tmp_path)
    assert b"rutabaga" not in kept.lower() and "rutabaga" not in _logged(caplog)
    with Store.open(path, readonly=True) as store:
        assert incomplete(store.connection, rowid(store, call)).startswith("2 items")


async def _say(server: Server) -> str:
    async with dial(server, "/v1/call/words") as socket:
        call: str = (await opened(socket))["call"]
        await send(socket, type="item", kind="text", value={"text": SECRET})
        await send(socket, type="end")
        assert (await until(socket, "item"))["value"]["text"] == SECRET.upper()
        await until(socket, "done")
    return call


def _logged(caplog: pytest.LogCaptureFixture) -> str:
    """What was logged, at any level; but not by the client that this test is."""
    return " ".join(one.getMessage() for one in caplog.records if one.name != "websockets.client").lower()


BIG = 2**70
ODD = [
    *({"type": kind, "stream": stream} for kind in ("end", "item") for stream in (BIG, -1, 300, "nobody")),
    *({"type": "played", "turn": turn, "ms": 5} for turn in (BIG, -1, 2**33)),
    *(
        {"type": "item", "kind": kind, "value": value}
        for kind in ("text", "control", "tokens", "value", "", "audio")
        for value in (
            {"text": "a", "turn": BIG}, {"text": "a", "turn": -1}, {"text": "a", "turn": 2**33},
            {"text": "a", "role": 1}, {"text": "\ud800"},
            {"kind": "k", "data": {"n": BIG}}, {"kind": "k", "turn": -1}, BIG, 1e308, None, [[]],
        )
    ),
    {"type": "ping", "id": BIG},
    {"type": "cancel", "reason": "\u0000" * 200},
]  # fmt: skip


async def test_no_caller_can_end_or_spoil_the_recording_of_others(serve: Serve, tmp_path: Path) -> None:
    """Whatever numbers its frames hold: what a call cannot have written down is missing in its own recording alone."""
    path = tmp_path / "traces.sqlite"
    odd: list[str] = []
    async with taking(path) as url:
        server = await serve(record=True, viewer=url)
        async with dial(server, "/v1/call/words") as honest:
            call = (await opened(honest))["call"]
            for frame in ODD:
                await send(honest, type="item", kind="text", value={"text": SECRET})
                await until(honest, "item")
                async with dial(
                    server, "/v1/call/" + ("anything" if frame.get("kind") != "text" else "words")
                ) as socket:
                    odd.append((await opened(socket))["call"])
                    with suppress(ConnectionClosed):  # most are refused
                        await send(socket, **frame)
                        await send(socket, type="end")
                        async for _ in socket:
                            pass
            await send(honest, type="end")
            await until(honest, "done")
        later = await _say(server)
        await shipped(server)
    with Store.open(path, readonly=True) as store:
        texts = [data["text"] for _, kind, data in recorded(store.connection, call) if kind == "text"]
        assert texts == [SECRET, SECRET.upper()] * len(ODD)
        for one in (call, later):
            assert not incomplete(store.connection, rowid(store, one))
        for one in odd:
            events = [data["event"] for _, kind, data in recorded(store.connection, one) if kind == "event"]
            assert events[0] == "open" and "closed" in events


async def test_a_part_that_cannot_be_shipped_is_a_gap_and_not_the_end(graph: Any, tmp_path: Path) -> None:
    """A hook may give anything back."""

    def absurd(item: Recorded) -> Recorded:
        return replace(item, stream=BIG) if item.kind == "text" and "4417" in item.value.text else item

    path = tmp_path / "traces.sqlite"
    async with taking(path) as url:
        deck = Deck(url, redact=absurd)
        tape = deck.open(Call(LoopClock(), id="c1"), graph.nodes["Parlour"].methods["words"], {})
        tape.received(Loose("text", Text(SECRET)))
        await eventually(lambda: deck.dropped > 0)
        tape.received(Loose("text", Text("hello")))
        tape.close()
        await asyncio.to_thread(deck.close)
    with Store.open(path, readonly=True) as store:
        texts = [data["text"] for _, kind, data in recorded(store.connection, "c1") if kind == "text"]
        assert texts == ["hello"]
        assert "could not be kept" in incomplete(store.connection, rowid(store, "c1"))


def exits(item: Recorded) -> Recorded | None:
    raise SystemExit(1)


@pytest.mark.parametrize(
    "redact",
    [exits, lambda item: "words", lambda item: None, lambda item: replace(item, call="another", turn=-1)],
)
async def test_whatever_a_hook_does_calls_begin_and_end(serve: Serve, tmp_path: Path, redact: Any) -> None:
    path = tmp_path / "traces.sqlite"
    async with taking(path) as url:
        server = await serve(record=True, viewer=url, redact=redact)
        calls = [await _say(server), await _say(server)]
        deck = server.gateway.deck
        assert deck is not None
        await eventually(lambda: not deck._tapes)
        await shipped(server)
    with Store.open(path, readonly=True) as store:
        for call in calls:
            events = [data for _, kind, data in recorded(store.connection, call) if kind == "event"]
            assert events[0]["event"] == "open" and {"event": "closed"} in events
        assert not store.connection.execute("SELECT 1 FROM calls WHERE call = 'another'").fetchall()


async def test_a_viewer_that_refuses_is_not_asked_without_end(graph: Any) -> None:
    async with answering(401) as (url, asked):
        deck = Deck(url)
        tape = deck.open(Call(LoopClock(), id="c1"), graph.nodes["Parlour"].methods["words"], {})
        tape.close()
        await eventually(lambda: deck.dropped > 0)
        await asyncio.to_thread(deck.close)
    assert deck.dropped == 2 and len(asked) <= 4, "what was said, and that it is lost"


async def test_a_viewer_that_is_away_is_waited_for_and_the_call_is_not(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    async with taking(path) as url:
        port = int(url.rpartition(":")[2])
    server = await serve(record=True, viewer=url)
    call = await asyncio.wait_for(_say(server), 5)
    async with taking(path, port):
        await asyncio.sleep(0)
        await eventually(lambda: _closed(path, call))
    with Store.open(path, readonly=True) as store:
        assert not incomplete(store.connection, rowid(store, call))


def _closed(path: Path, call: str) -> bool:
    with Store.open(path) as store:
        return any(data == {"event": "closed"} for _, _, data in recorded(store.connection, call))


async def test_past_its_room_a_deck_drops_counts_and_leaves_a_gap(graph: Any, tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    method = graph.nodes["Parlour"].methods["run"]
    async with taking(path) as url:
        deck = Deck(url, limit=5_000)
        call = Call(LoopClock(), id="c1")
        tape = deck.open(call, method, {})
        for _ in range(200):
            tape.received(encode_binary(Audio(tone(20), 16000)))
        tape.close()
        await asyncio.to_thread(deck.close)
        assert deck.dropped >= 100
    with Store.open(path, readonly=True) as store:
        row = rowid(store, "c1")
        assert incomplete(store.connection, row) == (
            f"{deck.dropped} items could not be kept: the viewer was too slow, away, or redaction failed"
        )


async def test_a_gateway_ends_although_its_viewer_never_answers(serve: Serve, graph: Any) -> None:
    method = graph.nodes["Parlour"].methods["run"]
    deck = Deck("http://127.0.0.1:9")
    deck.open(Call(LoopClock(), id="c1"), method, {}).close()
    began = time.monotonic()
    await asyncio.to_thread(deck.close, 0.3)
    assert time.monotonic() - began < 3
    assert not any(thread.name == "chains-tape" for thread in threading.enumerate())


async def test_a_replay_names_the_call_that_it_replays(serve: Serve) -> None:
    server = await serve()
    async with dial(server, additional_headers={"x-chains-replay-of": "abc"}) as socket:
        assert re.fullmatch("replay-of-abc-[0-9a-f]{4}", (await opened(socket))["call"])
    async with dial(server, additional_headers={"x-chains-replay-of": "a b;<>"}) as socket:
        assert re.fullmatch("[0-9a-f]{16}", (await opened(socket))["call"])


def test_recording_without_a_viewer_is_refused(graph: Any) -> None:
    with pytest.raises(SettingError, match="no viewer"):
        Deck("")
    with pytest.raises(SettingError, match="give its URL"):
        Deck("localhost:80")


def test_a_hook_is_found_by_its_name_or_its_file(tmp_path: Path) -> None:
    (tmp_path / "privacy.py").write_text(
        "def nothing(item): return None\nasync def later(item): return None\nnumber = 3\n"
    )
    assert hook("") is None and hook(no_digits) is no_digits
    found = hook("tests.chains.gateway.test_tape:no_digits")
    assert found is not None and found.__name__ == "no_digits"
    assert hook(f"{tmp_path}/privacy.py:nothing") is not None
    for name, why in (
        ("privacy", "module:function"),
        (f"{tmp_path}/privacy.py:later", "async function"),
        (f"{tmp_path}/privacy.py:nothin", "is no function"),
        (f"{tmp_path}/privacy.py:number", "is no function"),
        ("no_such_module:redact", "cannot be loaded"),
    ):
        with pytest.raises(SettingError, match=why):
            hook(name)


async def test_a_frame_costs_next_to_nothing(graph: Any, tmp_path: Path) -> None:
    """CPU of the gateway's process for 20 ms of audio: the append in the loop, and the thread's share."""
    method = graph.nodes["Parlour"].methods["run"]
    frame = encode_binary(Audio(tone(20), 16000))
    count = 5_000
    async with taking(tmp_path / "t.sqlite") as url:
        deck = Deck(url)
        tape = deck.open(Call(LoopClock(), id="c1"), method, {})
        began = time.thread_time()
        for _ in range(count):
            tape.received(frame)
        put_us = (time.thread_time() - began) / count * 1e6
        tape.close()
        await asyncio.to_thread(deck.close, 10.0)
    assert deck.dropped == 0
    assert put_us < 20, f"{put_us:.1f} us"
