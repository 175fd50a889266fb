"""Causal attention of many queries a sequence: over the paged cache (GQA), or over contexts laid end to end (MLA)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engines.kernels.hopper.decode import halves


def gqa_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    pages: Tensor,
    starts: Tensor,
    lengths: Tensor,
    scale: float,
    longest_query: int,
) -> Tensor:
    """See engines.kernels.attention."""
    return _launch(q, k_cache, v_cache, starts, lengths, pages, scale, longest_query)


def mla_prefill(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, kv_starts: Tensor, scale: float, longest_query: int
) -> Tensor:
    """See engines.kernels.attention."""
    return _launch(q, k, v, starts, kv_starts, None, scale, longest_query)


def _launch(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, ends: Tensor, pages: Tensor | None, scale: float, longest: int
) -> Tensor:
    """`ends` are lengths where there are pages, else where each sequence's keys start and the last one's end."""
    tokens, heads, size = q.shape
    value_size = v.shape[2]
    out = torch.empty((tokens, heads, value_size), dtype=q.dtype, device=q.device)
    if not tokens or not longest:
        return out
    main, rest = halves(size)
    rows, keys = (16, 16) if q.element_size() > 2 else (128, 64) if longest > 64 else (64, 64)
    grid = (triton.cdiv(longest, rows), heads, starts.shape[0] - 1)
    _prefill[grid](
        q, k, v, out, starts, ends, starts if pages is None else pages, scale,
        heads // k.shape[1], q.stride(0), q.stride(1), k.stride(0), k.stride(1),
        v.stride(0), v.stride(1), heads * value_size, 0 if pages is None else pages.stride(0),
        PAGED=pages is not None, SIZE=size, VALUE_SIZE=value_size,
        MAIN=main, REST=rest, VALUE=max(16, triton.next_power_of_2(value_size)),
        ROWS=rows, KEYS=keys, num_warps=8 if rows == 128 else 4, num_stages=3 if rows == 128 else 2,
    )  # fmt: skip
    return out


@triton.jit
def _tile(at, inside, WHOLE: tl.constexpr):
    if WHOLE:
        tile = tl.load(at)
    else:
        tile = tl.load(at, mask=inside, other=0.0)
    return tile


@triton.jit
def _attend(
    query, query_rest, highest, weight, total, start, end, last, pages, k, v, k_row, v_row, factor,
    PAGED: tl.constexpr, MASKED: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    MAIN: tl.constexpr, REST: tl.constexpr, VALUE: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Keys start:end for a tile of queries, the newest key of each being `last` [ROWS]; softmax in powers of two."""
    main, value, rest = tl.arange(0, MAIN), tl.arange(0, VALUE), tl.arange(0, REST if REST > 0 else 16)
    MAIN_SIZE: tl.constexpr = SIZE if SIZE < MAIN else MAIN
    in_main, in_rest, in_value = (
        (main < MAIN_SIZE)[None, :],
        (rest < SIZE - MAIN_SIZE)[None, :],
        (value < VALUE_SIZE)[None, :],
    )
    for first in range(start, end, KEYS):
        position = first + tl.arange(0, KEYS)
        here = (position < end if MASKED else position >= 0)[:, None]
        slot = tl.where(position < end, position, 0) if MASKED else position
        if PAGED:
            slot = tl.load(pages + slot)
        k_at = k + slot.to(tl.int64)[:, None] * k_row
        keys = _tile(k_at + main[None, :], here & in_main, not MASKED and MAIN_SIZE == MAIN)
        score = tl.dot(query, keys.T, input_precision="ieee")
        if REST > 0:
            keys_rest = _tile(k_at + MAIN_SIZE + rest[None, :], here & in_rest, not MASKED and MAIN_SIZE + REST == SIZE)
            score += tl.dot(query_rest, keys_rest.T, input_precision="ieee")
        score *= factor
        if MASKED:
            score = tl.where(position[None, :] <= last[:, None], score, -float("inf"))
        higher = tl.maximum(highest, tl.max(score, 1))
        share = tl.exp2(score - higher[:, None])
        fade = tl.exp2(highest - higher)
        v_at = v + slot.to(tl.int64)[:, None] * v_row + value[None, :]
        values = _tile(v_at, here & in_value, not MASKED and VALUE == VALUE_SIZE)
        total = total * fade[:, None] + tl.dot(share.to(values.dtype), values, input_precision="ieee")
        weight = weight * fade + tl.sum(share, 1)
        highest = higher
    return highest, weight, total


@triton.jit
def _prefill(
    q, k, v, out, starts, ends, pages, scale, group,
    q_row, q_head, k_row, k_head, v_row, v_head, out_row, pages_row,
    PAGED: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    MAIN: tl.constexpr, REST: tl.constexpr, VALUE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """ROWS queries of one sequence and head. The longest tiles come first: they end last."""
    sequence, head = tl.program_id(2), tl.program_id(1).to(tl.int64)
    begin = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - begin
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    if tile * ROWS >= count:
        return
    if PAGED:
        present = tl.load(ends + sequence)
    else:
        kv_begin = tl.load(ends + sequence).to(tl.int64)
        present = (tl.load(ends + sequence + 1) - kv_begin).to(tl.int32)
        k += kv_begin * k_row
        v += kv_begin * v_row
    k += head // group * k_head
    v += head // group * v_head
    row = tile * ROWS + tl.arange(0, ROWS)
    inside = (row < count)[:, None]
    main, value, rest = tl.arange(0, MAIN), tl.arange(0, VALUE), tl.arange(0, REST if REST > 0 else 16)
    MAIN_SIZE: tl.constexpr = SIZE if SIZE < MAIN else MAIN
    q_at = q + (begin + row).to(tl.int64)[:, None] * q_row + head * q_head
    query = tl.load(q_at + main[None, :], mask=inside & (main < MAIN_SIZE)[None, :], other=0.0)
    query_rest = query
    if REST > 0:
        in_rest = inside & (rest < SIZE - MAIN_SIZE)[None, :]
        query_rest = tl.load(q_at + MAIN_SIZE + rest[None, :], mask=in_rest, other=0.0)
    highest = tl.full((ROWS,), -float("inf"), tl.float32)
    weight = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS, VALUE), tl.float32)
    past = present - count  # positions before the first query
    last = past + tl.minimum(row, count - 1)
    free = (past + tile * ROWS + 1) // KEYS * KEYS  # keys that every query of the tile sees
    table = pages + sequence.to(tl.int64) * pages_row
    factor = scale * 1.4426950408889634
    highest, weight, total = _attend(
        query, query_rest, highest, weight, total, 0, free, last, table, k, v, k_row, v_row, factor,
        PAGED, False, SIZE, VALUE_SIZE, MAIN, REST, VALUE, KEYS,
    )  # fmt: skip
    highest, weight, total = _attend(
        query, query_rest, highest, weight, total, free, tl.minimum(past + (tile + 1) * ROWS, present), last,
        table, k, v, k_row, v_row, factor, PAGED, True, SIZE, VALUE_SIZE, MAIN, REST, VALUE, KEYS,
    )  # fmt: skip
    at = out + (begin + row).to(tl.int64)[:, None] * out_row + head * VALUE_SIZE + value[None, :]
    tl.store(at, (total / weight[:, None]).to(out.dtype.element_ty), mask=inside & (value < VALUE_SIZE)[None, :])
