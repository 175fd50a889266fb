"""Activations to e4m3, 1 x 128."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engines.kernels.hopper.fp8 import group_scale, quotient
from engines.kernels.quant import blocks


def quantize_activations(x: Tensor, *, ue8m0: bool = False) -> tuple[Tensor, Tensor]:
    """See engines.kernels.quant."""
    rows, columns = x.shape
    groups = blocks(columns)
    q = torch.empty((rows, columns), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((rows, groups), dtype=torch.float32, device=x.device)
    taken = min(8, triton.next_power_of_2(groups))
    if rows:
        grid = (rows, triton.cdiv(groups, taken))
        _quantize[grid](x, q, scales, columns, x.stride(0), x.stride(1), groups, ue8m0, taken, num_warps=4)
    return q, scales


@triton.jit
def _quantize(x, q, scales, columns, row_stride, column_stride, groups, UE8M0: tl.constexpr, TAKEN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * TAKEN + tl.arange(0, TAKEN)
    column = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = column < columns
    values = tl.load(x + row * row_stride + column * column_stride, mask=inside, other=0.0).to(tl.float32)
    scale = group_scale(tl.max(tl.abs(values), 1), UE8M0)
    tl.store(q + row * columns + column, quotient(values, scale[:, None]), mask=inside)
    tl.store(scales + row * groups + group, scale, mask=group < groups)
