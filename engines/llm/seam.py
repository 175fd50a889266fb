"""The seam of a language model engine: prompts and settings in, token events out. Every engine fills it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypedDict

from engines.llm.config import Sampling

FinishReason = Literal["stop", "length", "abort"]


class Message(TypedDict):
    """One message of a conversation, as chat templates read it."""

    role: Literal["system", "user", "assistant"]
    content: str


Prompt = Sequence[Message] | Sequence[int] | str
"""Messages (rendered by the model's chat template), a raw text, or token ids."""


class Cancelled(Protocol):
    """Asked before each token; true ends the generation. `threading.Event.is_set` is one."""

    def __call__(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request. `cached` of the prompt's tokens were not computed again."""

    prompt: int
    cached: int
    completion: int


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Text that is safe to show: whole characters, no part of a stop string. `tokens` are those since the last."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The last event, exactly one. "stop": end of turn or a stop string; "length": max_tokens; "abort": cancelled."""

    reason: FinishReason
    usage: Usage


class Engine(Protocol):
    """A loaded model. All methods block and are safe from many threads; steps of several requests interleave."""

    def generate(
        self, prompt: Prompt, sampling: Sampling = ..., cancelled: Cancelled = ...
    ) -> Iterator[TokenEvent | FinishEvent]:
        """Token events, then one FinishEvent. A cancel ends it within one token; so does closing the iterator."""
        ...

    def warm(self, prefix: Prompt) -> int:
        """Compute a static prefix once and keep it. The number of its tokens."""
        ...

    def score(self, prompt: Prompt, choices: Sequence[str], prior: Prompt | None = ...) -> Mapping[str, float]:
        """Probability of each choice as the prompt's continuation; they sum to 1."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...
