"""The caller's lines are what lines.yaml says: understood, one segment each, in the format that was promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import yaml

from engines.asr.model import WhisperModel
from engines.vad.model import SileroVad
from engines.vad.stream import SpeechStart, VadStream
from tests.speech.sounds import error_rate

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "phone_call" / "lines"
LINES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "lines.yaml").read_text(encoding="utf-8"))["lines"]


@pytest.fixture(scope="module")
def whisper() -> WhisperModel:
    return WhisperModel()


def test_no_recording_without_a_line() -> None:
    assert {line["file"] for line in LINES} == {path.name for path in FOLDER.glob("*.wav")}


def test_the_lines_are_understood(whisper: WhisperModel) -> None:
    heard = [whisper.transcribe(soundfile.read(FOLDER / line["file"], dtype="float32")[0]).text for line in LINES]
    assert error_rate([line["text"] for line in LINES], heard) < 0.1


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["file"])
def test_a_line_is_one_segment_and_ends_where_it_says(line: dict[str, Any]) -> None:
    audio, rate = soundfile.read(FOLDER / line["file"], dtype="float32")
    assert (rate, audio.ndim) == (16000, 1)
    loud = np.flatnonzero(np.abs(audio) > 10 ** (-40 / 20))
    assert abs(loud[-1] / 16 - line["speech_ends_ms"]) < 5
    detector = SileroVad()
    memory = detector.open(rate)
    stream = VadStream(lambda frame: detector.probability(memory, frame), rate)
    found = stream.push(np.concatenate((audio, np.zeros(rate, np.float32)))) + stream.finish()
    assert [event.segment for event in found if isinstance(event, SpeechStart)] == [1]
