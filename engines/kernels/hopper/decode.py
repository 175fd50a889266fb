"""Attention of one query a sequence over a paged cache, for GQA and MLA: the context is split over programs.

A sequence's context is cut by its own length alone, so that its result is the same in any batch. Each part leaves its
output and the logarithm of its sum; a second kernel puts them together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PARTS = 32  # at most, of one sequence
_LEAST = 64  # positions that a part has at least: shorter ones cost more to put together than they save
_HEADS = 16  # query heads in a tile: mma's smallest M


def gqa_decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, pages: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """See engines.kernels.attention."""
    batch, heads, size = q.shape
    kv_heads, value_size = k_cache.shape[1], v_cache.shape[2]
    group = heads // kv_heads
    main, rest = halves(size)
    value = max(16, triton.next_power_of_2(value_size))
    partial, sums, parts = _room(q, value_size, pages)
    if batch:
        _decode[(batch, kv_heads * triton.cdiv(group, _HEADS), parts)](
            q, q, k_cache, v_cache, pages, lengths, partial, sums, scale,
            heads, group, q.stride(0), q.stride(1), 0, 0,
            k_cache.stride(0), k_cache.stride(1), v_cache.stride(0), v_cache.stride(1), pages.stride(0),
            LATENT=False, SIZE=size, VALUE_SIZE=value_size, MAIN=main, REST=rest, VALUE=value,
            HEADS=_HEADS, KEYS=64 if k_cache.element_size() == 2 else 32, LEAST=_LEAST, PARTS=PARTS,
            num_warps=4, num_stages=2,
        )  # fmt: skip
    return _together(q, partial, sums, lengths)


def mla_decode(q_latent: Tensor, q_rope: Tensor, cache: Tensor, pages: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """See engines.kernels.attention."""
    batch, heads, latent = q_latent.shape
    main, rest = max(16, triton.next_power_of_2(latent)), max(16, triton.next_power_of_2(q_rope.shape[2]))
    partial, sums, parts = _room(q_latent, latent, pages)
    if batch:
        _decode[(batch, triton.cdiv(heads, _HEADS), parts)](
            q_latent, q_rope, cache, cache, pages, lengths, partial, sums, scale,
            heads, heads, q_latent.stride(0), q_latent.stride(1), q_rope.stride(0), q_rope.stride(1),
            cache.stride(0), 0, cache.stride(0), 0, pages.stride(0),
            LATENT=True, SIZE=cache.shape[1], VALUE_SIZE=latent, MAIN=main, REST=rest, VALUE=main,
            HEADS=_HEADS, KEYS=32 if cache.element_size() == 2 else 16, LEAST=_LEAST, PARTS=PARTS,
            num_warps=4, num_stages=2,
        )  # fmt: skip
    return _together(q_latent, partial, sums, lengths)


def halves(size: int) -> tuple[int, int]:
    """A head's size as two powers of two, both at least 16 (or no second): 192 is 128 and 64, 80 is 64 and 16."""
    main = triton.next_power_of_2(size + 1) // 2
    if size <= 16 or size == main:
        return max(16, main), 0
    rest = max(16, triton.next_power_of_2(size - main))
    return (main, rest) if rest < main else (2 * main, 0)


def _room(q: Tensor, value_size: int, pages: Tensor) -> tuple[Tensor, Tensor, int]:
    """Room for the outputs of the parts and for the logarithms of their sums; and how many parts there can be."""
    parts = max(1, min(PARTS, triton.cdiv(pages.shape[1], _LEAST)))
    shape = (q.shape[0], q.shape[1], parts)
    partial = torch.empty((*shape, value_size), dtype=torch.float32, device=q.device)
    return partial, torch.empty(shape, dtype=torch.float32, device=q.device), parts


def _together(q: Tensor, partial: Tensor, sums: Tensor, lengths: Tensor) -> Tensor:
    batch, heads, parts, size = partial.shape
    out = torch.empty((batch, heads, size), dtype=q.dtype, device=q.device)
    if batch:
        _combine[(batch, heads)](
            partial, sums, lengths, out, heads, parts, size,
            SIZE=triton.next_power_of_2(size), LEAST=_LEAST, PARTS=PARTS, num_warps=4 if size > 128 else 1,
        )  # fmt: skip
    return out


@triton.jit
def _part_size(length, LEAST: tl.constexpr, PARTS: tl.constexpr):
    """Positions in each part of a sequence: a multiple of LEAST, by its length alone."""
    return tl.cdiv(tl.cdiv(length, PARTS), LEAST) * LEAST


