"""Constrained choice: how likely a model continues a prompt with each of some fixed answers, in one forward."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ChoiceTree:
    """Answers as token paths. Only the beginnings at which answers part are decided by the model, and a decision
    is among the tokens that lead on to an answer: so a long answer is not the less likely for its length.
    """

    paths: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, answers: Sequence[Sequence[int]], end: int) -> ChoiceTree:
        """Each answer's tokens, closed by the token `end`, so that one answer may begin another."""
        return cls(tuple((*answer, end) for answer in answers))

    def forks(self) -> dict[tuple[int, ...], list[int]]:
        """The beginnings at which answers part, each with the tokens that may follow."""
        following: dict[tuple[int, ...], list[int]] = {}
        for path in self.paths:
            for depth, token in enumerate(path):
                tokens = following.setdefault(path[:depth], [])
                if token not in tokens:
                    tokens.append(token)
        return {begin: tokens for begin, tokens in following.items() if len(tokens) > 1}

    def nodes(self) -> list[tuple[int, ...]]:
        """Beginnings that have to be run behind the prompt, each after its own beginning."""
        wanted = {begin[:depth] for begin in self.forks() for depth in range(1, len(begin) + 1)}
        return sorted(wanted, key=lambda begin: (len(begin), begin))

    def probabilities(self, rows: Mapping[tuple[int, ...], Tensor]) -> list[float]:
        """Probability of each answer from the logits [vocabulary] at each fork."""
        shares = {
            begin: dict(zip(tokens, torch.log_softmax(rows[begin][tokens], 0).tolist(), strict=True))
            for begin, tokens in self.forks().items()
        }
        return [
            math.exp(sum(share[path[len(begin)]] for begin, share in shares.items() if path[: len(begin)] == begin))
            for path in self.paths
        ]


def pack(nodes: Sequence[tuple[int, ...]], past: int, tail: int) -> tuple[Tensor, Tensor]:
    """Positions [T] and mask [T, past + T] for `tail` prompt tokens followed by the tree's nodes side by side.

    Each node sees the prompt, its ancestors and itself, as if its path alone stood behind the prompt.
    """
    count = tail + len(nodes)
    index = {node: tail + place for place, node in enumerate(nodes)}
    mask = torch.zeros(count, past + count, dtype=torch.bool)
    mask[:, : past + tail] = torch.ones(count, past + tail, dtype=torch.bool).tril_(past)
    positions = torch.arange(past, past + count)
    for node, row in index.items():
        positions[row] = past + tail + len(node) - 1
        for depth in range(1, len(node) + 1):
            mask[row, past + index[node[:depth]]] = True
    return positions, mask


def calibrate(shares: Sequence[float], prior: Sequence[float]) -> list[float]:
    """Divide by what the model says without any content, and bring the sum back to 1."""
    weights = [share / max(before, 1e-6) for share, before in zip(shares, prior, strict=True)]
    total = sum(weights) or 1.0
    return [weight / total for weight in weights]
