"""Sorting tokens by expert, and the experts over them, against the twins in float64."""

from __future__ import annotations

import pytest
import torch

from engines.kernels.experts import fused_experts_plain_reference, fused_experts_reference
from engines.kernels.quant import quantize_blocks
from tests.engines.kernels.hopper.interpreter import interpreted, relative

experts = interpreted("experts")


@pytest.mark.parametrize(("tokens", "count", "active"), [(2, 8, 2), (50, 4, 3), (700, 3, 2)])
def test_order_and_blocks(tokens: int, count: int, active: int) -> None:
    """The order is the stable sort; the blocks cut each expert's part; one expert gets nothing."""
    torch.manual_seed(tokens)
    ids = torch.randint(0, count - 1, (tokens, active))
    found = experts.arrange(ids, count)
    assert torch.equal(found.order.long(), ids.flatten().argsort(stable=True))
    covered = []
    for expert, start, end in zip(found.experts.tolist(), found.starts.tolist(), found.ends.tolist(), strict=True):
        if expert >= 0:
            part = found.order[start : min(end, start + found.rows)].long()
            assert len(part) and set(ids.flatten()[part].tolist()) == {expert}
            covered += part.tolist()
    assert sorted(covered) == list(range(tokens * active))


@pytest.mark.parametrize(
    ("tokens", "count", "active", "inner", "size"),
    [(1, 6, 2, 40, 70), (7, 4, 4, 96, 128), (40, 4, 2, 64, 72), (60, 3, 2, 192, 200), (130, 2, 2, 16, 32)],
)
def test_against_float64(tokens: int, count: int, active: int, inner: int, size: int) -> None:
    torch.manual_seed(tokens)
    gate_up = torch.randn(count, 2 * inner, size) / size**0.5
    down = torch.randn(count, size, inner) / inner**0.5
    ids = torch.stack([torch.randperm(count)[:active] for _ in range(tokens)])
    x, weights = torch.randn(tokens, size), torch.rand(tokens, active)
    wanted = fused_experts_plain_reference(x.double(), ids, weights, gate_up.double(), down.double())
    assert relative(experts.fused_experts_plain(x, ids, weights, gate_up, down), wanted) < 1e-6
    stored = (*quantize_blocks(gate_up), *quantize_blocks(down))
    wanted = fused_experts_reference(x, ids, weights, *stored)
    assert relative(experts.fused_experts(x, ids.int(), weights, *stored), wanted) < 1e-3


def test_weights_that_do_not_lie_whole_are_refused() -> None:
    stored = [*quantize_blocks(torch.randn(2, 8, 16)), *quantize_blocks(torch.randn(2, 16, 4))]
    stored[2] = stored[2].transpose(0, 1).contiguous().transpose(0, 1)
    with pytest.raises(ValueError, match="once, at load"):
        experts.fused_experts(torch.randn(1, 16), torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1), *stored)


def test_no_tokens() -> None:
    gate_up, down = torch.randn(2, 8, 16), torch.randn(2, 16, 4)
    ids, weights = torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0, 2)
    assert experts.fused_experts_plain(torch.randn(0, 16), ids, weights, gate_up, down).shape == (0, 16)
