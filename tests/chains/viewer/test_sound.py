"""What was heard of a recorded call, over a real socket."""

from __future__ import annotations

import asyncio
import io
import wave
from pathlib import Path

import httpx
import pytest

from chains.viewer import sound
from tests.chains.records import taped
from tests.chains.viewer.served import error, serving

WAV = "/api/calls/c1/audio.wav"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = [
        taped.opened(),
        *taped.spoken(0.0, taped.tone(2_000.0)),
        taped.text(2_100.0, "hello Ada", role="assistant"),
        *taped.spoken(2_200.0, taped.tone(800.0), side=1, turn=1),
        taped.closed(4_000.0),
    ]
    connection, _ = taped.kept(tmp_path / "t.sqlite", rows)
    connection.close()
    return tmp_path / "t.sqlite"


async def test_a_recording_is_played_whole_and_in_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sound, "PIECE", 10_000)
    async with serving(path) as client:
        whole = await client.get(WAV)
        assert whole.status_code == 200 and whole.headers["content-type"] == "audio/wav"
        assert whole.headers["accept-ranges"] == "bytes" and int(whole.headers["content-length"]) == len(whole.content)
        with wave.open(io.BytesIO(whole.content)) as heard:
            assert heard.getnchannels() == 2 and heard.getnframes() / heard.getframerate() == pytest.approx(
                3.0, abs=0.1
            )
        total = len(whole.content)

        async def part(asked: str) -> httpx.Response:
            return await client.get(WAV, headers={"range": asked})

        middle = await part("bytes=30000-59999")
        assert middle.status_code == 206 and middle.content == whole.content[30_000:60_000]
        assert middle.headers["content-range"] == f"bytes 30000-59999/{total}"
        opened = await part("bytes=100-")
        assert opened.content == whole.content[100:10_100]
        assert (await part("bytes=-500")).content == whole.content[-500:]
        assert (await part(f"bytes={total - 5}-{total + 99}")).content == whole.content[-5:]
        beyond = await part(f"bytes={total}-")
        assert beyond.status_code == 416 and beyond.headers["content-range"] == f"bytes */{total}"
        for odd in ("bytes=", "bytes=-", "bytes=5-2", "items=1-2", "bytes=0-1,5-6"):
            assert (await part(odd)).status_code in (200, 416)
        head = await client.head(WAV)
        assert head.status_code == 200 and head.content == b"" and head.headers["content-length"] == str(total)
        assert len((await client.get(WAV, params={"side": "reply"})).content) < total


async def test_peaks_and_words_come_with_a_recorded_call(path: Path) -> None:
    async with serving(path) as client:
        told = (await client.get("/api/calls/c1/peaks", params={"side": "caller", "bins": 30})).json()
        assert len(told["peaks"]) == 30 and told["ms"] > 2_900 and max(told["peaks"]) > 0.2
        body = (await client.get("/api/calls/c1")).json()
        assert [line["text"] for line in body["transcript"]] == ["hello Ada"] and body["call"]["recorded"]
        assert body["audio"]["caller"] and body["audio"]["reply"]
        assert (await client.get("/api/calls", params={"q": "ada"})).json()["rows"][0][0] == "c1"
        assert (await client.get("/api/calls", params={"state": "recorded"})).json()["total"] == 1
        page = (await client.get("/calls/c1.html")).text
        assert "data:audio/wav;base64," in page and "hello Ada" in page and '"peaks"' in page
        assert "side is 'left'" in await error(client, "/api/calls/c1/peaks?side=left", 400)


async def test_what_is_removed_while_it_is_played_keeps_its_length(path: Path) -> None:
    async with serving(path) as client, client.stream("GET", WAV) as answer:
        await asyncio.to_thread(_forget, path)
        heard = b"".join([piece async for piece in answer.aiter_bytes()])
        assert len(heard) == int(answer.headers["content-length"])


def _forget(path: Path) -> None:
    from chains.records.recordings import forget
    from chains.records.store import Store

    with Store.open(path) as store:
        forget(store.connection, 1)


async def test_a_call_that_is_too_long_for_a_wav_says_so(tmp_path: Path) -> None:
    rows = [taped.opened(), taped.sound(0.0, taped.tone(20.0)), taped.sound(30 * 86_400_000.0, taped.tone(20.0))]
    taped.kept(tmp_path / "t.sqlite", rows)[0].close()
    async with serving(tmp_path / "t.sqlite") as client:
        for asked in ({}, {"range": "bytes=0-99"}):
            assert "GiB" in await error(client, WAV, 413, headers=asked)
        assert (await client.get("/api/calls/c1/peaks")).status_code == 200
        assert (await client.get("/api/calls/c1")).status_code == 200
        assert (await client.get("/calls/c1.html")).status_code == 200
