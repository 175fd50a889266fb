"""Frequencies as published, and rotations that are the same whichever way they are computed."""

from __future__ import annotations

import math

import pytest
import torch

from engines.kernels.rope import apply_rope_reference
from engines.layers.architecture import Llama3, Rope, Stretched, Yarn
from engines.layers.rotary import Rotary, frequencies, side_by_side

CPU = torch.device("cpu")


def test_yarn_between_its_corners() -> None:
    """DeepSeek-V3: pairs below 10 keep their frequency, those above 23 are slowed 40 times, between it is a ramp."""
    plain, found = frequencies(Rope(1e4, 64)), frequencies(Rope(1e4, 64, True, Yarn(40.0, 4096)))
    share = (torch.arange(32) - 10).div(13).clamp(0, 1)
    assert torch.allclose(found, plain / 40 * share + plain * (1 - share), rtol=1e-6)
    assert torch.equal(found[:11], plain[:11]) and torch.allclose(found[23:], plain[23:] / 40, rtol=1e-6)


def test_other_scalings() -> None:
    plain = frequencies(Rope(1e4, 64))
    assert torch.equal(frequencies(Rope(1e4, 64, scaling=Stretched(4.0))), plain / 4)
    found, lengths = frequencies(Rope(1e4, 64, scaling=Llama3(8.0, 1.0, 4.0, 8192))), 2 * math.pi / plain
    assert torch.equal(found[lengths < 2048], plain[lengths < 2048])
    assert torch.equal(found[lengths > 8192], plain[lengths > 8192] / 8)
    between = (lengths > 2048) & (lengths < 8192)
    assert between.any() and bool(((found < plain) & (found > plain / 8))[between].all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("interleaved", [True, False])
def test_turns(dtype: torch.dtype, interleaved: bool) -> None:
    """In place, of slices of wider tensors too; halves are turned as pairs once they are side by side."""
    rope, positions = Rope(1e4, 8, interleaved, Yarn(4.0, 16)), torch.tensor([3, 0, 40])
    wide = torch.randn(3, 5, 12, dtype=dtype)
    tables = Rotary(rope, 64, paired=False, dtype=dtype, device=CPU)
    cos, sin = tables.cos, tables.sin
    q, k = apply_rope_reference(wide[:, :4, 4:], wide[:, 4:, 4:], cos, sin, positions, interleaved=interleaved)
    order = torch.arange(8) if interleaved else side_by_side(8)
    ours = wide.clone()
    ours[..., 4:] = wide[..., 4:][..., order]
    turn = Rotary(rope, 64, paired=not interleaved, dtype=dtype, device=CPU).at(positions)
    turn(ours[..., 4:])
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    assert torch.equal(ours[..., :4], wide[..., :4])
    assert torch.allclose(ours[..., 4:], torch.cat([q, k], 1)[..., order], atol=tolerance)
