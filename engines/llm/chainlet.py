"""Language model and sentence embeddings as chainlets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chains import Limits, Resources, Text, chainlet, current
from chains.errors import ChainsError, InvalidValue, ModelError, SettingError
from engines.llm.config import DEFAULT, EngineSettings, Sampling, known
from engines.llm.errors import EngineError, ModelBroken, ModelMissing, PromptTooLong, SettingInvalid
from engines.llm.seam import FinishEvent, Prompt

Messages = list[dict[str, str]]


def translated(error: EngineError) -> ChainsError:
    """The error that a user of chains meets for one of the engine's."""
    if isinstance(error, ModelMissing | ModelBroken):
        return ModelError(error.message, mend=error.mend)
    if isinstance(error, SettingInvalid):
        return SettingError(error.message, mend=error.mend)
    if isinstance(error, PromptTooLong):
        return InvalidValue(error.message, mend=error.mend)
    return ChainsError(error.message, mend=error.mend)


@chainlet(resources=Resources(cpu=1, memory="2GiB"), limits=Limits(running=16, queued=64))
class LLM:
    """A language model: `model` is "default" (the packaged one), a Hugging Face directory or a .gguf file.

    `settings` are those of engines.llm.config.EngineSettings: threads, precision, cache_tokens, prefill_chunk.
    A prompt is a list of {"role", "content"} messages, or a plain text that is continued.
    """

    def __init__(self, model: str = DEFAULT, **settings: Any) -> None:
        self._model = model
        try:
            self._settings = EngineSettings(**known(settings, EngineSettings))
        except EngineError as error:
            raise translated(error) from error

    def load(self) -> None:
        from engines.llm.reference import ReferenceEngine

        try:
            self._engine = ReferenceEngine.load(self._model, self._settings)
        except EngineError as error:
            raise translated(error) from error

    def warm(self) -> None:
        for _ in self._engine.generate("Hello", Sampling(max_tokens=2)):
            pass

    def close(self) -> None:
        self._engine.close()

    def reply(self, prompt: Messages | str, sampling: dict[str, Any] | None = None, turn: int = 0) -> Iterator[Text]:
        """The reply as it is written, piece by piece, not final; then an empty, final piece.

        `sampling` are fields of engines.llm.config.Sampling. Cancelled, it stops within one token.
        """
        scope = current()
        try:
            picked = Sampling.read(_tupled(sampling or {}))
            for event in self._engine.generate(_prompt(prompt), picked, lambda: bool(scope.cancelled)):
                if isinstance(event, FinishEvent):
                    yield Text("", final=True, turn=turn, role="assistant")
                else:
                    yield Text(event.text, final=False, turn=turn, role="assistant")
        except EngineError as error:
            raise translated(error) from error

    def complete(self, prompt: Messages | str, sampling: dict[str, Any] | None = None) -> str:
        """The whole reply at once."""
        return "".join(piece.text for piece in self.reply(prompt, sampling))

    def score(
        self, prompt: Messages | str, choices: list[str], prior: Messages | str | None = None
    ) -> dict[str, float]:
        """Probability of each choice as the reply; they sum to 1. `prior` is the same prompt without content."""
        try:
            return self._engine.score(_prompt(prompt), choices, None if prior is None else _prompt(prior))
        except EngineError as error:
            raise translated(error) from error

    def choose(self, prompt: Messages | str, choices: list[str], prior: Messages | str | None = None) -> str:
        """The likeliest of the choices: never anything else."""
        scores = self.score(prompt, choices, prior)
        return max(scores, key=lambda choice: scores[choice])

    def remember(self, prefix: Messages | str) -> int:
        """Compute the static beginning of prompts once, so that later prompts cost only what is new. Its tokens."""
        try:
            return self._engine.warm(_prompt(prefix))
        except EngineError as error:
            raise translated(error) from error

    def prepare(self, prefixes: list[Messages | str]) -> int:
        """`remember` for many, beside whatever else is to be done; returns at once with their number."""
        try:
            self._engine.prepare([_prompt(prefix) for prefix in prefixes])
            return len(prefixes)
        except EngineError as error:
            raise translated(error) from error


@chainlet(resources=Resources(cpu=1, memory="512MiB"), limits=Limits(running=16, queued=64))
class Embeddings:
    """Sentence embeddings: `model` is "default" (the packaged encoder) or a Hugging Face directory."""

    def __init__(self, model: str = DEFAULT) -> None:
        self._model = model

    def load(self) -> None:
        from engines.llm.embedding import Embedder

        try:
            self._embedder = Embedder.load(self._model)
        except EngineError as error:
            raise translated(error) from error

    def warm(self) -> None:
        self._embedder.embed(["Hello"])

    def embed(self, texts: list[str]) -> NDArray[np.float32]:
        """Unit vectors [texts, size]; the dot product of two says how alike their meanings are."""
        return self._embedder.embed(texts)


def _prompt(prompt: Messages | str) -> Prompt:
    return prompt  # type: ignore[return-value]  # what messages hold is checked where they are rendered


def _tupled(sampling: dict[str, Any]) -> dict[str, Any]:
    """Lists as JSON has them become the tuples that the settings hold."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in sampling.items()}
