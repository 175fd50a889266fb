"""Rotary positions, a token a program, in place."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def apply_rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """See engines.kernels.rope; here q and k are turned in place, and may be slices of wider tensors."""
    if q.stride(2) != 1 or k.stride(2) != 1:
        raise ValueError("the last dimension of q and k must be contiguous")
    if q.shape[0]:
        half = cos.shape[1]
        _turn[(q.shape[0],)](
            q, k, cos, sin, positions, q.shape[1], k.shape[1], q.stride(0), q.stride(1), k.stride(0), k.stride(1), half,
            Q_HEADS=triton.next_power_of_2(q.shape[1]), K_HEADS=triton.next_power_of_2(max(1, k.shape[1])),
            HALF=triton.next_power_of_2(half), STEP=2 if interleaved else 1, num_warps=4,
        )  # fmt: skip
    return q, k


@triton.jit
def _turn_heads(x, head_stride, heads, c, s, half, HEADS: tl.constexpr, HALF: tl.constexpr, STEP: tl.constexpr):
    head, pair = tl.arange(0, HEADS), tl.arange(0, HALF)
    inside = (head < heads)[:, None] & (pair < half)[None, :]
    first_at = x + head.to(tl.int64)[:, None] * head_stride + (pair * STEP)[None, :]
    second_at = first_at + (1 if STEP == 2 else half)
    first = tl.load(first_at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(second_at, mask=inside, other=0.0).to(tl.float32)
    kept = x.dtype.element_ty
    tl.store(first_at, (first * c[None, :] - second * s[None, :]).to(kept), mask=inside)
    tl.store(second_at, (second * c[None, :] + first * s[None, :]).to(kept), mask=inside)


@triton.jit
def _turn(
    q, k, cos, sin, positions, q_heads, k_heads, q_token, q_head, k_token, k_head, half,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HALF: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(positions + token).to(tl.int64)
    pair = tl.arange(0, HALF)
    c = tl.load(cos + position * half + pair, mask=pair < half, other=0.0).to(tl.float32)
    s = tl.load(sin + position * half + pair, mask=pair < half, other=0.0).to(tl.float32)
    _turn_heads(q + token * q_token, q_head, q_heads, c, s, half, Q_HEADS, HALF, STEP)
    _turn_heads(k + token * k_token, k_head, k_heads, c, s, half, K_HEADS, HALF, STEP)
