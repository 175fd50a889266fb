"""The detector itself: both native rates, a memory per stream, and errors that say what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engines.vad.model import SileroVad, VadModelError
from tests.speech.sounds import SENTENCES, Samples, Say, not_speech


def probabilities(detector: SileroVad, audio: Samples, rate: int) -> list[float]:
    memory = detector.open(rate)
    size = rate * 32 // 1000
    return [
        detector.probability(memory, audio[start : start + size]) for start in range(0, len(audio) - size + 1, size)
    ]


@pytest.mark.parametrize("rate", [8000, 16000])
def test_speech_is_likely_and_the_rest_is_not(detector: SileroVad, say: Say, rate: int) -> None:
    heard = probabilities(detector, say(SENTENCES[0], rate), rate)
    assert sum(p > 0.5 for p in heard) > 0.5 * len(heard)
    for name, sound in not_speech(rate, 3).items():
        assert max(probabilities(detector, sound, rate)) < 0.3, name


def test_streams_in_turn_are_heard_as_if_alone(detector: SileroVad, say: Say) -> None:
    one, other = say(SENTENCES[0], 16000), say(SENTENCES[1], 16000)
    alone = probabilities(detector, one, 16000)
    first, second = detector.open(16000), detector.open(16000)
    together = []
    for at in range(len(alone)):
        together.append(detector.probability(first, one[at * 512 : at * 512 + 512]))
        detector.probability(second, np.resize(other, len(one))[at * 512 : at * 512 + 512])
    assert together == alone


def test_forgetting_is_a_fresh_start(detector: SileroVad, say: Say) -> None:
    audio = say(SENTENCES[0], 16000)
    memory = detector.open(16000)
    first = [detector.probability(memory, audio[at : at + 512]) for at in range(0, 16384, 512)]
    detector.forget(memory)
    assert [detector.probability(memory, audio[at : at + 512]) for at in range(0, 16384, 512)] == first


def test_another_rate_or_length_is_refused(detector: SileroVad) -> None:
    with pytest.raises(VadModelError, match="8000 or 16000 Hz, not 24000; resample"):
        detector.open(24000)
    with pytest.raises(VadModelError, match="512 samples"):
        detector.probability(detector.open(16000), np.zeros(320, np.float32))


def test_a_wrong_file_is_refused_with_what_to_use(tmp_path: Path) -> None:
    with pytest.raises(VadModelError, match="no file at"):
        SileroVad(tmp_path / "none.onnx")
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    with pytest.raises(VadModelError, match="not an ONNX model"):
        SileroVad(tmp_path / "junk.onnx")


def test_neither_torch_nor_silero_is_imported() -> None:
    code = (
        "import sys; from engines.vad.model import SileroVad; SileroVad(); "
        "print(*{'torch', 'silero_vad', 'faster_whisper'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.vad.model._PACKAGES", ("no_such_package",))
    with pytest.raises(VadModelError, match="pip install"):
        SileroVad()
