"""RMS norm and SwiGLU's product, a row a program, with or without the quantisation of what comes out."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engines.kernels.hopper.fp8 import group_scale, quotient
from engines.kernels.quant import blocks


def rms_norm(x: Tensor, w: Tensor, eps: float, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """See engines.kernels.norm."""
    y, _, _, total = _normed(x, w, eps, residual, quantised=False)
    return y if total is None else (y, total)


def rms_norm_quant(x: Tensor, w: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, ...]:
    """See engines.kernels.norm."""
    y, q, s, total = _normed(x, w, eps, residual, quantised=True)
    return (y, q, s) if total is None else (y, q, s, total)


def _normed(
    x: Tensor, w: Tensor, eps: float, residual: Tensor | None, *, quantised: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    size = x.shape[-1]
    rows, heads, outer, inner = _strides(x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = None if residual is None else torch.empty_like(y)
    q, s = y, y
    if quantised:
        q = torch.empty((rows, size), dtype=torch.float8_e4m3fn, device=x.device)
        s = torch.empty((rows, blocks(size)), dtype=torch.float32, device=x.device)
    if rows:
        groups = triton.next_power_of_2(blocks(size))
        _norm[(rows,)](
            x, y if residual is None else residual.contiguous(), w, y, y if total is None else total, q, s,
            size, heads, outer, inner, eps,
            GROUPS=groups, RESIDUAL=residual is not None, QUANTISED=quantised, num_warps=min(8, max(1, groups // 4)),
        )  # fmt: skip
    return y, q, s, total


def _strides(x: Tensor) -> tuple[int, int, int, int]:
    """(rows, rows in the inner dimension, stride of the outer, of the inner): x may be a slice of a wider tensor."""
    if x.stride(-1) != 1:
        raise ValueError(f"the last dimension has stride {x.stride(-1)}; make it contiguous")
    if x.dim() == 3:
        return x.shape[0] * x.shape[1], x.shape[1], x.stride(0), x.stride(1)
    if x.dim() != 2:
        raise ValueError(f"{x.dim()} dimensions; give [rows, size] or [tokens, heads, size]")
    return x.shape[0], 1, x.stride(0), 0


def silu_mul(x: Tensor) -> Tensor:
    """See engines.kernels.norm."""
    flat = x.reshape(-1, x.shape[-1])
    out = torch.empty((flat.shape[0], flat.shape[1] // 2), dtype=x.dtype, device=x.device)
    _launch_product(flat, out, out, quantised=False)
    return out.view(*x.shape[:-1], out.shape[1])


def silu_mul_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """See engines.kernels.norm."""
    rows, size = x.shape[0], x.shape[1] // 2
    q = torch.empty((rows, size), dtype=torch.float8_e4m3fn, device=x.device)
    s = torch.empty((rows, blocks(size)), dtype=torch.float32, device=x.device)
    _launch_product(x, q, s, quantised=True)
    return q, s


def _launch_product(x: Tensor, out: Tensor, s: Tensor, *, quantised: bool) -> None:
    rows, size = out.shape
    taken = min(8, triton.next_power_of_2(blocks(size)))
    if rows:
        grid = (rows, triton.cdiv(blocks(size), taken))
        _product[grid](x, out, s, size, x.stride(0), GROUPS=taken, QUANTISED=quantised, num_warps=4)


@triton.jit
def _norm(
    x, residual, w, y, total, q, s, size, heads, outer, inner, eps,
    GROUPS: tl.constexpr, RESIDUAL: tl.constexpr, QUANTISED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS)
    column = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = column < size
    kept = y.dtype.element_ty
    at = row * size + column
    value = tl.load(x + row // heads * outer + row % heads * inner + column, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        value += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        value = value.to(kept)
        tl.store(total + at, value, mask=inside)
        value = value.to(tl.float32)
    mean = tl.sum(tl.sum(value * value, 1), 0) / size
    weight = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    normed = (value * (1.0 / tl.sqrt_rn(mean + eps)) * weight).to(kept)
    tl.store(y + at, normed, mask=inside)
    if QUANTISED:
        normed = normed.to(tl.float32)
        scale = group_scale(tl.max(tl.abs(normed), 1), False)
        tl.store(q + at, quotient(normed, scale[:, None]), mask=inside)
        groups = tl.cdiv(size, 128)
        tl.store(s + row * groups + group, scale, mask=group < groups)


@triton.jit
def _product(x, out, s, size, stride, GROUPS: tl.constexpr, QUANTISED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    column = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = column < size
    at = x + row * stride + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + size, mask=inside, other=0.0).to(tl.float32)
    value = (gate / (1.0 + tl.exp(-gate)) * up).to(x.dtype.element_ty)
    if QUANTISED:
        value = value.to(tl.float32)
        scale = group_scale(tl.max(tl.abs(value), 1), False)
        tl.store(out + row * size + column, quotient(value, scale[:, None]), mask=inside)
        groups = tl.cdiv(size, 128)
        tl.store(s + row * groups + group, scale, mask=group < groups)
    else:
        tl.store(out + row * size + column, value, mask=inside)