@triton.jit
def _decode(
    q, q_rope, k_cache, v_cache, pages, lengths, partial, sums, scale,
    heads, group, q_row, q_head, rope_row, rope_head,
    k_slot, k_head, v_slot, v_head, pages_row,
    LATENT: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    MAIN: tl.constexpr, REST: tl.constexpr, VALUE: tl.constexpr,
    HEADS: tl.constexpr, KEYS: tl.constexpr, LEAST: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One part of one sequence for HEADS query heads of one key head; LATENT: values are the keys' first dimensions."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(2)
    length = tl.load(lengths + row)
    each = _part_size(length, LEAST, PARTS)
    first = part * each
    if first >= length:
        return
    tiles = tl.cdiv(group, HEADS)
    kv_head = (tl.program_id(1) // tiles).to(tl.int64)
    member = tl.program_id(1) % tiles * HEADS + tl.arange(0, HEADS)
    head = kv_head * group + member
    inside = (member < group)[:, None]
    main, value, rest = tl.arange(0, MAIN), tl.arange(0, VALUE), tl.arange(0, REST if REST > 0 else 16)
    # Where MLA has its latent and its rotated part, GQA has the two halves of a head.
    MAIN_SIZE: tl.constexpr = VALUE_SIZE if LATENT else (SIZE if SIZE < MAIN else MAIN)
    in_main, in_rest, in_value = (
        (main < MAIN_SIZE)[None, :],
        (rest < SIZE - MAIN_SIZE)[None, :],
        (value < VALUE_SIZE)[None, :],
    )
    q_at = q + row * q_row + head[:, None] * q_head
    query = tl.load(q_at + main[None, :], mask=inside & in_main, other=0.0)
    if REST > 0:
        rest_at = q_rope + row * rope_row + head[:, None] * rope_head if LATENT else q_at + MAIN_SIZE
        query_rest = tl.load(rest_at + rest[None, :], mask=inside & in_rest, other=0.0)
    highest = tl.full((HEADS,), -float("inf"), tl.float32)
    weight = tl.zeros((HEADS,), tl.float32)
    total = tl.zeros((HEADS, VALUE), tl.float32)
    for start in range(first, tl.minimum(first + each, length), KEYS):
        position = start + tl.arange(0, KEYS)
        seen = position < length
        slot = tl.load(pages + row * pages_row + position, mask=seen, other=0).to(tl.int64)
        k_at = k_cache + slot[:, None] * k_slot + kv_head * k_head
        here = seen[:, None]
        keys = tl.load(k_at + main[None, :], mask=here & in_main, other=0.0)
        score = tl.dot(query, keys.T, input_precision="ieee")
        if REST > 0:
            keys_rest = tl.load(k_at + MAIN_SIZE + rest[None, :], mask=here & in_rest, other=0.0)
            score += tl.dot(query_rest, keys_rest.T, input_precision="ieee")
        score = tl.where(seen[None, :], score * scale, -float("inf"))
        higher = tl.maximum(highest, tl.max(score, 1))
        share = tl.exp(score - higher[:, None])
        fade = tl.exp(highest - higher)
        if LATENT:
            values = keys
        else:
            v_at = v_cache + slot[:, None] * v_slot + kv_head * v_head
            values = tl.load(v_at + value[None, :], mask=here & in_value, other=0.0)
        total = total * fade[:, None] + tl.dot(share.to(values.dtype), values, input_precision="ieee")
        weight = weight * fade + tl.sum(share, 1)
        highest = higher
    at = (row * heads + head) * tl.num_programs(2) + part
    target = partial + at[:, None] * VALUE_SIZE + value[None, :]
    tl.store(target, total / weight[:, None], mask=inside & in_value)
    tl.store(sums + at, highest + tl.log(weight), mask=member < group)


@triton.jit
def _combine(
    partial, sums, lengths, out, heads, parts, size, SIZE: tl.constexpr, LEAST: tl.constexpr, PARTS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = row * heads + tl.program_id(1)
    length = tl.load(lengths + row)
    each = _part_size(length, LEAST, PARTS)
    inner = tl.arange(0, SIZE)
    inside = inner < size
    highest = -float("inf")
    weight = 0.0
    total = tl.zeros((SIZE,), tl.float32)
    for part in range(tl.cdiv(length, tl.maximum(each, 1))):
        log_sum = tl.load(sums + at * parts + part)
        higher = tl.maximum(highest, log_sum)
        fade, share = tl.exp(highest - higher), tl.exp(log_sum - higher)
        total = total * fade + tl.load(partial + (at * parts + part) * size + inner, mask=inside, other=0.0) * share
        weight = weight * fade + share
        highest = higher
    result = total / weight if length > 0 else total
    tl.store(out + at * size + inner, result.to(out.dtype.element_ty), mask=inside)
