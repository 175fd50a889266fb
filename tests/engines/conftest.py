"""The real models, loaded once, and a voice to speak to them."""

from __future__ import annotations

from functools import cache

import pytest

from engines.asr.model import WhisperModel
from engines.tts.model import HibariVoice
from engines.tts.stream import concatenated
from engines.vad.model import SileroVad
from tests.speech.sounds import Samples, Say, resampled


@pytest.fixture(scope="session")
def detector() -> SileroVad:
    return SileroVad()


@pytest.fixture(scope="session")
def whisper() -> WhisperModel:
    return WhisperModel()


@pytest.fixture(scope="session")
def voice() -> HibariVoice:
    return HibariVoice()


@pytest.fixture(scope="session")
def say(voice: HibariVoice) -> Say:
    """Speech of a text at a rate, with the silence that the voice leaves around it."""

    @cache
    def audio(text: str, rate: int) -> Samples:
        return resampled(concatenated(list(voice.synthesize(text))), voice.rate, rate)

    return audio
