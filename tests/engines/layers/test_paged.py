"""Decoding on a CPU computes what the kernels' twin computes."""

from __future__ import annotations

import torch

from engines.kernels.attention import gqa_decode_reference
from engines.layers.paged import decode, rows_of


def test_neighbours_are_slices() -> None:
    pages = torch.tensor([[4, 5, 6, 0], [7, 9, 2, 3], [8, 0, 0, 0]], dtype=torch.int32)
    first, second, third = rows_of(pages, torch.tensor([3, 4, 1]))
    assert first == slice(4, 7) and third == slice(8, 9)
    assert isinstance(second, torch.Tensor) and second.tolist() == [7, 9, 2, 3]


def test_decode() -> None:
    cache, q = torch.randn(64, 2, 2, 16, dtype=torch.float64), torch.randn(3, 6, 16, dtype=torch.float64)
    pages = torch.stack([torch.arange(5, 25), torch.randperm(63)[:20] + 1, torch.arange(30, 50)]).int()
    lengths = torch.tensor([20, 13, 1], dtype=torch.int32)
    wanted = gqa_decode_reference(q, cache[:, 0], cache[:, 1], pages, lengths, 0.3)
    assert torch.allclose(decode(q, cache, rows_of(pages, lengths), 0.3), wanted)
