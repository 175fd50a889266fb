"""What kernels share about e4m3: the scale of a group of 128 and the rounding, bit for bit as torch does them."""

from __future__ import annotations

import os

import triton
import triton.language as tl

FP8_MAX = tl.constexpr(448.0)
AMAX_FLOOR = tl.constexpr(1e-4)
# The interpreter's cast to e4m3 loses carries; values that need no rounding it casts right.
PREROUND = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def group_scale(largest, UE8M0: tl.constexpr):
    """The scale of groups whose largest magnitude is `largest`, float32."""
    scale = tl.math.div_rn(tl.maximum(largest, AMAX_FLOOR), FP8_MAX)
    if UE8M0:
        bits = (scale.to(tl.int32, bitcast=True) + 0x7FFFFF) & 0x7F800000
        scale = bits.to(tl.float32, bitcast=True)
    return scale


@triton.jit
def quotient(x, scale):
    """x / scale in e4m3, to the nearest, ties to even."""
    if PREROUND:  # the interpreter's fma rounds twice
        value = tl.math.div_rn(x, tl.broadcast_to(scale, x.shape))
    else:
        # Markstein: from the rounded reciprocal and one step with the exact remainder comes the rounded quotient, for
        # a fraction of what div_rn takes.
        inverse = tl.math.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
        inverse, divisor = tl.broadcast_to(inverse, x.shape), tl.broadcast_to(scale, x.shape)
        value = x * inverse
        remainder = tl.fma(-value, divisor, x)
        value = tl.where(remainder == 0, value, tl.fma(remainder, inverse, value))  # so -0 stays -0
    value = tl.minimum(tl.maximum(value, -FP8_MAX), FP8_MAX)
    if PREROUND:
        bits = value.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000
        normal = bits.to(tl.float32, bitcast=True)
        subnormal = (value + 24576.0) - 24576.0
        value = tl.where(tl.abs(value) < 0.015625, subnormal, normal)
    return value.to(tl.float8e4nv)
