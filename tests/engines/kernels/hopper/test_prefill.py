"""Prefill attention: whole prompts, chunks behind a prefix, one query and none, against the twins in float64."""

from __future__ import annotations

import pytest
import torch

from engines.kernels.attention import gqa_prefill_reference, mla_prefill_reference
from tests.engines.kernels.hopper.interpreter import interpreted, relative

prefill = interpreted("prefill")


@pytest.mark.parametrize(("heads", "kv_heads", "size", "value"), [(6, 3, 16, 16), (2, 2, 24, 20)])
def test_gqa(heads: int, kv_heads: int, size: int, value: int) -> None:
    torch.manual_seed(size)
    queries, counts = [1, 30, 0, 20], [5, 30, 9, 71]
    slots = 150
    pages = torch.full((4, 80), slots - 1, dtype=torch.int32)
    for row, length in enumerate(counts):
        pages[row, :length] = torch.randperm(slots - 2)[:length].int() + 1
    starts, lengths = torch.tensor([0, *queries]).cumsum(0).int(), torch.tensor(counts, dtype=torch.int32)
    q, k, v = torch.randn(51, heads, size), torch.randn(slots, kv_heads, size), torch.randn(slots, kv_heads, value)
    k[[0, slots - 1]], v[[0, slots - 1]] = torch.nan, torch.nan
    found = prefill.gqa_prefill(q, k, v, pages, starts, lengths, 0.2, 30)
    wanted = gqa_prefill_reference(q.double(), k.double(), v.double(), pages, starts, lengths, 0.2, 30)
    assert relative(found, wanted) < 1e-6


@pytest.mark.parametrize(("size", "value"), [(48, 32), (24, 16)])
def test_mla(size: int, value: int) -> None:
    torch.manual_seed(size)
    starts, kv_starts = torch.tensor([0, 40, 40, 45]).int(), torch.tensor([0, 60, 63, 120]).int()
    q, k, v = torch.randn(45, 2, size), torch.randn(120, 2, size), torch.randn(120, 2, value)
    found = prefill.mla_prefill(q, k, v, starts, kv_starts, 0.2, 40)
    wanted = mla_prefill_reference(q.double(), k.double(), v.double(), starts, kv_starts, 0.2, 40)
    assert relative(found, wanted) < 1e-6
