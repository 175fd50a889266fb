"""Voices behind one seam: text in, float32 audio out. Blocking; downloads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import soxr

from engines.tts.spoken import spoken
from engines.tts.stream import Clause, Frame, SoundSettings, concatenated, frames, pause_after, trimmed

Samples = npt.NDArray[np.float32]


class TtsModelError(Exception):
    """A voice cannot be found or loaded; the message says what is at hand and how to get it."""


class Voice(Protocol):
    """A synthesiser. `rate` in Hz; `synthesize` yields mono float32 in [-1, 1], as soon as a part is
    ready.
    """

    rate: int

    def synthesize(self, text: str) -> Iterator[Samples]: ...


class HibariVoice:
    """The small voice that comes in a package: 24 kHz, about a hundred times faster than it speaks.

    voice: "heart" lies in the package; others only if their file is already on this machine.
    speed: 0.5 to 2. threads: cores for one synthesis.
    """

    def __init__(self, voice: str = "heart", *, speed: float = 1.0, threads: int = 1) -> None:
        try:
            import hibari
            from hibari import voices
        except ImportError as error:
            raise TtsModelError("the voice hibari is not installed; run: pip install hibari-tts==0.2.1") from error
        if not 0.5 <= speed <= 2:
            raise TtsModelError(f"speed is {speed}; it must be from 0.5 to 2")
        at_hand = [name for name in voices.VOICES if _lies_here(voices, name)]
        if voice not in at_hand:
            raise TtsModelError(
                f"the voice {voice!r} is not on this machine, and nothing is downloaded here; at hand: "
                f"{', '.join(at_hand) or 'none'}; "
                f"`hibari --voice NAME Hello` fetches one of {', '.join(voices.VOICES)} once"
            )
        self._hibari: Any = hibari.Hibari(voice=voice, threads=threads)
        self._speed = speed
        self.rate: int = hibari.SAMPLE_RATE

    def synthesize(self, text: str) -> Iterator[Samples]:
        """The same text gives the same audio."""
        yield from self._hibari.stream(text, speed=self._speed, seed=0)


def _lies_here(voices: Any, name: str) -> bool:
    try:
        return Path(voices.voice_path(name, download_missing=False)).is_file()
    except FileNotFoundError:
        return False


def load_voice(backend: str = "hibari", **options: Any) -> Voice:
    """The voice of a backend, "hibari" or "coqui", with that backend's own options."""
    if backend == "hibari":
        return HibariVoice(**options)
    if backend == "coqui":
        from engines.tts.coqui import CoquiVoice

        return CoquiVoice(**options)
    raise TtsModelError(f"no voice backend is called {backend!r}; there are: hibari, coqui")


def speak(
    voice: Voice, clause: Clause, settings: SoundSettings | None = None, rate: int | None = None
) -> Iterator[Frame]:
    """Frames of one clause at `rate` (the voice's own if None): leading silence trimmed, the pause behind it
    shortened.
    What cannot be said gives none.
    """
    settings = settings or SoundSettings()
    text = spoken(clause.text)
    if not text:
        return
    if text[-1].isalnum():
        text += "." if clause.ends_sentence else ","
    audio = concatenated(list(voice.synthesize(text)))
    audio = trimmed(audio, voice.rate, settings, pause_after(clause, settings))
    if rate is not None and rate != voice.rate and len(audio):
        audio = soxr.resample(audio, voice.rate, rate, quality="HQ").astype(np.float32)
    yield from frames(clause, audio, rate or voice.rate, settings)
