"""The block-FP8 product against the sum over blocks, written out in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engines.kernels.gemm import block_fp8_gemm, block_fp8_product
from engines.kernels.quant import quantize_activations, quantize_blocks


def by_blocks(q: Tensor, s: Tensor, w: Tensor, scales: Tensor) -> Tensor:
    out = torch.zeros(q.shape[0], w.shape[0], dtype=torch.float64)
    for n in range(scales.shape[0]):
        for k in range(scales.shape[1]):
            rows, columns = slice(n * 128, (n + 1) * 128), slice(k * 128, (k + 1) * 128)
            part = q[:, columns].double() @ w[rows, columns].double().T
            out[:, rows] += part * s[:, k : k + 1].double() * scales[n, k].double()
    return out


@pytest.mark.parametrize(("m", "n", "k"), [(1, 576, 256), (4, 130, 704), (3, 704, 300), (2, 256, 10944)])
def test_product_is_the_sum_over_blocks(m: int, n: int, k: int) -> None:
    torch.manual_seed(m * n + k)
    x = torch.randn(m, k, dtype=torch.float64)
    w, scales = quantize_blocks(torch.randn(n, k))
    wanted = by_blocks(*quantize_activations(x), w, scales)
    assert (block_fp8_gemm(x, w, scales) - wanted).norm() <= 1e-14 * wanted.norm()
    single = block_fp8_gemm(x.float(), w, scales)
    assert single.dtype == torch.float32 and (single - wanted).norm() <= 1e-5 * wanted.norm()


def test_result_has_the_type_that_is_asked_for() -> None:
    w, scales = quantize_blocks(torch.randn(64, 128))
    x = torch.randn(2, 128, dtype=torch.bfloat16)
    assert block_fp8_gemm(x, w, scales).dtype == torch.bfloat16
    assert block_fp8_gemm(x, w, scales, out_dtype=torch.float32).dtype == torch.float32
    assert block_fp8_product(*quantize_activations(x), w, scales, out_dtype=torch.float16).dtype == torch.float16


def test_quantisation_costs_a_few_percent() -> None:
    torch.manual_seed(3)
    x, w = torch.randn(8, 512), torch.randn(256, 512)
    error = (block_fp8_gemm(x, *quantize_blocks(w)) - x @ w.T).norm() / (x @ w.T).norm()
    assert 0.005 < error < 0.05
