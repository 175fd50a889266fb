"""Paged attention against one query, one head, one key at a time in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engines.kernels.attention import gqa_decode, gqa_prefill, mla_decode, mla_prefill, write_cache, write_latent

SLOTS = 80


def attended(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """One query [D] over keys [n, D] and values [n, DV]."""
    return (keys @ query * scale).softmax(0) @ values


def table(lengths: list[int], scattered: bool) -> tuple[Tensor, Tensor]:
    """Pages [B, W] without slot 0, whose unused entries point at slots that hold NaN; and the lengths."""
    width = max(lengths) + 2
    pages = torch.full((len(lengths), width), SLOTS - 1, dtype=torch.int32)
    free = (torch.randperm(SLOTS - 2) if scattered else torch.arange(SLOTS - 2)) + 1
    for row, length in enumerate(lengths):
        pages[row, :length] = free[:length]
        free = free[length:]
    return pages, torch.tensor(lengths, dtype=torch.int32)


def cache(*shape: int) -> Tensor:
    values = torch.randn(SLOTS, *shape, dtype=torch.float64)
    values[[0, SLOTS - 1]] = torch.nan
    return values


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (4, 4), (4, 1)])
def test_gqa(heads: int, kv_heads: int, scattered: bool) -> None:
    """A decode is a prefill of one query; a chunk sees what lies before it in the cache; one row has no query."""
    torch.manual_seed(heads)
    queries, lengths = [1, 6, 0, 3], [1, 6, 5, 20]
    k, v = cache(kv_heads, 16), cache(kv_heads, 12)
    pages, counted = table(lengths, scattered)
    starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()], dtype=torch.int32)
    q = torch.randn(sum(queries), heads, 16, dtype=torch.float64)
    wanted = torch.empty(sum(queries), heads, 12, dtype=torch.float64)
    for row, (first, count, length) in enumerate(zip(starts.tolist()[:-1], queries, lengths, strict=True)):
        for i in range(count):
            seen = pages[row, : length - count + i + 1].long()
            for head in range(heads):
                shared = head // (heads // kv_heads)
                wanted[first + i, head] = attended(q[first + i, head], k[seen, shared], v[seen, shared], 0.3)
    found = gqa_prefill(q, k, v, pages, starts, counted, 0.3, 6)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-13)
    newest = torch.tensor([0, 6, 9])
    found = gqa_decode(q[newest], k, v, pages[[0, 1, 3]], counted[[0, 1, 3]], 0.3)
    assert torch.allclose(found, wanted[newest], rtol=0, atol=1e-13)


@pytest.mark.parametrize("scattered", [False, True])
def test_mla_decode(scattered: bool) -> None:
    torch.manual_seed(3)
    rows, lengths = cache(24), [1, 17, 30]
    pages, counted = table(lengths, scattered)
    latent, rope = torch.randn(3, 4, 16, dtype=torch.float64), torch.randn(3, 4, 8, dtype=torch.float64)
    found = mla_decode(latent, rope, rows, pages, counted, 0.2)
    for row, length in enumerate(lengths):
        seen = rows[pages[row, :length].long()]
        for head in range(4):
            wanted = attended(torch.cat((latent[row, head], rope[row, head])), seen, seen[:, :16], 0.2)
            assert torch.allclose(found[row, head], wanted, rtol=0, atol=1e-13)


def test_mla_prefill() -> None:
    torch.manual_seed(4)
    starts, kv_starts = torch.tensor([0, 5, 7, 7, 8]), torch.tensor([0, 5, 16, 19, 20])
    q, k, v = (torch.randn(n, 3, size, dtype=torch.float64) for n, size in ((8, 24), (20, 24), (20, 10)))
    found = mla_prefill(q, k, v, starts.int(), kv_starts.int(), 0.25, 5)
    for first, end, kv_first, kv_end in zip(starts[:-1], starts[1:], kv_starts[:-1], kv_starts[1:], strict=True):
        for i in range(first, end):
            seen = slice(int(kv_first), int(kv_end - (end - 1 - i)))
            for head in range(3):
                wanted = attended(q[i, head], k[seen, head], v[seen, head], 0.25)
                assert torch.allclose(found[i, head], wanted, rtol=0, atol=1e-13)


def test_a_row_of_no_length_gives_zeros() -> None:
    k = torch.randn(4, 2, 8)
    found = gqa_decode(torch.randn(1, 4, 8), k, k, torch.zeros(1, 3, dtype=torch.int32), torch.tensor([0]), 1.0)
    assert torch.equal(found, torch.zeros(1, 4, 8))


def test_low_precision_is_computed_in_float32() -> None:
    torch.manual_seed(5)
    k, q = torch.randn(30, 2, 8).bfloat16(), torch.randn(1, 4, 8).bfloat16()
    pages, lengths = torch.arange(30, dtype=torch.int32)[None], torch.tensor([29], dtype=torch.int32)
    found = gqa_decode(q, k, k, pages, lengths, 0.5)
    exact = gqa_decode(q.double(), k.double(), k.double(), pages, lengths, 0.5)
    assert found.dtype == torch.bfloat16 and torch.equal(found, exact.bfloat16())


def test_write_cache() -> None:
    rows, one = torch.zeros(6, 2, 3).bfloat16(), torch.zeros(6, 5)
    values = torch.randn(3, 2, 3)
    write_cache(rows, values, torch.tensor([4, 1, 0]))
    assert torch.equal(rows[[4, 1, 0]], values.bfloat16()) and not rows[[2, 3, 5]].any()
    write_cache(one, torch.ones(1, 1, 5), torch.tensor([3], dtype=torch.int32))
    assert torch.equal(one[3], torch.ones(5)) and one.sum() == 5


def test_write_latent() -> None:
    torch.manual_seed(6)
    kv, w = torch.randn(2, 12, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    angles, cache = torch.tensor([[0.0, 0.0], [0.5, 2.0]], dtype=torch.float64), torch.zeros(4, 12, dtype=torch.float64)
    write_latent(
        cache, kv, w, 1e-6, angles.cos(), angles.sin(), torch.tensor([0, 1]), torch.tensor([3, 1]), interleaved=True
    )
    wanted = kv[:, :8] / (kv[:, :8].pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * w
    assert torch.allclose(cache[[3, 1], :8], wanted, rtol=0, atol=1e-14)
    assert torch.allclose(cache[3, 8:], kv[0, 8:], rtol=0, atol=1e-15)
    turned = torch.view_as_complex(kv[1, 8:].view(2, 2)) * torch.polar(torch.ones_like(angles[1]), angles[1])
    assert torch.allclose(cache[1, 8:], torch.view_as_real(turned).flatten(), rtol=0, atol=1e-14)
    assert not cache[[0, 2]].any()
