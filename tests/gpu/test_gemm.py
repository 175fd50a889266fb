"""Block-FP8 products on the device against float64 of the same quantised operands."""

from __future__ import annotations

import pytest
import torch

from engines.kernels.gemm import block_fp8_gemm, block_fp8_product, block_fp8_product_reference
from engines.kernels.quant import quantize_activations
from tests.gpu.shapes import DEVICE, LINEARS, RAGGED, bits, fp8_weights, relative, replayed

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("n", "k"), [*LINEARS, *RAGGED])
def test_against_float64(n: int, k: int) -> None:
    """Every number of rows that takes another path, in both output types; sqrt(1/12) of a bf16 step is 1.1e-3."""
    w, scales = fp8_weights(n, k)
    for m in (1, 2, 16, 17, 64, 65, 128, 129, 333, 516, 1001, 1024, 2040):
        q, s = quantize_activations(torch.randn(m, k, device=DEVICE))
        wanted = block_fp8_product_reference(q, s, w, scales, out_dtype=torch.float64)
        single = block_fp8_product(q, s, w, scales, out_dtype=torch.float32)
        assert relative(single, wanted) < 1e-3, f"M={m}, float32"
        half = block_fp8_product(q, s, w, scales, out_dtype=torch.bfloat16)
        assert relative(half, wanted) < 2e-3, f"M={m}, bfloat16"


@pytest.mark.parametrize(("n", "k"), [(3072, 2048), (576, 7168), (2048, 10944), (24576, 1536)])
def test_a_row_is_the_same_in_any_batch(n: int, k: int) -> None:
    w, scales = fp8_weights(n, k)
    x = torch.randn(128, k, device=DEVICE).bfloat16()
    alone = torch.cat([block_fp8_gemm(x[row : row + 1], w, scales) for row in range(128)])
    for m in (2, 8, 16, 17, 32, 64, 100, 128):
        assert torch.equal(bits(block_fp8_gemm(x[:m], w, scales)), bits(alone[:m])), f"M={m}"


@pytest.mark.parametrize("m", [1, 8, 128, 300])
def test_in_a_graph(m: int) -> None:
    w, scales = fp8_weights(576, 2048)
    before, after = (torch.randn(m, 2048, device=DEVICE).bfloat16() for _ in range(2))
    replayed(lambda x: block_fp8_gemm(x, w, scales), [before], [after])
