"""Sounds for the tests: noise and tones that are no speech, a telephone line, word error rates."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import numpy.typing as npt
import pytest
import soxr

from engines.tts.spoken import spoken

Samples = npt.NDArray[np.float32]
Say = Callable[[str, int], Samples]
"""Speech of a text at a rate."""

SENTENCES = (
    "Hello, I'd like to know your opening hours on Saturday.",
    "How much does a dental cleaning cost without insurance?",
    "I'd like to book a cleaning on Tuesday at ten in the morning.",
    "Yes please, that works for me.",
    "Thank you very much, goodbye.",
    "Where is the clinic located, and is there parking nearby?",
    "What is the price of an emergency visit?",
    "Could you tell me which doctors work on Fridays?",
    "I need to cancel my appointment next Wednesday morning.",
    "Please call me back before noon, I will be at home.",
)


def not_speech(rate: int, seconds: float) -> dict[str, Samples]:
    """Silence, noise and tones, by name."""
    rng = np.random.default_rng(0)
    count = int(rate * seconds)
    time = np.arange(count) / rate
    chord = sum(0.1 * np.sin(2 * np.pi * pitch * time) * (1 + np.sin(4 * np.pi * time)) for pitch in (262, 330, 392))
    sounds = {
        "silence": np.zeros(count),
        "faint noise": rng.normal(0, 0.003, count),
        "white noise": rng.normal(0, 0.1, count),
        "tone": 0.3 * np.sin(2 * np.pi * 440 * time),
        "hum": 0.05 * np.sin(2 * np.pi * 50 * time) + rng.normal(0, 0.003, count),
        "chord": chord,
    }
    return {name: np.asarray(sound, np.float32) for name, sound in sounds.items()}


def resampled(audio: npt.NDArray[Any], rate: int, to: int) -> Samples:
    result: Samples = soxr.resample(audio, rate, to, quality="HQ").astype(np.float32)
    return result


def over_the_telephone(audio: Samples, rate: int) -> Samples:
    """At 8 kHz through 8-bit mu-law and back."""
    narrow = np.clip(resampled(audio, rate, 8000), -1, 1)
    coded = np.round((np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log(256) + 1) * 127.5)
    level = coded / 127.5 - 1
    decoded: Samples = (np.sign(level) * (np.power(256.0, np.abs(level)) - 1) / 255).astype(np.float32)
    return decoded


def words(text: str) -> str:
    """Bare words, numbers spelled, for comparison."""
    return " ".join(re.sub(r"[^a-z' ]", " ", spoken(text).lower()).split())


def error_rate(said: list[str], heard: list[str]) -> float:
    """Word error rate over all pairs."""
    return float(jiwer.wer([words(text) for text in said], [words(text) for text in heard]))


def human_speech() -> Path:
    """The folder that fetch.py fills, or a skip that says how to fill it."""
    default = Path(__file__).resolve().parents[2] / ".venv" / "share" / "chains" / "speech"
    folder = Path(os.environ.get("CHAINS_TEST_SPEECH", default))
    if not (folder / "librivox").is_dir():
        pytest.skip(f"no human speech in {folder}; python tests/speech/fetch.py fetches it where apt is at hand")
    return folder
