"""Mixtures of experts: tokens sorted by expert, one product over all experts' tiles, twice.

A block is up to ROWS tokens of one expert. How many blocks there are is known on the device alone, so the grid has
room for the most there can be and the rest end at once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engines.kernels.hopper.norm import silu_mul, silu_mul_quant
from engines.kernels.hopper.quant import quantize_activations

_EXACT_TOKENS = 256  # up to here what experts give is kept in float32 until it is summed
_CHUNK = 1024


class Blocks(NamedTuple):
    """`order` [T k]: the places of `ids`, sorted by expert. Block b is order[starts[b]:ends[b]] cut at `rows`.

    Its expert is experts[b], or -1 for a block that there is not. `single`: block b is place b alone, for expert
    experts[b], and nothing else is read: so it is with one token, which needs no sorting.
    """

    order: Tensor
    experts: Tensor
    starts: Tensor
    ends: Tensor
    rows: int
    single: bool = False


class Matrix(NamedTuple):
    """Weights [E, N, K] and, for block FP8, their scales."""

    w: Tensor
    scales: Tensor | None


class Tile(NamedTuple):
    """How a block's product is cut: `columns` of N a program, which go down `group` blocks before the next columns."""

    columns: int
    group: int
    warps: int
    stages: int


def tile_for(rows: int, places: int) -> Tile:
    """The quickest tile on an H200 for blocks of so many rows, of so many places in all."""
    if rows == 16:
        return Tile(128, 1, 8 if places <= 512 else 4, 4)
    return Tile(128, 1, 4, 4) if rows == 32 else Tile(128, 8, 8 if rows == 128 else 4, 4)


def fused_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_scales: Tensor,
    down: Tensor,
    down_scales: Tensor,
    quantised: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """See engines.kernels.experts."""
    if not all(w.is_contiguous() for w in (gate_up, gate_up_scales, down, down_scales)):
        raise ValueError("experts' weights and scales lie whole in memory; call contiguous() once, at load")
    found = arrange(ids, gate_up.shape[0])
    q, s = quantised or quantize_activations(x)
    hidden = first_product(q, s, Matrix(gate_up, gate_up_scales), found, ids, x.dtype)
    q, s = silu_mul_quant(hidden)
    return second_product(q, s, Matrix(down, down_scales), found, weights, x)


