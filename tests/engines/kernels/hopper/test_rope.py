"""Rope turns q and k in place as the twin turns copies."""

from __future__ import annotations

import pytest
import torch

from engines.kernels.rope import apply_rope_reference
from tests.engines.kernels.hopper.interpreter import interpreted, relative

rope = interpreted("rope")


@pytest.mark.parametrize("interleaved", [True, False])
def test_slices_in_place(interleaved: bool) -> None:
    x, angles, positions = torch.randn(5, 9, 24), torch.rand(9, 8) * 6, torch.tensor([0, 8, 3, 3, 1])
    before = x.clone()
    cos, sin = angles.cos(), angles.sin()
    wanted = apply_rope_reference(x[:, :6], x[:, 6:7], cos, sin, positions, interleaved=interleaved)
    found = rope.apply_rope(x[:, :6], x[:, 6:7], cos, sin, positions, interleaved=interleaved)
    for one, other in zip(found, wanted, strict=True):
        assert relative(one, other) < 1e-6
    assert torch.equal(x[:, 7:], before[:, 7:]) and torch.equal(x[..., 16:], before[..., 16:])
    assert found[0].data_ptr() == x.data_ptr()


def test_queries_alone() -> None:
    q, angles, positions = torch.randn(2, 3, 8), torch.rand(5, 4), torch.tensor([4, 1])
    cos, sin = angles.cos(), angles.sin()
    wanted = apply_rope_reference(q, q[:, :0], cos, sin, positions, interleaved=True)[0]
    found, none = rope.apply_rope(q, q[:, :0], cos, sin, positions, interleaved=True)
    assert relative(found, wanted) < 1e-6 and none.shape == (2, 0, 8)
