"""Products with block-FP8 weights: x [M, K] times w [N, K] transposed, summed in float32 every 128 of K."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.kernels.quant import dequantize_activations, dequantize_blocks, quantize_activations_reference


def block_fp8_gemm(x: Tensor, w: Tensor, scales: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """x [M, K] quantised 1 x 128, times w e4m3 [N, K] with float32 scales [ceil(N / 128), ceil(K / 128)]: [M, N].

    The result has x's type unless `out_dtype` says otherwise. A row's result does not depend on M up to 128 rows.
    """
    if x.is_cuda:
        from engines.kernels.hopper import gemm, quant

        return gemm.block_fp8_product(*quant.quantize_activations(x), w, scales, out_dtype=out_dtype or x.dtype)
    return block_fp8_gemm_reference(x, w, scales, out_dtype=out_dtype)


def block_fp8_gemm_reference(x: Tensor, w: Tensor, scales: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """The twin: the same quantisation, multiplied in float32, or in float64 for float64 x."""
    q, s = quantize_activations_reference(x)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return block_fp8_product_reference(q, s, w, scales, out_dtype=wide).to(out_dtype or x.dtype)


def block_fp8_product(q: Tensor, s: Tensor, w: Tensor, scales: Tensor, *, out_dtype: torch.dtype) -> Tensor:
    """The same for activations that are already quantised: q e4m3 [M, K], s float32 [M, ceil(K / 128)]."""
    if q.is_cuda:
        from engines.kernels.hopper import gemm

        return gemm.block_fp8_product(q, s, w, scales, out_dtype=out_dtype)
    return block_fp8_product_reference(q, s, w, scales, out_dtype=out_dtype)


def block_fp8_product_reference(q: Tensor, s: Tensor, w: Tensor, scales: Tensor, *, out_dtype: torch.dtype) -> Tensor:
    """The twin: multiplied in float32, or in float64 if that is `out_dtype`."""
    wide = torch.float64 if out_dtype == torch.float64 else torch.float32
    x = dequantize_activations(q, s, wide)
    return (x @ dequantize_blocks(w, scales, wide).T).to(out_dtype)
