"""MLA's row of a token into the cache: the latent normed, the key turned, in one pass."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def write_latent(
    cache: Tensor,
    kv: Tensor,
    w: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    interleaved: bool,
) -> None:
    """See engines.kernels.attention."""
    if kv.stride(1) != 1:
        raise ValueError("the last dimension of kv must be contiguous")
    size, half = w.shape[0], cos.shape[1]
    if kv.shape[0]:
        _write[(kv.shape[0],)](
            cache, kv, w, cos, sin, positions, slots, cache.stride(0), kv.stride(0), size, half, eps,
            SIZE=triton.next_power_of_2(size), HALF=triton.next_power_of_2(half), STEP=2 if interleaved else 1,
            num_warps=4,
        )  # fmt: skip


@triton.jit
def _write(
    cache, kv, w, cos, sin, positions, slots, cache_row, kv_row, size, half, eps,
    SIZE: tl.constexpr, HALF: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    source = kv + token * kv_row
    target = cache + tl.load(slots + token).to(tl.int64) * cache_row
    kept = cache.dtype.element_ty
    column = tl.arange(0, SIZE)
    inside = column < size
    value = tl.load(source + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(value * value, 0) / size
    tl.store(target + column, (value * (1.0 / tl.sqrt_rn(mean + eps)) * weight).to(kept), mask=inside)
    pair = tl.arange(0, HALF)
    seen = pair < half
    angle = tl.load(positions + token).to(tl.int64) * half + pair
    c = tl.load(cos + angle, mask=seen, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=seen, other=0.0).to(tl.float32)
    first_at = size + pair * STEP
    second_at = first_at + (1 if STEP == 2 else half)
    first = tl.load(source + first_at, mask=seen, other=0.0).to(tl.float32)
    second = tl.load(source + second_at, mask=seen, other=0.0).to(tl.float32)
    tl.store(target + first_at, (first * c - second * s).to(kept), mask=seen)
    tl.store(target + second_at, (second * c + first * s).to(kept), mask=seen)
