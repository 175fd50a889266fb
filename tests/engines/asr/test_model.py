"""Whisper on real sound: what was said is understood, and where nobody spoke nothing is."""

from __future__ import annotations

import gzip
import itertools

import numpy as np
import pytest

from engines.asr.model import RATE, Hints, WhisperModel, split_long
from engines.asr.stream import to_16k
from engines.asr.weights import AsrModelError
from tests.speech.sounds import (
    SENTENCES,
    Say,
    error_rate,
    human_speech,
    not_speech,
    over_the_telephone,
    resampled,
    words,
)


def test_speech_is_understood(whisper: WhisperModel, say: Say) -> None:
    heard = [whisper.transcribe(say(text, RATE)).text for text in SENTENCES]
    assert error_rate(list(SENTENCES), heard) < 0.05


def test_speech_over_the_telephone_is_understood(whisper: WhisperModel, say: Say) -> None:
    heard = [whisper.transcribe(to_16k(over_the_telephone(say(text, RATE), RATE), 8000)).text for text in SENTENCES]
    assert error_rate(list(SENTENCES), heard) < 0.1


@pytest.mark.parametrize("seconds", [0.5, 1, 3, 8, 20])
def test_where_nobody_speaks_there_is_no_text(whisper: WhisperModel, seconds: float) -> None:
    for name, sound in not_speech(RATE, seconds).items():
        assert whisper.transcribe(sound).text == "", name


def test_no_samples_are_no_text(whisper: WhisperModel) -> None:
    assert whisper.transcribe(np.zeros(0, np.float32)).text == ""
    assert whisper.transcribe(np.full(3, 0.5, np.float32)).text == ""


def test_hints_spell_the_jargon(whisper: WhisperModel, say: Say) -> None:
    audio = say("The new system runs on Kuberneetees with a Chainlit for speech.", RATE)
    assert "Kubernetes" in whisper.transcribe(audio, Hints(hotwords=("Kubernetes",))).text
    name = say("I would like to see Doctor Novak, please.", RATE)
    assert "Novak" in whisper.transcribe(name, Hints(prompt="Our doctors are Lopez, Carter, Chen and Novak.")).text


def test_hints_bring_no_text_into_silence(whisper: WhisperModel) -> None:
    hints = Hints(hotwords=("Novak", "Carter"), prompt="Our doctors are Lopez, Carter, Chen and Novak.")
    for name, sound in not_speech(RATE, 2).items():
        assert whisper.transcribe(sound, hints).text == "", name


@pytest.mark.parametrize("times", [1, 2])
def test_long_speech_is_understood_to_its_end(whisper: WhisperModel, say: Say, times: int) -> None:
    """About 30 s, which no longer fits the short window, and 60 s, which fits none."""
    text = " ".join(SENTENCES * times)
    heard = whisper.transcribe(say(text, RATE)).text
    assert error_rate([text], [heard]) < 0.05
    assert words(heard).endswith("i will be at home")


def test_cutting_long_speech_loses_no_sample() -> None:
    audio = np.random.default_rng(0).normal(0, 0.1, 75 * RATE).astype(np.float32)
    pieces = split_long(audio)
    assert all(len(piece) <= 30 * RATE for piece in pieces)
    assert np.array_equal(np.concatenate(pieces), audio)


def test_words_come_with_their_times(whisper: WhisperModel, say: Say) -> None:
    pause = np.zeros(RATE, np.float32)
    found = whisper.transcribe(np.concatenate((pause, say(SENTENCES[3], RATE))), words=True).words
    assert words(" ".join(word.text for word in found)) == words(SENTENCES[3])
    assert all(a.start_ms <= a.end_ms <= b.end_ms for a, b in itertools.pairwise(found))
    assert 3000 < found[-1].end_ms < 1000 + 1000 * len(say(SENTENCES[3], RATE)) / RATE


def test_another_language_than_the_model_knows_is_refused() -> None:
    with pytest.raises(AsrModelError, match="knows English alone"):
        WhisperModel(language="de")


def test_human_readings_are_understood(whisper: WhisperModel) -> None:
    import soundfile

    folder = human_speech() / "librivox"
    said: list[str] = []
    heard: list[str] = []
    for line in (folder / "transcription").read_text().splitlines():
        text, _, name = line.removeprefix("<s>").partition("</s>")
        audio, rate = soundfile.read(folder / f"{name.strip(' ()')}.wav", dtype="float32")
        said.append(text)
        heard.append(whisper.transcribe(resampled(audio, rate, RATE)).text)
    assert error_rate(said, heard) < 0.1


@pytest.mark.slow
def test_human_telephone_prompts_are_understood(whisper: WhisperModel) -> None:
    """8 kHz prompts of 2 to 10 s; those shorter are single words without context."""
    import soundfile

    folder = human_speech()
    listed = (folder / "asterisk-core-sounds-en" / "core-sounds-en.txt.gz").read_bytes()
    listing = gzip.decompress(listed).decode().splitlines()
    said: list[str] = []
    heard: list[str] = []
    for name, text in (line.split(": ", 1) for line in listing if ": " in line and not line.startswith(";")):
        path = folder / "en_US_f_Allison" / f"{name}.wav"
        if not path.is_file() or not 2 < soundfile.info(path).duration < 10 or len(said) == 60:
            continue
        audio, rate = soundfile.read(path, dtype="float32")
        said.append(text)
        heard.append(whisper.transcribe(to_16k(audio, rate)).text)
    assert len(said) == 60
    assert error_rate(said, heard) < 0.1
