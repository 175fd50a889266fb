"""RMS norm, in few operations where it is the CPU that computes it: the small steps of a decode are mostly calls."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.kernels.norm import rms_norm

FEW = 16
"""Tokens up to which the calls cost more than the arithmetic."""


class Norm:
    """x / sqrt(mean of x^2 + epsilon) * weight, over the last dimension."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self.weight, self.epsilon = weight, epsilon
        self._share = 1 / len(weight)
        self._epsilon = torch.tensor(epsilon, dtype=weight.dtype)
        self._quick = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64)

    def __call__(self, x: Tensor) -> Tensor:
        if not self._quick or len(x) > FEW:
            return rms_norm(x, self.weight, self.epsilon)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = torch.addcmul(self._epsilon, length, length, value=self._share).rsqrt_()
        return torch.mul(x, self.weight).mul_(inverse)

    def after(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(the norm of x + residual, x + residual)."""
        if not self._quick or len(x) > FEW:
            return rms_norm(x, self.weight, self.epsilon, residual)
        total = torch.add(x, residual)
        return self(total), total
