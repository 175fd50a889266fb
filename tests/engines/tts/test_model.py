"""The bundled voice: understandable, without leading silence, and silent where nothing can be said."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from engines.asr.model import RATE, WhisperModel
from engines.tts.model import HibariVoice, TtsModelError, load_voice, speak
from engines.tts.stream import Clause, ClauseSplitter, Frame, SoundSettings
from tests.speech.sounds import SENTENCES, error_rate, resampled

REPLIES = (
    "We are open Monday to Friday, from 8 in the morning until 6 in the evening.",
    "A dental cleaning costs $80, and a filling is $120.50.",
    "The clinic is at 12 Garden St., next to the library.",
    "Dr. Carter can see you on Tuesday at 10:30 a.m.",
    "Our phone number is 555-0142.",
)


def said(voice: HibariVoice, text: str, settings: SoundSettings | None = None) -> list[Frame]:
    splitter = ClauseSplitter()
    clauses = splitter.push(text) + splitter.finish()
    return [frame for clause in clauses for frame in speak(voice, clause, settings)]


def test_what_is_spoken_is_understood(voice: HibariVoice, whisper: WhisperModel) -> None:
    texts = [*SENTENCES, *REPLIES]
    heard = []
    for text in texts:
        pcm = np.concatenate([frame.samples for frame in said(voice, text)]).astype(np.float32) / 32768
        heard.append(whisper.transcribe(resampled(pcm, voice.rate, RATE)).text)
    assert error_rate(texts, heard) < 0.1, heard


def test_sound_begins_at_once_and_pauses_are_short(voice: HibariVoice) -> None:
    pcm = np.concatenate([frame.samples for frame in said(voice, "Good morning. How can I help you?")])
    loud = np.flatnonzero(np.abs(pcm) > 32767 * 10 ** (-45 / 20))
    assert loud[0] < 0.02 * voice.rate
    assert np.diff(loud).max() < 0.25 * voice.rate
    assert len(pcm) - loud[-1] < 0.2 * voice.rate


def test_frames_have_the_length_that_was_asked_for(voice: HibariVoice) -> None:
    found = list(speak(voice, Clause(0, 0, 12, "Good morning"), SoundSettings(frame_ms=40)))
    assert {len(frame.samples) for frame in found[:-1]} == {voice.rate // 25}
    assert "".join(frame.text for frame in found) == "Good morning"


@pytest.mark.parametrize("text", ["", " ", "😀", "...", "***", "\n"])
def test_what_cannot_be_said_gives_no_sound_and_no_error(voice: HibariVoice, text: str) -> None:
    assert said(voice, text) == []


def test_the_same_text_is_the_same_audio(voice: HibariVoice) -> None:
    first, second = said(voice, SENTENCES[0]), said(voice, SENTENCES[0])
    assert all(np.array_equal(a.samples, b.samples) for a, b in zip(first, second, strict=True))


def test_threads_do_not_disturb_each_other(voice: HibariVoice) -> None:
    alone = [np.concatenate([frame.samples for frame in said(voice, text)]) for text in SENTENCES]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda text: said(voice, text), SENTENCES * 3))
    for number, found in enumerate(together):
        assert np.array_equal(np.concatenate([frame.samples for frame in found]), alone[number % len(alone)])


def test_a_voice_that_is_not_here_is_not_downloaded() -> None:
    with pytest.raises(
        TtsModelError, match="'emma' is not on this machine, and nothing is downloaded here; at hand: heart"
    ):
        HibariVoice("emma")
    with pytest.raises(TtsModelError, match="'nobody' is not on this machine"):
        HibariVoice("nobody")


def test_other_nonsense_is_refused() -> None:
    with pytest.raises(TtsModelError, match="speed is 9; it must be from"):
        HibariVoice(speed=9)
    with pytest.raises(TtsModelError, match="there are: hibari, coqui"):
        load_voice("festival")
