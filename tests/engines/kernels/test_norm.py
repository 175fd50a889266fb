"""Norm and SwiGLU against their formulas in float64; the fused forms against the plain ones."""

from __future__ import annotations

import torch

from engines.kernels.norm import rms_norm, rms_norm_quant, silu_mul, silu_mul_quant
from engines.kernels.quant import quantize_activations


def test_rms_norm_in_float64() -> None:
    torch.manual_seed(1)
    x, w = torch.randn(3, 4, 96, dtype=torch.float64), torch.randn(96, dtype=torch.float64)
    wanted = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w
    assert torch.allclose(rms_norm(x, w, 1e-5), wanted, rtol=0, atol=1e-14)


def test_rms_norm_rounds_bfloat16_once() -> None:
    torch.manual_seed(2)
    x, w = torch.randn(5, 64).bfloat16(), torch.randn(64).bfloat16()
    wide = x.double()
    wanted = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * w.double()
    found = rms_norm(x, w, 1e-6)
    assert found.dtype == torch.bfloat16
    assert ((found.double() - wanted).abs() <= wanted.abs() * 2**-8).all()


def test_residual_is_added_first_and_handed_on() -> None:
    torch.manual_seed(3)
    x, r, w = torch.randn(2, 32), torch.randn(2, 32), torch.randn(32)
    y, total = rms_norm(x, w, 1e-6, r)
    assert torch.equal(total, x + r) and torch.equal(y, rms_norm(x + r, w, 1e-6))


def test_zeros_stay_zeros() -> None:
    assert torch.equal(rms_norm(torch.zeros(1, 8), torch.ones(8), 1e-6), torch.zeros(1, 8))


def test_silu_mul() -> None:
    torch.manual_seed(4)
    x = torch.randn(3, 22, dtype=torch.float64)
    gate, up = x[:, :11], x[:, 11:]
    assert torch.allclose(silu_mul(x), gate / (1 + (-gate).exp()) * up, rtol=0, atol=1e-15)
    assert silu_mul(x.bfloat16()).dtype == torch.bfloat16


def test_fused_forms_compose_the_plain_ones() -> None:
    torch.manual_seed(5)
    x, r, w = (torch.randn(3, 200).bfloat16(), torch.randn(3, 200).bfloat16(), torch.randn(200).bfloat16())
    y, q, s, total = rms_norm_quant(x, w, 1e-6, r)
    assert torch.equal(total, x + r) and torch.equal(y, rms_norm(x + r, w, 1e-6))
    for found, wanted in zip((q, s), quantize_activations(y), strict=True):
        assert torch.equal(found.float(), wanted.float())
    assert len(rms_norm_quant(x, w, 1e-6)) == 3
    for found, wanted in zip(silu_mul_quant(x), quantize_activations(silu_mul(x)), strict=True):
        assert torch.equal(found.float(), wanted.float())
