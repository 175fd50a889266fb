"""One step of the model: which tokens stand where, and which of them want logits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class Inputs:
    """B sequences with T new tokens in all, laid end to end. All tensors lie on the model's device.

    The first `decodes` sequences have exactly one new token each. A page is the slot of one token in the cache;
    row b of `pages` holds the slots of sequence b's positions, the new ones included, and anything behind them.
    """

    ids: Tensor
    """[T] int64."""
    positions: Tensor
    """[T] int64, of each token within its sequence."""
    slots: Tensor
    """[T] int64, where each token's keys and values go."""
    pages: Tensor
    """[B, W] int32."""
    starts: Tensor
    """[B + 1] int32: sequence b's tokens are rows starts[b] to starts[b + 1] of T."""
    lengths: Tensor
    """[B] int32: tokens of each sequence, the new ones included."""
    decodes: int
    longest_query: int
    """The most new tokens of one sequence."""
    longest: int
    """The longest of `lengths`."""
    keep: Tensor
    """[S] int64: rows of T whose hidden states are wanted."""
    contexts: int | None = None
    """The sum of lengths[decodes:]; where it is None, it is read from the device when it is needed."""
