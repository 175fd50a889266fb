"""Constrained choice: how likely a model continues a prompt with each of some fixed answers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from engines.llm.errors import EngineError, SettingInvalid
from engines.llm.seam import Message
from engines.llm.tokenizer import Tokenizer

_NONE = -1  # is no token
_TURNS: tuple[Message, ...] = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})


@dataclass(frozen=True, slots=True)
class ChoiceTree:
    """Answers as token paths. Only the beginnings at which answers part are decided by the model, and a decision
    is among the tokens that lead on to an answer: so a long answer is not the less likely for its length.
    """

    paths: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, answers: Sequence[Sequence[int]], end: int | None) -> ChoiceTree:
        """Each answer's tokens, closed by the token `end`, so that one answer may begin another.

        Raises SettingInvalid where one does, and there is no `end`.
        """
        tree = cls(tuple((*answer, _NONE if end is None else end) for answer in answers))
        if any(_NONE in tokens for tokens in tree.forks().values()):
            raise SettingInvalid(
                "one choice begins another, and the model has no token that ends a reply",
                mend="write choices of which none begins another",
            )
        return tree

    def forks(self) -> dict[tuple[int, ...], list[int]]:
        """The beginnings at which answers part, each with the tokens that may follow."""
        following: dict[tuple[int, ...], list[int]] = {}
        for path in self.paths:
            for depth, token in enumerate(path):
                tokens = following.setdefault(path[:depth], [])
                if token not in tokens:
                    tokens.append(token)
        return {begin: tokens for begin, tokens in following.items() if len(tokens) > 1}

    def shares(self, logprobs: Mapping[tuple[int, ...], Sequence[float]]) -> list[float]:
        """Probability of each answer from the log-probabilities, at each fork, of the tokens that may follow there."""
        shares: dict[tuple[int, ...], dict[int, float]] = {}
        for begin, tokens in self.forks().items():
            highest = max(logprobs[begin])
            weights = [math.exp(value - highest) for value in logprobs[begin]]
            shares[begin] = {token: weight / sum(weights) for token, weight in zip(tokens, weights, strict=True)}
        return [
            math.prod(share[path[len(begin)]] for begin, share in shares.items() if path[: len(begin)] == begin)
            for path in self.paths
        ]


def end_of_turn(tokenizer: Tokenizer, ends: Collection[int]) -> int | None:
    """Which of the tokens that end a reply closes the assistant's turn: the one that the chat template writes there.

    Without a template the first of the tokenizer's own; None where nothing ends a reply.
    """
    if tokenizer.has_template:
        try:
            turns = tokenizer.tokens(_TURNS, reply=False)
        except EngineError:
            turns = []  # a template that wants other messages
        for token in reversed(turns):
            if token in ends:
                return token
    return min(tokenizer.ends or ends, default=None)


def calibrate(shares: Sequence[float], prior: Sequence[float]) -> list[float]:
    """Divide by what the model says without any content, and bring the sum back to 1."""
    weights = [share / max(before, 1e-6) for share, before in zip(shares, prior, strict=True)]
    total = sum(weights) or 1.0
    return [weight / total for weight in weights]
