"""Rotary positions: tables of cosines and sines, and how a step's queries and keys are turned by them."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from engines.kernels.rope import apply_rope
from engines.layers.architecture import Llama3, Rope, Stretched, Yarn


class Turn(Protocol):
    """The rotations of one step's tokens."""

    def __call__(self, *tensors: Tensor) -> None:
        """Turns tensors [T, heads, D] over all of D, each in its own memory; one of them, or queries and keys."""
        ...


class Rotary:
    """Tables for the first `context` positions. `paired`: queries and keys arrive with their pairs side by side."""

    def __init__(self, rope: Rope, context: int, *, paired: bool, dtype: torch.dtype, device: torch.device) -> None:
        # float32, as the models were trained with, whatever type multiplies later.
        angles = torch.outer(torch.arange(context, dtype=torch.float32), frequencies(rope))
        multiplier = rope.scaling.multiplier if isinstance(rope.scaling, Yarn) else 1.0
        self.cos, self.sin = ((table * multiplier).to(device) for table in (angles.cos(), angles.sin()))
        self.interleaved = rope.interleaved or paired
        self.turns: Tensor | None = None
        if self.interleaved and device.type == "cpu" and dtype in (torch.float32, torch.float64):
            self.turns = torch.complex(self.cos.to(dtype), self.sin.to(dtype)).unsqueeze(1)

    def at(self, positions: Tensor) -> Turn:
        """The rotations of tokens at these positions [T]."""
        if self.turns is not None:
            return _Complex(self.turns.index_select(0, positions))
        return _Tables(self, positions)


class _Complex:
    """Pairs side by side are complex numbers, and a rotation is one product: few operations on a CPU."""

    def __init__(self, turns: Tensor) -> None:
        self.turns = turns

    def __call__(self, *tensors: Tensor) -> None:
        for tensor in tensors:
            torch.view_as_complex(torch.unflatten(tensor, 2, (-1, 2))).mul_(self.turns)


class _Tables:
    """On the device, and for types that have no complex numbers."""

    def __init__(self, rotary: Rotary, positions: Tensor) -> None:
        self.rotary = rotary
        self.positions = positions

    def __call__(self, *tensors: Tensor) -> None:
        q, k = tensors if len(tensors) == 2 else (tensors[0][:, :-1], tensors[0][:, -1:])
        rotary = self.rotary
        turned = apply_rope(q, k, rotary.cos, rotary.sin, self.positions, interleaved=rotary.interleaved)
        if not q.is_cuda:  # there it works in place
            q.copy_(turned[0])
            k.copy_(turned[1])


def side_by_side(size: int) -> Tensor:
    """The order that brings the pairs (i, i + size / 2) side by side: an equal shuffle of queries and keys leaves
    their products as they were."""
    return torch.arange(size).view(2, -1).t().flatten()


def frequencies(rope: Rope) -> Tensor:
    """Radians a position [size / 2], in float32."""
    powers = rope.theta ** (torch.arange(0, rope.size, 2, dtype=torch.float32) / rope.size)
    plain = 1.0 / powers
    match rope.scaling:
        case None:
            return plain
        case Stretched(factor):
            return plain / factor
        case Llama3() as scaling:
            return _llama3(plain, scaling)
        case Yarn() as scaling:
            return _yarn(powers, rope, scaling)


def _yarn(powers: Tensor, rope: Rope, scaling: Yarn) -> Tensor:
    def dimension(turns: float) -> float:
        """The dimension whose pair turns this often over the original context."""
        return rope.size * math.log(scaling.original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.size - 1)
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(rope.size // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    kept = 1 - ramp
    return (1.0 / (scaling.factor * powers)) * (1 - kept) + (1.0 / powers) * kept


def _llama3(plain: Tensor, scaling: Llama3) -> Tensor:
    lengths = 2 * math.pi / plain
    blend = (scaling.original / lengths - scaling.low) / (scaling.high - scaling.low)
    blended = (1 - blend) * plain / scaling.factor + blend * plain
    slow, quick = lengths > scaling.original / scaling.low, lengths < scaling.original / scaling.high
    return torch.where(slow, plain / scaling.factor, torch.where(quick, plain, blended))
