"""Language model and sentence embeddings as chainlets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from chains import Limits, Resources, Text, chainlet, current, method
from chains.call import current_or_none
from chains.errors import ChainsError, InvalidValue, ModelError, Overloaded, SettingError, Unavailable
from engines.llm.config import DEFAULT, EngineSettings, Sampling, known
from engines.llm.errors import (
    EngineError,
    GrammarInvalid,
    GrammarMissing,
    ModelBroken,
    ModelMissing,
    ModelTooLarge,
    PromptTooLong,
    QueueFull,
    Refused,
    RequestFailed,
    SettingInvalid,
)
from engines.llm.seam import Event, FinishEvent, Prompt

Messages = list[dict[str, Any]]
PROVIDER = "chains"
"""Who answers, in gen_ai.provider.name: the engine here, and no company's API."""

_KINDS: tuple[tuple[type[EngineError], type[ChainsError]], ...] = (
    (ModelMissing, ModelError),
    (ModelBroken, ModelError),
    (ModelTooLarge, ModelError),
    (SettingInvalid, SettingError),
    (GrammarMissing, SettingError),
    (GrammarInvalid, InvalidValue),
    (PromptTooLong, InvalidValue),
    (QueueFull, Overloaded),
    (Refused, InvalidValue),
    (RequestFailed, Unavailable),
)


def translated(error: EngineError) -> ChainsError:
    """The error that a user of chains meets for one of the engine's."""
    kind = next((ours for theirs, ours in _KINDS if isinstance(error, theirs)), ChainsError)
    return kind(error.message, mend=error.mend)


@chainlet(resources=Resources(cpu=1, memory="2GiB"), limits=Limits(running=64, queued=256))
class LLM:
    """A language model: `model` is "default" or "default-moe" (the packaged ones), a Hugging Face directory or a
    .gguf file. `settings` are those of engines.llm.config.EngineSettings, e.g. precision, threads, guesses.

    A prompt is a list of {"role", "content"} messages, or a plain text that is continued. Whose turn it is when
    several wait follows from the call's tenant and priority.
    """

    def __init__(self, model: str = DEFAULT, **settings: Any) -> None:
        self._model = model
        try:
            self._settings = EngineSettings(**known(settings, EngineSettings))
        except EngineError as error:
            raise translated(error) from error

    def load(self) -> None:
        from engines.llm.engine import LLMEngine

        try:
            self._engine = LLMEngine.load(self._model, self._settings)
        except EngineError as error:
            raise translated(error) from error

    async def warm(self) -> None:
        async for _ in self._engine.stream("Hello", Sampling(max_tokens=2)):
            pass

    def close(self) -> None:
        self._engine.close()

    @method(prefix="prompt")
    async def reply(
        self,
        prompt: Messages | str,
        sampling: dict[str, Any] | None = None,
        turn: int = 0,
        grammar: tuple[str, str] | None = None,
    ) -> AsyncIterator[Text]:
        """The reply as it is written, piece by piece, not final; then an empty, final piece.

        `sampling` are fields of engines.llm.config.Sampling; `grammar` holds the reply to ("json", schema), ("regex",
        expression), ("ebnf", grammar) or ("choice", JSON list). Cancelled, it stops within one step.
        """
        call = current().call
        try:
            wanted = Sampling.read(_tupled(sampling or {})).single()
            asked = _Asked(Path(self._model).name, str(self._engine.card.get("name", "")), prompt, wanted)
            events = self._engine.stream(
                _prompt(prompt),
                wanted,
                tenant=call.tenant,
                batch=call.priority == "batch",
                grammar=grammar,
            )
            async with aclosing(cast(Any, events)):
                async for event in events:
                    asked.heard(event)
                    if not isinstance(event, FinishEvent):
                        yield Text(event.text, final=False, turn=turn, role="assistant")
                    elif event.cut:
                        raise RequestFailed(f"the reply was cut short: {event.cut}", mend="ask again")
        except EngineError as error:
            raise translated(error) from error
        yield Text("", final=True, turn=turn, role="assistant")

    @method(prefix="prompt")
    async def complete(
        self, prompt: Messages | str, sampling: dict[str, Any] | None = None, grammar: tuple[str, str] | None = None
    ) -> str:
        """The whole reply at once."""
        return "".join([piece.text async for piece in self.reply(prompt, sampling, 0, grammar)])

    def score(
        self, prompt: Messages | str, choices: list[str], prior: Messages | str | None = None
    ) -> dict[str, float]:
        """Probability of each choice as the reply; they sum to 1. `prior` is the same prompt without content."""
        try:
            return dict(self._engine.score(_prompt(prompt), choices, None if prior is None else _prompt(prior)))
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
        _note("gen_ai.operation.name", "embeddings")
        _note("gen_ai.provider.name", PROVIDER)
        _note("gen_ai.request.model", Path(self._model).name)
        _note("chains.texts", len(texts))
        return self._embedder.embed(texts)


class _Asked:
    """Notes of a request to the model, by OpenTelemetry's conventions for generative AI; never its text."""

    def __init__(self, model: str, answers: str, prompt: Messages | str, sampling: Sampling) -> None:
        self._began = current().clock.now()
        self._tokens = 0
        _note("gen_ai.operation.name", "text_completion" if isinstance(prompt, str) else "chat")
        _note("gen_ai.provider.name", PROVIDER)
        _note("gen_ai.request.model", model)
        _note("gen_ai.response.model", answers or model)
        _note("gen_ai.request.max_tokens", sampling.max_tokens)
        _note("gen_ai.request.temperature", sampling.temperature)
        _note("gen_ai.request.top_p", sampling.top_p)
        if sampling.seed is not None:
            _note("gen_ai.request.seed", sampling.seed)

    def heard(self, event: Event) -> None:
        if isinstance(event, FinishEvent):
            _note("gen_ai.usage.input_tokens", event.usage.prompt)
            _note("gen_ai.usage.output_tokens", event.usage.completion)
            _note("gen_ai.usage.cache_read.input_tokens", event.usage.cached)
            _note("chains.cached_tokens", event.usage.cached)
            if event.usage.guessed:
                _note("chains.guessed_tokens", event.usage.guessed)
                _note("chains.right_guesses", event.usage.right)
            _note("gen_ai.response.finish_reasons", (event.reason,))
            return
        if not self._tokens:
            _note("chains.ttft_ms", round((current().clock.now() - self._began) * 1e3, 3))
        self._tokens += len(event.tokens)
        _note("gen_ai.usage.output_tokens", self._tokens)  # so far: a reply that nobody hears to its end has no other


def _note(name: str, value: str | int | float | tuple[str, ...]) -> None:
    """For the span of the running hop; outside of one (a class that is used by itself) for nobody."""
    scope = current_or_none()
    if scope is not None and scope.hop is not None:
        scope.note(name, value)


def _prompt(prompt: Messages | str) -> Prompt:
    return prompt  # type: ignore[return-value]  # what messages hold is checked where they are rendered


def _tupled(sampling: dict[str, Any]) -> dict[str, Any]:
    """Lists as JSON has them become the tuples that the settings hold."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in sampling.items()}
