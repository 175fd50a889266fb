"""Rotary positions: pairs turned by their angle, as complex numbers would be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engines.kernels.rope import apply_rope


def turned(x: Tensor, angles: Tensor, interleaved: bool) -> Tensor:
    """The first 2 x angles.shape[1] dimensions of x [T, H, D] as complex numbers, times e^(i angle)."""
    size = 2 * angles.shape[1]
    head = x[..., :size]
    first, second = (head[..., 0::2], head[..., 1::2]) if interleaved else head.chunk(2, -1)
    result = torch.complex(first, second) * torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    parts = (result.real, result.imag)
    whole = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat((whole, x[..., size:]), -1)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("size", [16, 8])
def test_pairs_turn_by_their_angle(size: int, interleaved: bool) -> None:
    torch.manual_seed(size)
    angles = torch.rand(50, size // 2, dtype=torch.float64) * 6
    q, k = torch.randn(5, 3, 16, dtype=torch.float64), torch.randn(5, 1, 16, dtype=torch.float64)
    positions = torch.tensor([0, 49, 7, 7, 3])
    found = apply_rope(q, k, angles.cos(), angles.sin(), positions, interleaved=interleaved)
    for part, wanted in zip(found, (q, k), strict=True):
        assert torch.allclose(part, turned(wanted, angles[positions], interleaved), rtol=0, atol=1e-14)


def test_types_stay_and_inputs_too() -> None:
    q, k = torch.ones(1, 2, 4).bfloat16(), torch.ones(1, 1, 4).bfloat16()
    angle = torch.full((3, 2), 1.0)
    found = apply_rope(q, k, angle.cos(), angle.sin(), torch.tensor([2]), interleaved=False)
    assert all(part.dtype == torch.bfloat16 for part in found)
    assert torch.equal(q, torch.ones(1, 2, 4).bfloat16()) and not torch.equal(found[0], q)
