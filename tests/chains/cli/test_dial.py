"""`chains dial` against a real server, and its playback on a clock that the test moves."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile

from chains.cli.main import main
from chains.serve import Server

Serve = Callable[..., Awaitable[Server]]


async def chains(*arguments: str) -> int:
    return await asyncio.to_thread(main, list(arguments))


async def test_a_call_in_real_time_is_shown_recorded_and_hung_up(
    serve: Serve, watched: Any, tone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = await serve()
    out = tmp_path / "out.wav"
    code = await chains(
        "dial", server.url, "--wav", str(tone), "--out", str(out), "--patience", "0.3", "--quiet", "0.2"
    )
    assert code == 0
    printed = capsys.readouterr().out
    assert "connected" in printed and str(out) in printed
    both, rate = soundfile.read(out)
    assert rate == 16000 and both.shape[1] == 2
    assert abs(both[:, 0]).max() == pytest.approx(0.3, abs=0.02)
    assert abs(both[:, 1]).max() == pytest.approx(0.3, abs=0.02)
    assert watched.call.played.of(0) > 400
    assert watched.call.reason == "hang-up"


async def test_a_fast_call_in_mulaw_at_8_khz_ends_with_the_chain(
    serve: Serve, watched: Any, tone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = await serve()
    line = ["dial", server.url, "--wav", str(tone), "--fast", "--rate", "8000", "--encoding", "mulaw"]
    assert await chains(*line) == 0
    assert "chain: 75 pieces" in capsys.readouterr().out
    assert {(piece.rate, len(piece.pcm)) for piece in watched.seen} == {(8000, 160)}


async def test_a_chain_that_never_answers_is_told(serve: Serve, tone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = await serve()
    assert await chains("dial", f"{server.url}/v1/call/deaf", "--wav", str(tone), "--patience", "0.2") == 2
    assert "no reply came within 0.2 s" in capsys.readouterr().err


async def test_what_was_said_is_kept_when_the_server_ends_the_call(
    serve: Serve, watched: Any, tone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = await serve()
    out = tmp_path / "out.wav"
    calling = asyncio.create_task(chains("dial", server.url, "--wav", str(tone), "--out", str(out)))
    await watched.event(watched.began, "run").wait()
    await watched.call.played.reached(0, 50)
    server.gateway.cancel_all()
    assert await calling == 2
    assert "shutting down" in capsys.readouterr().err
    both, _ = soundfile.read(out)
    assert (abs(both).max(axis=0) > 0.1).all()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_what_was_said_is_kept_when_the_caller_is_ended(
    serve: Serve, watched: Any, tone: Path, tmp_path: Path, number: signal.Signals
) -> None:
    server = await serve()
    out = tmp_path / "out.wav"
    command = [sys.executable, "-m", "chains", "dial", server.url, "--wav", str(tone), "--out", str(out)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(10):
        await watched.event(watched.began, "run").wait()
        await watched.call.played.reached(0, 50)
        process.send_signal(number)
        await process.communicate()
    assert process.returncode == 0
    assert (abs(soundfile.read(out)[0]).max(axis=0) > 0.1).all()


async def test_no_call_no_recording(tone: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.wav"
    assert await chains("dial", "http://127.0.0.1:9", "--wav", str(tone), "--out", str(out)) == 2
    assert not out.exists()


async def test_a_method_without_audio_and_an_unknown_one(
    serve: Serve, tone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = await serve()
    assert await chains("dial", f"{server.url}/v1/call/shout", "--wav", str(tone)) == 2
    assert "shout takes no stream of audio" in capsys.readouterr().err
    assert await chains("dial", f"{server.url}/v1/call/nope", "--wav", str(tone)) == 2
    assert "there is no method 'nope'" in capsys.readouterr().err


async def test_a_key_and_a_bad_argument(serve: Serve, tone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = await serve(keys=("sesame",))
    assert await chains("dial", server.url, "--wav", str(tone)) == 2
    assert "wants a key" in capsys.readouterr().err
    assert await chains("dial", server.url, "--wav", str(tone), "--key", "sesame", "--set", "x=1", "--fast") == 2
    assert "has no argument 'x'" in capsys.readouterr().err
