"""The seam of a language model engine: prompts and settings in, token events out. Every engine fills it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, Protocol, Required, TypedDict

from engines.llm.config import Sampling

FinishReason = Literal["stop", "length", "abort", "error"]
Role = Literal["system", "developer", "user", "assistant", "tool"]
Grammar = tuple[str, str]
"""What the reply is held to: "json", "json_object", "regex", "ebnf" or "choice", and its source: a JSON schema, an
empty text, an expression, a grammar, or a JSON list of texts."""


class Message(TypedDict, total=False):
    """One message of a conversation, as chat templates read it. A `content` of None is for calls of tools alone."""

    role: Required[Role]
    content: Required[str | None]
    name: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    reasoning_content: NotRequired[str]


Prompt = Sequence[Message] | Sequence[int] | str
"""Messages (rendered by the model's chat template), a raw text, or token ids."""


class Cancelled(Protocol):
    """Asked before each token; true ends the generation. `threading.Event.is_set` is one."""

    def __call__(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request. `cached` of the prompt's tokens were not computed again; of `guessed` tokens of the reply,
    which were checked several in one step, `right` held."""

    prompt: int
    cached: int
    completion: int
    guessed: int = 0
    right: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a token's probability, and the `top` alternatives as (token, logarithm), likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Text that is safe to show: whole characters, no part of a stop string. `tokens` are those since the last.

    `logprobs` has one entry for each of the tokens where they were asked for. `index` is the reply, of `n`.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    index: int = 0


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The last event of a reply, exactly one.

    "stop": end of turn, a stop string or a stop token; "length": max_tokens or the context; "abort": cancelled;
    "error": the engine could not go on, and `message` says why.
    """

    reason: FinishReason
    usage: Usage
    index: int = 0
    message: str = ""

    @property
    def cut(self) -> str:
        """Why the text is not whole, "" where it is."""
        if self.reason not in ("abort", "error"):
            return ""
        return self.message or ("the request was ended" if self.reason == "abort" else "the engine could not go on")


Event = TokenEvent | FinishEvent


class Engine(Protocol):
    """A loaded model. Blocking methods are safe from many threads; steps of several requests interleave.

    Errors of a request (a prompt that is too long, a bad grammar, a full queue) are raised before its first event.
    `tenant` is whose turn it is when several wait; `batch` steps back behind those that somebody waits for.
    """

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling = ...,
        cancelled: Cancelled = ...,
        *,
        tenant: str = "",
        batch: bool = False,
        grammar: Grammar | None = None,
    ) -> Iterator[Event]:
        """Token events, then one FinishEvent a reply. A cancel ends it within one token; so does closing it."""
        ...

    def warm(self, prefix: Prompt) -> int:
        """Compute a static prefix once and keep it. The number of its tokens."""
        ...

    def prepare(self, prefixes: Sequence[Prompt]) -> Any:
        """`warm` for many, beside what else is to be done; returns at once."""
        ...

    def score(self, prompt: Prompt, choices: Sequence[str], prior: Prompt | None = ...) -> Mapping[str, float]:
        """Probability of each choice as the prompt's continuation; they sum to 1."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...


class StreamingEngine(Engine, Protocol):
    """An engine that also serves an event loop: nothing blocks it, and a cancelled task ends its request."""

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling = ...,
        *,
        tenant: str = "",
        batch: bool = False,
        grammar: Grammar | None = None,
    ) -> AsyncIterator[Event]:
        """As `generate`, for an event loop. Closing the iterator ends the request within one step."""
        ...
