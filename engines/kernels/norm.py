"""RMS norm and SwiGLU's product, plain and with the FP8 quantisation that the next product needs fused in.

All are computed in float32 (float64 for float64) and rounded once, to the type of x.
"""

from __future__ import annotations

from typing import overload

import torch
import torch.nn.functional as F
from torch import Tensor

from engines.kernels.quant import quantize_activations_reference


@overload
def rms_norm(x: Tensor, w: Tensor, eps: float) -> Tensor: ...
@overload
def rms_norm(x: Tensor, w: Tensor, eps: float, residual: Tensor) -> tuple[Tensor, Tensor]: ...
def rms_norm(x: Tensor, w: Tensor, eps: float, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """x [..., D] over its root mean square, times w [D]; with `residual`: (of x + residual, x + residual)."""
    if x.is_cuda:
        from engines.kernels.hopper import norm

        return norm.rms_norm(x, w, eps, residual)
    return rms_norm_reference(x, w, eps) if residual is None else rms_norm_reference(x, w, eps, residual)


@overload
def rms_norm_reference(x: Tensor, w: Tensor, eps: float) -> Tensor: ...
@overload
def rms_norm_reference(x: Tensor, w: Tensor, eps: float, residual: Tensor) -> tuple[Tensor, Tensor]: ...
def rms_norm_reference(
    x: Tensor, w: Tensor, eps: float, residual: Tensor | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """The twin. The sum with the residual is rounded to x's type before it is normed."""
    if residual is not None:
        x = x + residual
    if x.dtype in (torch.float32, torch.float64):
        y = F.rms_norm(x, x.shape[-1:], w.to(x.dtype), eps)
    else:
        y = F.rms_norm(x.float(), x.shape[-1:], w.float(), eps).to(x.dtype)
    return y if residual is None else (y, x)


def silu_mul(x: Tensor) -> Tensor:
    """silu(gate) * up [..., I] of x [..., 2 I] = gate beside up."""
    if x.is_cuda:
        from engines.kernels.hopper import norm

        return norm.silu_mul(x)
    return silu_mul_reference(x)


def silu_mul_reference(x: Tensor) -> Tensor:
    """The twin."""
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    gate, up = wide.chunk(2, -1)
    return (F.silu(gate) * up).to(x.dtype)


@overload
def rms_norm_quant(x: Tensor, w: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def rms_norm_quant(x: Tensor, w: Tensor, eps: float, residual: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
def rms_norm_quant(x: Tensor, w: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, ...]:
    """(y, q, s): y as rms_norm gives it for x [M, D], and its FP8 form; with `residual` x + residual comes last."""
    if x.is_cuda:
        from engines.kernels.hopper import norm

        return norm.rms_norm_quant(x, w, eps, residual)
    return rms_norm_quant_reference(x, w, eps, residual)


def rms_norm_quant_reference(x: Tensor, w: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, ...]:
    """The twin: the norm, then the quantisation of what it rounded."""
    if residual is None:
        y = rms_norm_reference(x, w, eps)
        return (y, *quantize_activations_reference(y))
    y, total = rms_norm_reference(x, w, eps, residual)
    return (y, *quantize_activations_reference(y), total)


def silu_mul_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """(e4m3 [M, I], scales [M, ceil(I / 128)]) of silu_mul(x) for x [M, 2 I]."""
    if x.is_cuda:
        from engines.kernels.hopper import norm

        return norm.silu_mul_quant(x)
    return silu_mul_quant_reference(x)


def silu_mul_quant_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """The twin: the product rounded to x's type, then quantised."""
    return quantize_activations_reference(silu_mul_reference(x))
