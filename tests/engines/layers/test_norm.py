"""A norm in few calls is the norm."""

from __future__ import annotations

import pytest
import torch

from engines.kernels.norm import rms_norm_reference
from engines.layers.norm import FEW, Norm


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, FEW, FEW + 1])
def test_norm(dtype: torch.dtype, tokens: int) -> None:
    x, residual = (torch.randn(tokens, 3, 48, dtype=dtype)[:, 1] for _ in range(2))
    weight = torch.randn(48, dtype=dtype)
    norm, tolerance = Norm(weight, 1e-3), {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    assert torch.allclose(norm(x), rms_norm_reference(x, weight, 1e-3), rtol=tolerance, atol=tolerance)
    found, wanted = norm.after(x, residual), rms_norm_reference(x, weight, 1e-3, residual)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance)
