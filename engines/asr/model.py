"""Whisper through CTranslate2 (faster-whisper's loader and features): samples in, text out. Blocking;
downloads nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.asr.stream import quietest
from engines.asr.weights import AsrModelError, find_model

RATE = 16000
Samples = npt.NDArray[np.float32]

# Features are padded to one of these. Whisper was trained on 30 s; at 15 s it is as accurate and the encoder
# costs
# half, while windows of 3 to 5 s make it repeat itself.
_WINDOWS_S = (15, 30)
_WINDOW = 30 * RATE
_SILENCE = 10 ** (-60 / 20)


@dataclass(frozen=True, slots=True)
class Word:
    """One word and where it was spoken, in milliseconds from the start of the audio."""

    text: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Recognised:
    """Text of one piece of audio ("" where nobody spoke), with what the model thought of it."""

    text: str
    confidence: float
    no_speech: float
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class Hints:
    """What the model may expect: `hotwords` (names, jargon) and a `prompt` (text said just before, sets the
    style).
    """

    hotwords: Sequence[str] = ()
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a result is taken for no speech.

    no_speech: above this probability of silence the text is dropped, unless its words are as sure as
    `certain`
      (beeps, hum and noise lie above 0.7, the words of people on a telephone below 0.3).
    worst_confidence: mean log probability under which any text is dropped.
    repetition: text / compressed text above which the model repeats itself; it then tries once more without
    repeats.
    tokens_per_second: no more than this is decoded, since nobody speaks faster.
    """

    no_speech: float = 0.6
    certain: float = -0.25
    worst_confidence: float = -1.5
    repetition: float = 2.4
    tokens_per_second: float = 12.0


