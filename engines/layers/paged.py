"""Decoding over pages on a CPU: what each sequence's pages are is looked up once a step, not once a layer.

It computes what engines.kernels.attention.gqa_decode computes.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

Rows = slice | Tensor


def rows_of(pages: Tensor, lengths: Tensor) -> list[Rows]:
    """The slots of each sequence's positions; a slice where they are neighbours, which spares copies."""
    found: list[Rows] = []
    for row, length in zip(pages, lengths.tolist(), strict=True):
        slots = row[:length]
        listed = slots.tolist()
        if all(after == before + 1 for before, after in pairwise(listed)):
            found.append(slice(listed[0], listed[0] + length) if length else slice(0, 0))
        else:
            found.append(slots.long())
    return found


def decode(q: Tensor, cache: Tensor, rows: list[Rows], scale: float) -> Tensor:
    """[B, H, D] of one query a sequence, q [B, H, D], over cache [slots, 2, KH, D]."""
    grouped = q.view(len(q), 1, cache.shape[2], -1, q.shape[2])
    found = []
    for queries, taken in zip(grouped, rows, strict=True):
        kept = cache[taken] if isinstance(taken, slice) else cache.index_select(0, taken)
        k, v = kept.permute(1, 2, 0, 3).unsqueeze(1)
        found.append(functional.scaled_dot_product_attention(queries, k, v, scale=scale))
    return (found[0] if len(found) == 1 else torch.cat(found)).view(q.shape)
