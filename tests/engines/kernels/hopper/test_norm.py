"""Norm and SwiGLU against their twins; what is quantised is quantised as the twin would."""

from __future__ import annotations

import pytest
import torch

from engines.kernels.norm import rms_norm_reference, silu_mul_reference
from engines.kernels.quant import quantize_activations_reference
from tests.engines.kernels.hopper.interpreter import interpreted, relative

norm = interpreted("norm")


@pytest.mark.parametrize("size", [96, 300, 704])
def test_rms_norm(size: int) -> None:
    torch.manual_seed(size)
    x, r, w = torch.randn(3, size), torch.randn(3, size), torch.randn(size)
    assert relative(norm.rms_norm(x, w, 1e-6), rms_norm_reference(x.double(), w, 1e-6)) < 1e-6
    y, q, s, total = norm.rms_norm_quant(x, w, 1e-6, r)
    assert torch.equal(total, x + r) and relative(y, rms_norm_reference((x + r).double(), w, 1e-6)) < 1e-6
    wanted = quantize_activations_reference(y)
    assert torch.equal(q.float(), wanted[0].float()) and torch.equal(s, wanted[1])


def test_norm_of_slices() -> None:
    x, w = torch.randn(3, 7, 64)[:, 2:5], torch.randn(64)
    assert relative(norm.rms_norm(x, w, 1e-6), rms_norm_reference(x.double(), w, 1e-6)) < 1e-6


def test_a_strided_last_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match="make it contiguous"):
        norm.rms_norm(torch.randn(4, 8).T, torch.ones(4), 1e-6)


@pytest.mark.parametrize("size", [96, 704])
def test_silu_mul(size: int) -> None:
    x = torch.randn(3, 2 * size) * 3
    y = norm.silu_mul(x)
    assert relative(y, silu_mul_reference(x.double())) < 1e-6
    q, s = norm.silu_mul_quant(x)
    wanted = quantize_activations_reference(y)
    assert torch.equal(q.float(), wanted[0].float()) and torch.equal(s, wanted[1])
