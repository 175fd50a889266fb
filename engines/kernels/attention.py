"""Attention over a paged cache (page size 1: a page is the slot of one token), for GQA and for MLA.

Caches: GQA keeps k [S, KH, D] and v [S, KH, DV]; MLA keeps one row a token [S, L + R]: the normed latent, then the
rotated key that all heads share. `pages` int32 [B, W] names the slot of each position of each sequence; `lengths`
int32 [B] counts the positions that count, the newest token's included.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engines.kernels.norm import rms_norm_reference
from engines.kernels.rope import apply_rope_reference


def write_cache(cache: Tensor, values: Tensor, slots: Tensor) -> None:
    """Put values [T, ...] into the slots [T] of the cache; slot 0 takes what is padding."""
    cache.index_copy_(0, slots.long(), values.reshape(-1, *cache.shape[1:]).to(cache.dtype))


def write_latent(
    cache: Tensor,
    kv: Tensor,
    w: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    *,
    interleaved: bool,
) -> None:
    """Put MLA's rows into the slots [T] of the cache [S, L + R]: of kv [T, L + R], which may be a slice, the first
    L = len(w) are normed (RMS, times w) and the last R = 2 x cos.shape[1] turned to their positions [T]."""
    if kv.is_cuda:
        from engines.kernels.hopper import latent

        latent.write_latent(cache, kv, w, eps, cos, sin, positions, slots, interleaved)
        return
    write_latent_reference(cache, kv, w, eps, cos, sin, positions, slots, interleaved=interleaved)


def write_latent_reference(
    cache: Tensor,
    kv: Tensor,
    w: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    *,
    interleaved: bool,
) -> None:
    """The twin: norm, rope and write_cache in turn."""
    key = kv[:, None, w.shape[0] :]
    turned = apply_rope_reference(key[:, :0], key, cos, sin, positions, interleaved=interleaved)[1]
    normed = rms_norm_reference(kv[:, : w.shape[0]], w, eps)
    write_cache(cache, torch.cat((normed, turned[:, 0]), -1), slots)


def gqa_decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, pages: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """[B, H, DV] of one query a sequence, q [B, H, D], which stands at position lengths - 1."""
    if q.is_cuda:
        from engines.kernels.hopper import decode

        return decode.gqa_decode(q, k_cache, v_cache, pages, lengths, scale)
    return gqa_decode_reference(q, k_cache, v_cache, pages, lengths, scale)


def gqa_decode_reference(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, pages: Tensor, lengths: Tensor, scale: float
) -> Tensor:
    """The twin: one attention a sequence, in which the queries that share a key head are its rows."""
    batch, heads, size = q.shape
    out = q.new_zeros((batch, heads, v_cache.shape[2]))
    grouped = _wide(q).view(batch, k_cache.shape[1], -1, size)
    for index, slots in enumerate(_rows(pages, lengths)):
        if slots is None:
            continue
        k, v = (_taken(cache, slots).transpose(0, 1) for cache in (k_cache, v_cache))
        found = F.scaled_dot_product_attention(grouped[index : index + 1], k[None], v[None], scale=scale)
        out[index] = found[0].flatten(0, 1)
    return out


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
    """[T, H, DV] of the queries q [T, H, D] of sequences laid end to end: sequence b owns starts[b]:starts[b + 1].

    Query i of n stands at position lengths[b] - n + i and sees what is at or before it, keys of the cache alone.
    `longest_query` bounds n.
    """
    if q.is_cuda:
        from engines.kernels.hopper import prefill

        return prefill.gqa_prefill(q, k_cache, v_cache, pages, starts, lengths, scale, longest_query)
    return gqa_prefill_reference(q, k_cache, v_cache, pages, starts, lengths, scale, longest_query)


def gqa_prefill_reference(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    pages: Tensor,
    starts: Tensor,
    lengths: Tensor,
    scale: float,
    longest_query: int,
) -> Tensor:
    """The twin: one attention a sequence, the query heads that share a key head side by side."""
    out = q.new_zeros((*q.shape[:2], v_cache.shape[2]))
    wide = _wide(q).view(q.shape[0], k_cache.shape[1], -1, q.shape[2])
    for (first, end), slots in zip(pairwise(starts.tolist()), _rows(pages, lengths), strict=True):
        if first == end or slots is None:
            continue
        k, v = (_taken(cache, slots).transpose(0, 1).unsqueeze(1) for cache in (k_cache, v_cache))
        queries = wide[first:end].permute(1, 2, 0, 3)
        shape = queries.shape[:2]
        found = _causal(queries, k.expand(*shape, -1, -1), v.expand(*shape, -1, -1), scale)
        out[first:end] = found.permute(2, 0, 1, 3).flatten(1, 2)
    return out


def mla_decode(q_latent: Tensor, q_rope: Tensor, cache: Tensor, pages: Tensor, lengths: Tensor, scale: float) -> Tensor:
    """The latent outputs [B, H, L] of one query a sequence: q_latent [B, H, L] (through W_UK), q_rope [B, H, R].

    Keys are the cache's rows, values their first L dimensions.
    """
    if q_latent.is_cuda:
        from engines.kernels.hopper import decode

        return decode.mla_decode(q_latent, q_rope, cache, pages, lengths, scale)
    return mla_decode_reference(q_latent, q_rope, cache, pages, lengths, scale)


def mla_decode_reference(
    q_latent: Tensor, q_rope: Tensor, cache: Tensor, pages: Tensor, lengths: Tensor, scale: float
) -> Tensor:
    """The twin."""
    latent = q_latent.shape[2]
    queries = _wide(torch.cat((q_latent, q_rope), -1)) * scale
    out = torch.zeros_like(q_latent)
    for index, slots in enumerate(_rows(pages, lengths)):
        if slots is None:
            continue
        rows = _taken(cache, slots)
        out[index] = (queries[index] @ rows.T).softmax(-1) @ rows[:, :latent]
    return out


def mla_prefill(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, kv_starts: Tensor, scale: float, longest_query: int
) -> Tensor:
    """[T, H, DV] of q [T, H, D] over k [L, H, D] and v [L, H, DV], whole contexts laid end to end.

    Sequence b owns queries starts[b]:starts[b + 1] and keys kv_starts[b]:kv_starts[b + 1]; its queries are the last
    of its positions, and each sees what is at or before it. `longest_query` bounds a sequence's queries.
    """
    if q.is_cuda:
        from engines.kernels.hopper import prefill

        return prefill.mla_prefill(q, k, v, starts, kv_starts, scale, longest_query)
    return mla_prefill_reference(q, k, v, starts, kv_starts, scale, longest_query)


def mla_prefill_reference(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, kv_starts: Tensor, scale: float, longest_query: int
) -> Tensor:
    """The twin: one attention a sequence."""
    out = q.new_zeros((*q.shape[:2], v.shape[2]))
    spans = zip(pairwise(starts.tolist()), pairwise(kv_starts.tolist()), strict=True)
    for (first, end), (kv_first, kv_end) in spans:
        if first == end:
            continue
        parts = (q[first:end], k[kv_first:kv_end], v[kv_first:kv_end])
        queries, keys, values = (_wide(part).transpose(0, 1).unsqueeze(0) for part in parts)
        out[first:end] = _causal(queries, keys, values, scale)[0].transpose(0, 1)
    return out


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _rows(pages: Tensor, lengths: Tensor) -> list[slice | Tensor | None]:
    """The slots of each sequence: a slice where they are one run, which spares the copy; None for no slots at all."""
    table = pages.cpu().numpy()
    return [_run(table[index, :length]) if length else None for index, length in enumerate(lengths.tolist())]


def _run(slots: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> slice | Tensor:
    if slots[-1] - slots[0] == len(slots) - 1 and bool((np.diff(slots) == 1).all()):
        return slice(int(slots[0]), int(slots[0]) + len(slots))
    return torch.from_numpy(slots.astype(np.int64))


def _taken(cache: Tensor, slots: slice | Tensor) -> Tensor:
    return _wide(cache[slots] if isinstance(slots, slice) else cache.index_select(0, slots.to(cache.device)))


def _causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention whose last query sees all keys, the one before all but one, and so on; [..., n, D] each."""
    queries, keys = q.shape[-2], k.shape[-2]
    if queries == 1:
        return F.scaled_dot_product_attention(q, k, v, scale=scale)
    if queries == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    seen = torch.ones((queries, keys), dtype=torch.bool, device=q.device).tril(keys - queries)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)
