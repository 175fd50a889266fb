"""Norm, SwiGLU, rope on the device against their twins."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engines.kernels.norm import (
    rms_norm,
    rms_norm_quant,
    rms_norm_reference,
    silu_mul,
    silu_mul_quant,
    silu_mul_reference,
)
from engines.kernels.quant import dequantize_activations, quantize_activations_reference
from engines.kernels.rope import apply_rope, apply_rope_reference
from tests.gpu.shapes import DEVICE, bits, relative, replayed

pytestmark = pytest.mark.gpu
SIZES = [128, 512, 576, 1536, 2048, 2560, 7168]
ROUNDED = {torch.bfloat16: 2e-3, torch.float32: 1e-6}


def quantises(y: Tensor, q: Tensor, s: Tensor) -> None:
    wanted = quantize_activations_reference(y)
    assert torch.equal(bits(q), bits(wanted[0])) and torch.equal(bits(s), bits(wanted[1]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", SIZES)
def test_rms_norm(size: int, dtype: torch.dtype) -> None:
    x, r = (torch.randn(33, size, device=DEVICE).to(dtype) for _ in range(2))
    w = torch.randn(size, device=DEVICE).to(dtype)
    assert relative(rms_norm(x, w, 1e-6), rms_norm_reference(x.double(), w, 1e-6)) < ROUNDED[dtype]
    y, total = rms_norm(x, w, 1e-6, r)
    assert torch.equal(total, x + r)
    assert relative(y, rms_norm_reference((x + r).double(), w, 1e-6)) < ROUNDED[dtype]
    y, q, s, total = rms_norm_quant(x, w, 1e-6, r)
    assert torch.equal(total, x + r) and relative(y, rms_norm_reference(total.double(), w, 1e-6)) < ROUNDED[dtype]
    quantises(y, q, s)
    quantises(*rms_norm_quant(x, w, 1e-6))


def test_norm_of_slices() -> None:
    """The latent beside the rotated key, and heads inside a fused projection."""
    x, w = torch.randn(9, 576, device=DEVICE).bfloat16(), torch.randn(512, device=DEVICE).bfloat16()
    assert relative(rms_norm(x[:, :512], w, 1e-6), rms_norm_reference(x[:, :512].double(), w, 1e-6)) < 2e-3
    heads = torch.randn(9, 12, 128, device=DEVICE).bfloat16()[:, 3:7]
    assert relative(rms_norm(heads, w[:128], 1e-6), rms_norm_reference(heads.double(), w[:128], 1e-6)) < 2e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [704, 768, 1408, 2048, 10240, 10944, 18432])
def test_silu_mul(size: int, dtype: torch.dtype) -> None:
    x = (torch.randn(19, 2 * size, device=DEVICE) * 4).to(dtype)
    y = silu_mul(x)
    assert relative(y, silu_mul_reference(x.double())) < ROUNDED[dtype]
    q, s = silu_mul_quant(x)
    quantises(y, q, s)
    assert relative(dequantize_activations(q, s, torch.float32), silu_mul_reference(x.double())) < 0.05


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "turned"), [(16, 1, 64, 64), (128, 1, 64, 64), (9, 3, 64, 64), (32, 4, 128, 64)]
)
def test_rope(heads: int, kv_heads: int, size: int, turned: int, interleaved: bool) -> None:
    angles = torch.rand(4096, turned // 2, device=DEVICE) * 6
    q, k = (torch.randn(21, n, size + 32, device=DEVICE).bfloat16()[..., 32:] for n in (heads, kv_heads))
    positions = torch.randint(0, 4096, (21,), device=DEVICE)
    wanted = apply_rope_reference(
        q.double(), k.double(), angles.cos(), angles.sin(), positions, interleaved=interleaved
    )
    found = apply_rope(q, k, angles.cos(), angles.sin(), positions, interleaved=interleaved)
    for one, other in zip(found, wanted, strict=True):
        assert relative(one, other) < 2e-3


def test_in_a_graph() -> None:
    w = torch.randn(2048, device=DEVICE).bfloat16()
    before, after = ([torch.randn(8, 2048, device=DEVICE).bfloat16() for _ in range(2)] for _ in range(2))
    replayed(lambda x, r: rms_norm_quant(x, w, 1e-6, r), before, after)
    replayed(silu_mul_quant, before[:1], after[:1])
