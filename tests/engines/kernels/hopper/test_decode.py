"""Decode attention over scattered pages, in one part and in many, against the twins in float64."""

from __future__ import annotations

import pytest
import torch

from engines.kernels.attention import gqa_decode_reference, mla_decode_reference
from tests.engines.kernels.hopper.interpreter import interpreted, relative

decode = interpreted("decode")
SLOTS = 400


def table() -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([1, 300, 65, 0], dtype=torch.int32)
    pages = torch.full((4, 310), SLOTS - 1, dtype=torch.int32)
    for row, length in enumerate(lengths.tolist()):
        pages[row, :length] = torch.randperm(SLOTS - 2)[:length].int() + 1
    return pages, lengths


@pytest.mark.parametrize(("heads", "kv_heads", "size", "value"), [(9, 3, 64, 64), (4, 4, 80, 48), (20, 1, 24, 16)])
def test_gqa(heads: int, kv_heads: int, size: int, value: int) -> None:
    torch.manual_seed(size)
    pages, lengths = table()
    k, v, q = torch.randn(SLOTS, kv_heads, size), torch.randn(SLOTS, kv_heads, value), torch.randn(4, heads, size)
    k[[0, SLOTS - 1]], v[[0, SLOTS - 1]] = torch.nan, torch.nan
    found = decode.gqa_decode(q, k, v, pages, lengths, 0.2)
    wanted = gqa_decode_reference(q.double(), k.double(), v.double(), pages, lengths, 0.2)
    assert relative(found, wanted) < 1e-6 and not found[3].any()
    alone = decode.gqa_decode(q[1:2], k, v, pages[1:2], lengths[1:2], 0.2)
    assert torch.equal(alone[0], found[1])


@pytest.mark.parametrize(("heads", "latent"), [(5, 32), (20, 64)])
def test_mla(heads: int, latent: int) -> None:
    torch.manual_seed(heads)
    pages, lengths = table()
    cache, queries, turned = torch.randn(SLOTS, latent + 16), torch.randn(4, heads, latent), torch.randn(4, heads, 16)
    cache[[0, SLOTS - 1]] = torch.nan
    found = decode.mla_decode(queries, turned, cache, pages, lengths, 0.2)
    wanted = mla_decode_reference(queries.double(), turned.double(), cache.double(), pages, lengths, 0.2)
    assert relative(found, wanted) < 1e-6 and not found[3].any()


@pytest.mark.parametrize("size", [8, 16, 24, 64, 80, 96, 112, 128, 192, 256])
def test_halves_hold_the_size(size: int) -> None:
    main, rest = decode.halves(size)
    assert main + rest >= size and all(part == 0 or (part >= 16 and part & (part - 1) == 0) for part in (main, rest))
    assert rest == 0 or main < size
