"""Products with block-FP8 weights.

Up to SMALL rows the weights are wgmma's M side (a tile of tokens may then be as narrow as 16) and K is split over
programs, since few rows make few tiles; the split depends on N and K alone, so that a row's sum is the same in any
batch. Beyond, tiles are square and there is no split; from LIBRARY rows on cuBLASLt is quicker where it can be asked.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

SMALL = 128
LIBRARY = 512
_PROGRAMS = 264  # two for each of an H200's 132 multiprocessors


def block_fp8_product(q: Tensor, s: Tensor, w: Tensor, scales: Tensor, *, out_dtype: torch.dtype) -> Tensor:
    """See engines.kernels.gemm."""
    if not all(x.is_contiguous() for x in (q, s, w, scales)):
        raise ValueError("the operands of a block-FP8 product lie whole in memory; call contiguous() once, at load")
    (m, k), n = q.shape, w.shape[0]
    if m >= LIBRARY and m % 4 == 0 and n % 128 == 0 and k % 128 == 0 and out_dtype == torch.bfloat16:
        return _by_library(q, s, w, scales)
    out = torch.empty((m, n), dtype=out_dtype, device=q.device)
    if m == 0:
        return out
    return _small(q, s, w, scales, out) if m <= SMALL else _large(q, s, w, scales, out)


def _by_library(q: Tensor, s: Tensor, w: Tensor, scales: Tensor) -> Tensor:
    """cuBLASLt wants the scales of rows M-major, those of blocks K-major and K / 128 filled up to a multiple of 4."""
    filled = F.pad(scales, (0, -scales.shape[1] % 4)).t()
    by_row, by_block = F.ScalingType.BlockWise1x128, F.ScalingType.BlockWise128x128
    return F.scaled_mm(q, w.t(), s.t().contiguous().t(), by_row, filled, by_block, output_dtype=torch.bfloat16)


def split_of(n: int, k: int, rows: int) -> tuple[int, int]:
    """(parts, blocks of 128 in each) that K is cut into, for tiles of `rows` of the N rows."""
    blocks, tiles = triton.cdiv(k, 128), triton.cdiv(n, rows)
    parts = max(1, min(8, _PROGRAMS // tiles, blocks // 2))
    each = triton.cdiv(blocks, parts)
    return triton.cdiv(blocks, each), each


def _small(q: Tensor, s: Tensor, w: Tensor, scales: Tensor, out: Tensor) -> Tensor:
    (m, k), n, rows = q.shape, w.shape[0], 64
    parts, each = split_of(n, k, rows)
    # Where the parts would write and read more than the weights are, one program takes all of them, one by one.
    at_once = parts > 1 and 4 * parts * m >= k and n >= 1536
    columns = min(64 if at_once else 128, max(16, triton.next_power_of_2(m)))
    spread = 1 if at_once else parts
    partial = out if spread == 1 else torch.empty((parts, m, n), dtype=torch.float32, device=q.device)
    _small_product[(triton.cdiv(n, rows), spread, triton.cdiv(m, columns))](
        q, s, w, scales, partial, m, n, k, each,
        EVEN=k % 128 == 0, AT_ONCE=at_once, ROWS=rows, COLUMNS=columns,
        num_warps=4, num_stages=5 if columns <= 64 else 4,
    )  # fmt: skip
    if spread > 1:
        size = 1024 if m * n > 1024 * _PROGRAMS else 256
        _sum_parts[(triton.cdiv(m * n, size),)](partial, out, m * n, parts, SIZE=size, num_warps=4)
    return out


def _large(q: Tensor, s: Tensor, w: Tensor, scales: Tensor, out: Tensor) -> Tensor:
    (m, k), n = q.shape, w.shape[0]
    wide = triton.cdiv(m, 128) * triton.cdiv(n, 128) >= 132
    rows = 128 if wide else 64
    grid = (triton.cdiv(m, rows) * triton.cdiv(n, 128),)
    _large_product[grid](
        q, s, w, scales, out, m, n, k,
        EVEN=k % 128 == 0, ROWS=rows, GROUP=16, num_warps=8 if wide else 4, num_stages=4,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["m"])
def _small_product(
    q, s, w, scales, out, m, n, k, each,
    EVEN: tl.constexpr, AT_ONCE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile [ROWS of N, COLUMNS of M] over one part of K, into out [parts, M, N]; AT_ONCE: over all parts, into
    out [M, N], each summed by itself and then added, as _sum_parts would."""
    blocks = tl.cdiv(k, 128)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, 128)
    first = 0 if AT_ONCE else tl.program_id(1) * each
    end = blocks if AT_ONCE else tl.minimum(first + each, blocks)
    rows_in, columns_in = row < n, column < m
    # A masked row repeats row 0: its products are not stored.
    safe_row, safe_column = tl.where(rows_in, row, 0).to(tl.int64), tl.where(columns_in, column, 0)
    w_at = w + safe_row[:, None] * k + inner[None, :]
    q_at = q + safe_column[None, :] * k + inner[:, None]
    ws_at = scales + tl.program_id(0) * ROWS // 128 * blocks
    s_at = s + safe_column * blocks
    part = tl.zeros((ROWS, COLUMNS), tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    row_scale, scale = tl.load(s_at + first), tl.load(ws_at + first)
    for block in range(first, end):
        # The next scales are asked for before they are needed: Triton prefetches only what dots take.
        factor = row_scale * scale
        ahead = tl.minimum(block + 1, end - 1)
        row_scale, scale = tl.load(s_at + ahead), tl.load(ws_at + ahead)
        if EVEN:
            weights = tl.load(w_at + block * 128)
            values = tl.load(q_at + block * 128)
        else:
            inside = inner < k - block * 128
            weights = tl.load(w_at + block * 128, mask=inside[None, :], other=0.0)
            values = tl.load(q_at + block * 128, mask=inside[:, None], other=0.0)
        part += tl.dot(weights, values) * factor[None, :]
        if AT_ONCE:
            ended = (block + 1) % each == 0
            total = tl.where(ended, total + part, total)
            part = tl.where(ended, 0.0, part)
    total += part
    target = out + tl.program_id(1).to(tl.int64) * m * n + column[None, :] * n + row[:, None]
    tl.store(target, total.to(out.dtype.element_ty), mask=rows_in[:, None] & columns_in[None, :])


@triton.jit(do_not_specialize=["size"])
def _sum_parts(partial, out, size, parts, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < size
    total = tl.zeros((SIZE,), tl.float32)
    for part in range(parts):
        total += tl.load(partial + part * size + at, mask=inside, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["m"])
def _large_product(q, s, w, scales, out, m, n, k, EVEN: tl.constexpr, ROWS: tl.constexpr, GROUP: tl.constexpr):
    """A tile [ROWS of M, 128 of N] over all of K; programs go down GROUP tiles of M before the next of N."""
    blocks, across = tl.cdiv(k, 128), tl.cdiv(n, 128)
    in_group = GROUP * across
    first = tl.program_id(0) // in_group * GROUP
    height = tl.minimum(tl.cdiv(m, ROWS) - first, GROUP)
    row = (first + tl.program_id(0) % in_group % height) * ROWS + tl.arange(0, ROWS)
    tile = tl.program_id(0) % in_group // height
    column = tile * 128 + tl.arange(0, 128)
    inner = tl.arange(0, 128)
    safe_row, safe_column = tl.where(row < m, row, 0).to(tl.int64), tl.where(column < n, column, 0).to(tl.int64)
    q_at = q + safe_row[:, None] * k + inner[None, :]
    w_at = w + safe_column[None, :] * k + inner[:, None]
    s_at = s + safe_row * blocks
    scale_at = scales + tile * blocks
    total = tl.zeros((ROWS, 128), tl.float32)
    row_scale, scale = tl.load(s_at), tl.load(scale_at)
    for block in range(blocks):
        factor = row_scale * scale
        ahead = tl.minimum(block + 1, blocks - 1)
        row_scale, scale = tl.load(s_at + ahead), tl.load(scale_at + ahead)
        if EVEN:
            values = tl.load(q_at + block * 128)
            weights = tl.load(w_at + block * 128)
        else:
            inside = inner < k - block * 128
            values = tl.load(q_at + block * 128, mask=inside[None, :], other=0.0)
            weights = tl.load(w_at + block * 128, mask=inside[:, None], other=0.0)
        total += tl.dot(values, weights) * factor[:, None]
    target = out + row.to(tl.int64)[:, None] * n + column[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=(row < m)[:, None] & (column < n)[None, :])
