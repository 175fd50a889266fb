"""Block-FP8 products: both kernels, split K, ragged edges, against float64 of the same operands."""

from __future__ import annotations

import pytest
import torch

from engines.kernels.gemm import block_fp8_product_reference
from engines.kernels.quant import quantize_activations, quantize_blocks
from tests.engines.kernels.hopper.interpreter import interpreted, relative

gemm = interpreted("gemm")


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 130, 300), (5, 64, 512), (17, 96, 704), (140, 130, 200), (140, 256, 256)]
)
def test_against_float64(m: int, n: int, k: int) -> None:
    torch.manual_seed(m)
    w, scales = quantize_blocks(torch.randn(n, k) * torch.logspace(-1, 1, k))
    q, s = quantize_activations(torch.randn(m, k) * torch.logspace(-2, 2, m)[:, None])
    found = gemm.block_fp8_product(q, s, w, scales, out_dtype=torch.float32)
    assert relative(found, block_fp8_product_reference(q, s, w, scales, out_dtype=torch.float64)) < 1e-6


def test_parts_at_once_or_apart_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 80 rows one program takes all parts of K; with 2 each part has its program."""
    monkeypatch.setattr(gemm, "split_of", lambda n, k, rows: (3, 2))
    w, scales = quantize_blocks(torch.randn(1536, 640))
    q, s = quantize_activations(torch.randn(80, 640))
    apart = gemm.block_fp8_product(q[:2], s[:2], w, scales, out_dtype=torch.float32)
    at_once = gemm.block_fp8_product(q, s, w, scales, out_dtype=torch.float32)
    assert torch.equal(at_once[:2], apart)
    assert relative(at_once, block_fp8_product_reference(q, s, w, scales, out_dtype=torch.float64)) < 1e-6


def test_weights_that_do_not_lie_whole_are_refused() -> None:
    w, scales = quantize_blocks(torch.randn(64, 256))
    q, s = quantize_activations(torch.randn(1, 128))
    with pytest.raises(ValueError, match="once, at load"):
        gemm.block_fp8_product(q, s, w[:, :128], scales[:, :1], out_dtype=torch.float32)


def test_no_rows() -> None:
    w, scales = quantize_blocks(torch.randn(64, 128))
    q, s = quantize_activations(torch.randn(0, 128))
    assert gemm.block_fp8_product(q, s, w, scales, out_dtype=torch.float32).shape == (0, 64)


@pytest.mark.parametrize(("n", "k"), [(576, 2048), (2048, 10944), (24576, 1536), (64, 128), (36864, 7168)])
def test_the_split_covers_k_once(n: int, k: int) -> None:
    parts, each = gemm.split_of(n, k, 64)
    blocks = -(-k // 128)
    assert 1 <= parts <= 8 and (parts - 1) * each < blocks <= parts * each