class WhisperModel:
    """One loaded model. `model` is a directory, a name such as "tiny.en", or None for the bundled default.

    threads: cores for one transcription. workers: transcriptions at once (each takes `threads`).
    AsrModelError where the model is not at hand, with what is and how to get it.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        threads: int = 1,
        workers: int = 1,
        language: str = "en",
        device: str = "cpu",
        compute_type: str = "int8",
        limits: Limits | None = None,
    ) -> None:
        self.path: Path = find_model(model)
        self.limits = limits or Limits()
        import faster_whisper
        from faster_whisper.tokenizer import Tokenizer

        try:
            self._whisper: Any = faster_whisper.WhisperModel(
                str(self.path),
                device=device,
                compute_type=compute_type,
                cpu_threads=threads,
                num_workers=workers,
                local_files_only=True,
            )
        except Exception as error:
            raise AsrModelError(
                f"the model in {self.path} does not load on {device} as {compute_type} ({error}); "
                "a CTranslate2 Whisper model is needed (ct2-transformers-converter makes one)"
            ) from error
        multilingual = self._whisper.model.is_multilingual
        if not multilingual and language != "en":
            raise AsrModelError(f"{self.path.name} knows English alone, not {language!r}; use a model without .en")
        self._tokenizer: Any = Tokenizer(
            self._whisper.hf_tokenizer,
            multilingual,
            task="transcribe",
            language=language if multilingual else None,
        )

    def warm(self) -> None:
        """One transcription of a second of noise, so that the first caller does not pay for it."""
        self._recognise(np.random.default_rng(0).normal(0, 0.01, RATE).astype(np.float32), Hints(), words=False)

    def transcribe(self, samples: Samples, hints: Hints | None = None, *, words: bool = False) -> Recognised:
        """Text of mono float32 audio in [-1, 1] at 16 kHz, of any length: beyond 30 s it is cut at quiet
        places.
        """
        parts = []
        offset = 0
        for piece in split_long(samples):
            if len(piece) and float(np.abs(piece).max()) > _SILENCE:
                parts.append((offset, self._recognise(piece, hints or Hints(), words=words)))
            offset += len(piece)
        spoken = [(at, part) for at, part in parts if part.text]
        if not spoken:
            return Recognised("", min((p.confidence for _, p in parts), default=0.0), 1.0)
        return Recognised(
            " ".join(part.text for _, part in spoken),
            min(part.confidence for _, part in spoken),
            max(part.no_speech for _, part in spoken),
            tuple(_later(word, at * 1000 // RATE) for at, part in spoken for word in part.words),
        )

    def _recognise(self, samples: Samples, hints: Hints, *, words: bool) -> Recognised:
        seconds = len(samples) / RATE
        window = next(size for size in _WINDOWS_S if seconds <= size)
        encoded = self._whisper.encode(self._features(samples, window))
        prompt = self._prompt(hints)
        longest = len(prompt) + 16 + int(seconds * self.limits.tokens_per_second)
        result, confidence = self._generate(encoded, prompt, longest, repeats=True)
        text = self._tokenizer.decode(result.sequences_ids[0]).strip()
        no_speech = float(result.no_speech_prob)
        if _repetition(text) > self.limits.repetition:
            if no_speech > self.limits.no_speech / 2:  # a tone or music; people who repeat themselves lie below
                return Recognised("", confidence, no_speech)
            result, confidence = self._generate(encoded, prompt, longest, repeats=False)
            text = self._tokenizer.decode(result.sequences_ids[0]).strip()
        if self._is_speech(text, confidence, no_speech):
            found = self._words(encoded, result.sequences_ids[0], int(seconds * 50)) if words else ()
            return Recognised(text, confidence, no_speech, found)
        return Recognised("", confidence, no_speech)

    def _features(self, samples: Samples, seconds: int) -> Samples:
        """Log-mel features (80, seconds * 100). The audio is padded before: the padding is then true
        silence.
        """
        padded = np.zeros(seconds * RATE, np.float32)
        padded[: len(samples)] = samples
        features: Samples = self._whisper.feature_extractor(padded, padding=160)
        return features[:, : seconds * 100].astype(np.float32)

    def _prompt(self, hints: Hints) -> list[int]:
        before = self._tokenizer.encode(" " + hints.prompt.strip()) if hints.prompt.strip() else []
        prompt: list[int] = self._whisper.get_prompt(
            self._tokenizer, before, without_timestamps=True, hotwords=", ".join(hints.hotwords) or None
        )
        return prompt

    def _generate(self, encoded: Any, prompt: list[int], longest: int, *, repeats: bool) -> tuple[Any, float]:
        result = self._whisper.model.generate(
            encoded,
            [prompt],
            beam_size=1,
            max_length=min(longest, self._whisper.max_length),
            no_repeat_ngram_size=0 if repeats else 3,
            return_scores=True,
            return_no_speech_prob=True,
        )[0]
        count = len(result.sequences_ids[0])
        return result, float(result.scores[0]) * count / (count + 1)

    def _is_speech(self, text: str, confidence: float, no_speech: float) -> bool:
        limits = self.limits
        if not any(letter.isalnum() for letter in text) or _repetition(text) > limits.repetition:
            return False
        if confidence < limits.worst_confidence:
            return False
        return not (no_speech > limits.no_speech and confidence < limits.certain)

    def _words(self, encoded: Any, tokens: list[int], frames: int) -> tuple[Word, ...]:
        text_tokens = [token for token in tokens if token < self._tokenizer.eot]
        found = self._whisper.find_alignment(self._tokenizer, [text_tokens], encoded, frames * 2)[0]
        return tuple(
            Word(item["word"].strip(), int(item["start"] * 1000), int(item["end"] * 1000))
            for item in found
            if item["word"].strip()
        )


def split_long(samples: Samples) -> list[Samples]:
    """`samples` in pieces of at most 30 s, cut where the last 5 s of each are quietest. Nothing is lost."""
    pieces = []
    while len(samples) > _WINDOW:
        cut = quietest(samples[:_WINDOW], RATE, tail_s=5)
        pieces.append(samples[:cut])
        samples = samples[cut:]
    return [*pieces, samples]


def _repetition(text: str) -> float:
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


def _later(word: Word, milliseconds: int) -> Word:
    return Word(word.text, word.start_ms + milliseconds, word.end_ms + milliseconds)