def fused_experts_plain(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """See engines.kernels.experts."""
    found = arrange(ids, gate_up.shape[0])
    hidden = first_product(x.contiguous(), None, Matrix(gate_up, None), found, ids, x.dtype)
    return second_product(silu_mul(hidden), None, Matrix(down.contiguous(), None), found, weights, x)


def rows_for(places: int, experts: int) -> int:
    """How many tokens a block has: more where an expert has more of them on average, as measured on an H200."""
    if places <= 16 * experts:
        return 16
    return next((rows for rows in (32, 64) if 1.5 * places <= rows * experts), 128)


def arrange(ids: Tensor, experts: int) -> Blocks:
    """Sort the places of ids [T, k] by expert, without looking at them from the host. The order is stable."""
    places = ids.numel()
    if len(ids) == 1:
        place = ids.flatten()
        return Blocks(place, place, place, place, 16, single=True)
    rows = rows_for(places, experts)
    most = min(places, experts) + places // rows
    order = torch.empty(places, dtype=torch.int32, device=ids.device)
    table = torch.empty((3, most), dtype=torch.int32, device=ids.device)
    if places == 0:
        return Blocks(order, table[0], table[1], table[2], rows)
    ids = ids.contiguous()
    one_chunk = places <= _CHUNK
    counts = table if one_chunk else torch.empty(experts, dtype=torch.int32, device=ids.device)
    if not one_chunk:
        _count[(experts,)](ids, counts, places, CHUNK=_CHUNK, num_warps=4)
    _arrange[(experts,)](
        ids, counts, order, table, experts, places, most,
        EXPERTS=triton.next_power_of_2(experts + 1), ROWS=rows, COUNTED=not one_chunk,
        CHUNK=max(16, triton.next_power_of_2(places)) if one_chunk else _CHUNK, num_warps=4,
    )  # fmt: skip
    return Blocks(order, table[0], table[1], table[2], rows)


def first_product(
    x: Tensor, s: Tensor | None, matrix: Matrix, found: Blocks, ids: Tensor, dtype: torch.dtype
) -> Tensor:
    """Rows of x [T, K] into [T k, N], sorted by expert."""
    out = torch.empty((ids.numel(), matrix.w.shape[1]), dtype=dtype, device=x.device)
    _launch(x, s, matrix, out, found, None, ids.shape[1])
    return out


def second_product(x: Tensor, s: Tensor | None, matrix: Matrix, found: Blocks, weights: Tensor, like: Tensor) -> Tensor:
    """Sorted rows [T k, K] into their places, weighted, and summed over each token's k."""
    tokens, active = weights.shape
    size = matrix.w.shape[1]
    kept = torch.float32 if tokens <= _EXACT_TOKENS else like.dtype
    parts = torch.empty((tokens * active, size), dtype=kept, device=like.device)
    _launch(x, s, matrix, parts, found, weights.contiguous(), active)
    out = torch.empty((tokens, size), dtype=like.dtype, device=like.device)
    if tokens:
        _sum_active[(tokens, triton.cdiv(size, 1024))](parts, out, size, ACTIVE=active, SIZE=1024, num_warps=4)
    return out


def _launch(
    x: Tensor, s: Tensor | None, matrix: Matrix, out: Tensor, found: Blocks, weights: Tensor | None, active: int
) -> None:
    _, n, k = matrix.w.shape
    if not found.order.numel():
        return
    tile = tile_for(found.rows, found.order.numel())
    inner = 128 if matrix.scales is not None else 64 if x.element_size() == 2 else 32
    _grouped[(found.experts.shape[0] * triton.cdiv(n, tile.columns),)](
        x, x if s is None else s, matrix.w, x if matrix.scales is None else matrix.scales, out,
        found.order, x if weights is None else weights, found.experts, found.starts, found.ends, n, k, active,
        FIRST=weights is None, SINGLE=found.single, SCALED=matrix.scales is not None,
        EVEN=k % inner == 0, SWAPPED=found.rows <= 32, ROWS=found.rows, COLUMNS=tile.columns, INNER=inner,
        GROUP=tile.group, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


@triton.jit(do_not_specialize=["places"])
def _count(ids, counts, places, CHUNK: tl.constexpr):
    expert = tl.program_id(0)
    total = tl.zeros((CHUNK,), tl.int32)
    for first in range(0, places, CHUNK):
        at = first + tl.arange(0, CHUNK)
        total += (tl.load(ids + at, mask=at < places, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(total, 0))


@triton.jit(do_not_specialize=["places", "most"])
def _arrange(
    ids, counts, order, table, experts, places, most,
    EXPERTS: tl.constexpr, ROWS: tl.constexpr, COUNTED: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One program an expert: its part of the order and of the table of blocks; the first ends the table with -1."""
    me = tl.program_id(0)
    expert = tl.arange(0, EXPERTS)
    if COUNTED:
        count = tl.load(counts + expert, mask=expert < experts, other=0)
    else:
        every = tl.arange(0, CHUNK)
        id = tl.load(ids + every, mask=every < places, other=EXPERTS - 1).to(tl.int32)
        count = tl.where(expert < experts, tl.histogram(id, EXPERTS), 0)
    pieces = (count + ROWS - 1) // ROWS
    place = tl.sum(tl.where(expert < me, count, 0), 0)
    mine = tl.sum(tl.where(expert == me, count, 0), 0)
    block = tl.sum(tl.where(expert < me, pieces, 0), 0)
    for piece in range((mine + ROWS - 1) // ROWS):
        tl.store(table + block + piece, me)
        tl.store(table + most + block + piece, place + piece * ROWS)
        tl.store(table + 2 * most + block + piece, place + mine)
    if me == 0:
        for first in range(tl.sum(pieces, 0), most, 128):
            unused = first + tl.arange(0, 128)
            tl.store(table + unused, -1, mask=unused < most)
    for first in range(0, places, CHUNK):
        at = first + tl.arange(0, CHUNK)
        hit = (tl.load(ids + at, mask=at < places, other=-1) == me).to(tl.int32)
        tl.store(order + place + tl.cumsum(hit, 0) - 1, at, mask=hit > 0)
        place += tl.sum(hit, 0)


@triton.jit
def _grouped(
    x, s, w, scales, out, order, weights, experts, starts, ends, n, k, active,
    FIRST: tl.constexpr, SINGLE: tl.constexpr, SCALED: tl.constexpr, EVEN: tl.constexpr, SWAPPED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A block of tokens times COLUMNS rows of its expert's weights; SWAPPED has the weights on wgmma's M side."""
    across = tl.cdiv(n, COLUMNS)
    blocks = tl.num_programs(0) // across
    in_group = GROUP * across
    top = tl.program_id(0) // in_group * GROUP
    height = tl.minimum(blocks - top, GROUP)
    block = top + tl.program_id(0) % in_group % height
    tile = tl.program_id(0) % in_group // height
    expert = tl.load(experts + block).to(tl.int64)
    if expert < 0:
        return
    if SINGLE:
        place = block + tl.arange(0, ROWS)
        inside = place == block
        origin = tl.where(inside, place, 0)
    else:
        place = tl.load(starts + block) + tl.arange(0, ROWS)
        inside = place < tl.load(ends + block)
        origin = tl.load(order + place, mask=inside, other=0)
    source = tl.where(inside, origin // active if FIRST else place, 0).to(tl.int64)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    inner = tl.arange(0, INNER)
    x_at = x + source[:, None] * k + inner[None, :]
    w_at = w + expert * n * k + tl.where(column < n, column, 0).to(tl.int64)[:, None] * k + inner[None, :]
    groups = tl.cdiv(k, 128)
    s_at = s + source * groups
    scale_at = scales + (expert * tl.cdiv(n, 128) + tile * COLUMNS // 128) * groups
    if SWAPPED:
        total = tl.zeros((COLUMNS, ROWS), tl.float32)
    else:
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
    steps = tl.cdiv(k, INNER)
    if SCALED:
        row_scale, scale = tl.load(s_at), tl.load(scale_at)
    for step in range(steps):
        if SCALED:  # the next scales are asked for before they are needed: Triton prefetches what dots take alone
            factor = row_scale * scale
            ahead = tl.minimum(step + 1, steps - 1)
            row_scale, scale = tl.load(s_at + ahead), tl.load(scale_at + ahead)
        if EVEN:
            values = tl.load(x_at + step * INNER)
            weight = tl.load(w_at + step * INNER)
        else:
            seen = (inner < k - step * INNER)[None, :]
            values = tl.load(x_at + step * INNER, mask=seen, other=0.0)
            weight = tl.load(w_at + step * INNER, mask=seen, other=0.0)
        if SWAPPED:
            part = tl.dot(weight, values.T, input_precision="ieee")
        else:
            part = tl.dot(values, weight.T, input_precision="ieee")
        if SCALED:
            part = part * (factor[None, :] if SWAPPED else factor[:, None])
        total += part
    if SWAPPED:
        total = total.T
    target = place
    if not FIRST:
        total = total * tl.load(weights + origin, mask=inside, other=0.0)[:, None]
        target = origin
    at = out + target.to(tl.int64)[:, None] * n + column[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=inside[:, None] & (column < n)[None, :])


@triton.jit
def _sum_active(parts, out, size, ACTIVE: tl.constexpr, SIZE: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    inside = column < size
    total = tl.zeros((SIZE,), tl.float32)
    for slot in tl.static_range(ACTIVE):
        total += tl.load(parts + (token * ACTIVE + slot) * size + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * size + column, total.to(out.dtype.element_ty), mask=inside)
