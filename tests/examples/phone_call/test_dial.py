"""The program that `make call` runs: a whole call, and what it leaves; bad input gets a clear line."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import soundfile
import yaml

from chains.errors import SettingError
from chains.records.store import Store
from chains.viewer.settings import ViewerSettings
from examples.phone_call.dial import FRAME, HERE, RATE, Caller, Exchange, Line, kept, read_lines
from tests.chains.records import made

ROOT = HERE.parents[1]


def dial(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it in an empty folder, as a user would."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("CLINIC_DB", None)
    command = [sys.executable, "-m", "examples.phone_call.dial", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110)


@pytest.mark.slow
def test_a_whole_call(tmp_path: Path) -> None:
    done = dial(tmp_path, "--out", "left")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    for sign in ("starting the clinic", "caller:", "clinic:", "from end of speech to first audio", "LLM.reply"):
        assert sign in done.stdout

    page = re.search(
        r"where its time went: chains trace (\w+), .* then http://127\.0\.0\.1:\d+/calls/(\w+)", done.stdout
    )
    assert page and page[1] == page[2]
    with Store.open(os.environ["CHAINS_TRACES"], readonly=True) as store:
        kept = store.connection.execute(
            "SELECT outcome, turns, recorded FROM calls WHERE call = ?", (page[1],)
        ).fetchall()
    assert [(outcome, recorded) for outcome, _, recorded in kept] == [("done", 0)] and kept[0][1] > 1

    sound, rate = soundfile.read(tmp_path / "left" / "call.wav")
    assert (rate, sound.shape[1]) == (RATE, 2)
    loud = (np.abs(sound) > 0.05).sum(axis=0) / rate
    assert (loud > 1).all(), "each side is to be heard for more than a second"

    left = json.loads((tmp_path / "left" / "call.json").read_text())
    lines = yaml.safe_load((HERE / "lines" / "lines.yaml").read_text())["lines"]
    assert [exchange["said"] for exchange in left["exchanges"]] == [line["text"] for line in lines]
    assert all(exchange["reply"] and exchange["voice_to_voice_ms"] for exchange in left["exchanges"])
    assert {line["role"] for line in left["transcript"]} == {"user", "assistant"}
    assert left["controls"][-1]["kind"] == "hang_up"
    assert {"Vad.listen", "Asr.transcribe", "LLM.reply", "Tts.speak"} <= {
        f"{hop['node']}.{hop['method']}" for hop in left["spans"]["hops"]
    }
    answered = {exchange["turn"] for exchange in left["exchanges"]}
    assert all(turn["latency_ms"] > 0 for turn in left["spans"]["turns"] if turn["number"] in answered)

    with closing(sqlite3.connect(tmp_path / "clinic.sqlite")) as records:
        booked = records.execute("select service, doctor, day, time, name from bookings").fetchall()
        filed = records.execute("select call, summary from calls").fetchall()
    assert booked == [("dental cleaning", "James Carter", "Tuesday", "10:00", "Daniel Moore")]
    assert filed == [(left["call"], left["summary"])]
    assert left["summary"]


HANGS = """
import asyncio, time
from chains import chainlet
from chains.dsl.graph import build
from chains.serve import Server
from examples.phone_call.dial import interruptible

@chainlet(entry=True)
class Hangs:
    def load(self) -> None:
        print("begun", flush=True)
        while True:
            time.sleep(0.05)

    async def run(self) -> str:
        return ""

async def main() -> None:
    server = Server(build(Hangs), port=0)
    with interruptible(server):
        async with server:
            pass

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_load_that_hangs_is_named_at_the_first_signal_and_ended_by_the_second(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "hangs.py")]
    with subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            assert process.stdout is not None
            assert any("begun" in line for line in process.stdout)
            process.send_signal(number)
            assert "Hangs#0" in next(line for line in process.stdout if "still loading" in line)
            process.send_signal(number)
            assert process.wait(5) == 128 + number
            assert "Traceback" not in process.stdout.read()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "No such file"),
        ("lines: 3", "is no list of lines"),
        ("lines: [{file: missing.wav, text: x, speech_ends_ms: 3}]", "missing.wav does not exist"),
        ("lines: [{file: broken.wav, text: x, speech_ends_ms: 3}]", "broken.wav cannot be read as audio"),
    ],
)
def test_lines_that_cannot_be_said(tmp_path: Path, content: str | None, found: str) -> None:
    if content is not None:
        (tmp_path / "lines.yaml").write_text(content)
    (tmp_path / "broken.wav").write_bytes(b"this is no sound")
    done = dial(tmp_path, "--lines", "lines.yaml")
    assert done.returncode == 2
    assert found in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 2


def test_nobody_answers_at_the_url(tmp_path: Path) -> None:
    done = dial(tmp_path, "--url", "http://127.0.0.1:9")
    assert done.returncode == 2
    assert "127.0.0.1:9" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_lines_of_the_example_can_be_read() -> None:
    lines = read_lines(HERE / "lines" / "lines.yaml")
    assert all(0 < line.speech_ends <= len(line.pcm) / RATE for line in lines)
    with pytest.raises(SettingError, match=r"see examples/phone_call/lines/lines\.yaml"):
        read_lines(HERE / "clinic.yaml")


async def test_the_caller_says_the_line_in_frames_and_is_silent_after_it() -> None:
    caller, exchange = Caller(), Exchange("x")
    pcm = np.arange(1, 2 * FRAME + 100, dtype=np.int16)
    caller.say(Line("x", pcm, 1.5 * FRAME / RATE), exchange)
    frames = caller.frames()
    sent = [(await anext(frames)).pcm for _ in range(4)]
    await frames.aclose()  # type: ignore[attr-defined]
    assert [len(frame) for frame in sent] == [FRAME] * 4
    assert np.array_equal(np.concatenate(sent)[: len(pcm)], pcm)
    assert not sent[3].any()
    assert caller.finished.is_set()
    assert exchange.spoken_at <= exchange.speech_end <= exchange.spoken_at + 1


def test_only_a_call_that_was_kept_is_pointed_to(tmp_path: Path) -> None:
    settings = ViewerSettings(traces=tmp_path / "traces.sqlite")
    assert not kept("call-1", settings) and not settings.traces.exists()
    made.stored(settings.traces, made.phone_call("call-1", 1))
    assert kept("call-1", settings) and not kept("other", settings)
    settings.traces.write_bytes(b"no store")
    assert not kept("call-1", settings)
