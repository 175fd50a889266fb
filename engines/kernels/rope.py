"""Rotary positions from tables of cosines and sines."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """q [T, H, D] and k [T, KH, D] with their first R dimensions turned; tables [P, R / 2], positions [T].

    A pair is (2i, 2i + 1) if `interleaved`, else (i, i + R / 2); the layout stays. New tensors are returned.
    """
    if q.is_cuda:
        from engines.kernels.hopper import rope

        return rope.apply_rope(q, k, cos, sin, positions, interleaved=interleaved)
    return apply_rope_reference(q, k, cos, sin, positions, interleaved=interleaved)


def apply_rope_reference(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """The twin: in float32, or in float64 for float64 q (whose tables may then be float64 too)."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    heads = [q.shape[1], k.shape[1]]
    x = torch.cat((q, k), 1).to(wide)
    c, s = cos[positions].to(wide).unsqueeze(1), sin[positions].to(wide).unsqueeze(1)
    size = 2 * cos.shape[1]
    turned = x[..., :size]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, -1)
    a = torch.addcmul(first * c, second, s, value=-1)
    b = torch.addcmul(second * c, first, s)
    parts = [torch.stack((a, b), -1).flatten(-2)] if interleaved else [a, b]
    if size < x.shape[-1]:
        parts.append(x[..., size:])
    rotated = torch.cat(parts, -1) if len(parts) > 1 else parts[0]
    q_turned, k_turned = torch.split(rotated.to(q.dtype), heads, 1)
    return q_turned, k_turned
