"""Paged attention on the device against its twins in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engines.kernels.attention import (
    gqa_decode,
    gqa_decode_reference,
    gqa_prefill,
    gqa_prefill_reference,
    mla_decode,
    mla_decode_reference,
    mla_prefill,
    mla_prefill_reference,
    write_cache,
    write_latent,
    write_latent_reference,
)
from tests.gpu.shapes import DEVICE, bits, relative, replayed

pytestmark = pytest.mark.gpu
HEADS = [16, 32, 128]
GQA = [(9, 3, 64), (32, 4, 128), (14, 2, 64), (16, 16, 80)]
LENGTHS = [1, 2, 63, 64, 65, 256, 1000, 4097]
ROUNDED = {torch.bfloat16: 4e-3, torch.float32: 1e-5}


def table(lengths: list[int]) -> tuple[Tensor, Tensor, int]:
    """Scattered pages; what is unused points at a slot of NaN. And the lengths and the number of slots."""
    slots = sum(lengths) + 2
    pages = torch.full((len(lengths), max(lengths) + 7), slots - 1, dtype=torch.int32, device=DEVICE)
    free = torch.randperm(slots - 2, device=DEVICE).int() + 1
    for row, length in enumerate(lengths):
        pages[row, :length] = free[:length]
        free = free[length:]
    return pages, torch.tensor(lengths, dtype=torch.int32, device=DEVICE), slots


def rows(slots: int, *shape: int, dtype: torch.dtype) -> Tensor:
    values = torch.randn(slots, *shape, device=DEVICE).to(dtype)
    values[[0, slots - 1]] = torch.nan
    return values


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("heads", HEADS)
def test_mla_decode(heads: int, dtype: torch.dtype) -> None:
    pages, lengths, slots = table(LENGTHS)
    cache = rows(slots, 576, dtype=dtype)
    latent, rope = (torch.randn(len(LENGTHS), heads, size, device=DEVICE).to(dtype) for size in (512, 64))
    found = mla_decode(latent, rope, cache, pages, lengths, 0.1147)
    wanted = mla_decode_reference(latent.double(), rope.double(), cache.double(), pages, lengths, 0.1147)
    assert relative(found, wanted) < ROUNDED[dtype]
    for row in range(len(LENGTHS)):
        one = slice(row, row + 1)
        alone = mla_decode(latent[one], rope[one], cache, pages[one], lengths[one], 0.1147)
        assert torch.equal(bits(alone), bits(found[one])), "a row depends on its batch"
        assert relative(found[row], wanted[row]) < 2 * ROUNDED[dtype]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), GQA)
def test_gqa_decode(heads: int, kv_heads: int, size: int, dtype: torch.dtype) -> None:
    pages, lengths, slots = table(LENGTHS)
    k, v = (rows(slots, kv_heads, size, dtype=dtype) for _ in range(2))
    q = torch.randn(len(LENGTHS), heads, size, device=DEVICE).to(dtype)
    found = gqa_decode(q, k, v, pages, lengths, size**-0.5)
    wanted = gqa_decode_reference(q.double(), k.double(), v.double(), pages, lengths, size**-0.5)
    assert relative(found, wanted) < ROUNDED[dtype]
    alone = gqa_decode(q[5:6], k, v, pages[5:6], lengths[5:6], size**-0.5)
    assert torch.equal(bits(alone), bits(found[5:6]))


def test_rows_of_padding_give_zeros() -> None:
    pages, lengths, slots = table([5, 3])
    lengths[1] = 0
    cache = rows(slots, 576, dtype=torch.bfloat16)
    latent, rope = (torch.randn(2, 16, size, device=DEVICE).bfloat16() for size in (512, 64))
    assert not mla_decode(latent, rope, cache, pages, lengths, 0.1)[1].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), GQA)
def test_gqa_prefill(heads: int, kv_heads: int, size: int, dtype: torch.dtype) -> None:
    """Whole prompts, chunks behind a long prefix, one query, none."""
    queries, counts = [1, 300, 0, 130, 64], [77, 300, 12, 1500, 65]
    pages, lengths, slots = table(counts)
    k, v = (rows(slots, kv_heads, size, dtype=dtype) for _ in range(2))
    starts = torch.tensor([0, *queries], device=DEVICE).cumsum(0).int()
    q = torch.randn(sum(queries), heads, size, device=DEVICE).to(dtype)
    found = gqa_prefill(q, k, v, pages, starts, lengths, size**-0.5, max(queries))
    wanted = gqa_prefill_reference(q.double(), k.double(), v.double(), pages, starts, lengths, size**-0.5, max(queries))
    assert relative(found, wanted) < ROUNDED[dtype]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("heads", HEADS)
def test_mla_prefill(heads: int, dtype: torch.dtype) -> None:
    queries, counts = [1, 200, 0, 130, 513], [70, 200, 9, 700, 513]
    starts, kv_starts = (torch.tensor([0, *n], device=DEVICE).cumsum(0).int() for n in (queries, counts))
    q = torch.randn(sum(queries), heads, 192, device=DEVICE).to(dtype)
    k, v = (torch.randn(sum(counts), heads, size, device=DEVICE).to(dtype) for size in (192, 128))
    found = mla_prefill(q, k, v, starts, kv_starts, 0.1352, max(queries))
    wanted = mla_prefill_reference(q.double(), k.double(), v.double(), starts, kv_starts, 0.1352, max(queries))
    assert relative(found, wanted) < ROUNDED[dtype]


def test_in_a_graph() -> None:
    """Replayed with other lengths than it was captured with."""
    pages, lengths, slots = table([900, 700])
    cache = rows(slots, 576, dtype=torch.bfloat16)
    latent, rope = (torch.randn(2, 16, size, device=DEVICE).bfloat16() for size in (512, 64))
    replayed(
        lambda a, b, n: mla_decode(a, b, cache, pages, n, 0.1),
        [latent, rope, torch.ones_like(lengths)],
        [rope.repeat(1, 1, 8), rope, lengths],
    )
    k = rows(slots, 4, 128, dtype=torch.bfloat16)
    q = torch.randn(2, 8, 128, device=DEVICE).bfloat16()
    replayed(lambda a, n: gqa_decode(a, k, k, pages, n, 0.1), [q, torch.ones_like(lengths)], [q + 1, lengths])


def test_write_cache_in_a_graph() -> None:
    values, slots = torch.randn(3, 576, device=DEVICE).bfloat16(), torch.tensor([4, 1, 9], device=DEVICE)

    def written(x: Tensor, at: Tensor) -> Tensor:
        cache = torch.zeros(10, 576, device=DEVICE, dtype=torch.bfloat16)
        write_cache(cache, x, at)
        return cache

    replayed(written, [values, slots], [values + 1, slots - 1])


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_write_latent(dtype: torch.dtype, interleaved: bool) -> None:
    kv, w = torch.randn(50, 2112, device=DEVICE).to(dtype)[:, 1536:], torch.randn(512, device=DEVICE).to(dtype)
    angles, positions = torch.rand(4096, 32, device=DEVICE) * 6, torch.randint(0, 4096, (50,), device=DEVICE)
    cos, sin, slots = angles.cos(), angles.sin(), torch.randperm(99, device=DEVICE)[:50] + 1
    found, wanted = (torch.zeros(100, 576, device=DEVICE, dtype=kind) for kind in (dtype, torch.float64))
    write_latent(found, kv, w, 1e-6, cos, sin, positions, slots, interleaved=interleaved)
    write_latent_reference(wanted, kv.double(), w, 1e-6, cos, sin, positions, slots, interleaved=interleaved)
    assert relative(found, wanted) < ROUNDED[dtype]
