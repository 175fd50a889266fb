"""Routing against its definition, experts against a loop over tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engines.kernels.experts import fused_experts, fused_experts_plain, fused_experts_plain_reference, route
from engines.kernels.quant import dequantize_blocks, quantize_blocks, round_activations

PLAIN: dict[str, Any] = {
    "scoring": "softmax", "groups": 1, "active_groups": 1, "active": 2, "normalise": False, "scale": 1.0,
}  # fmt: skip


def by_hand(scores: list[float], bias: list[float] | None, how: dict[str, Any]) -> tuple[list[int], list[float]]:
    """One token's experts and weights by the definition, in plain Python."""
    s = torch.tensor(scores, dtype=torch.float64)
    worth = (s.softmax(0) if how["scoring"] == "softmax" else s.sigmoid()).tolist()
    biased = worth if bias is None else [w + b for w, b in zip(worth, bias, strict=True)]
    size = len(scores) // how["groups"]
    groups = [biased[g * size : (g + 1) * size] for g in range(how["groups"])]
    values = [sum(sorted(group)[-1 if bias is None else -2 :]) for group in groups]
    kept = sorted(range(len(groups)), key=lambda g: (-values[g], g))[: how["active_groups"]]
    candidates = [e for e in range(len(scores)) if e // size in kept]
    ids = sorted(candidates, key=lambda e: (-biased[e], e))[: how["active"]]
    weights = [worth[e] for e in ids]
    total = sum(weights) + 1e-20 if how["normalise"] else 1.0
    return ids, [w / total * how["scale"] for w in weights]


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("groups", [1, 4])
def test_route_is_its_definition(scoring: str, groups: int, biased: bool) -> None:
    torch.manual_seed(groups)
    how = {
        "scoring": scoring,
        "groups": groups,
        "active_groups": (groups + 1) // 2,
        "active": 3,
        "normalise": True,
        "scale": 2.5,
    }
    scores, bias = torch.randn(40, 16, dtype=torch.float64), torch.randn(16, dtype=torch.float64) if biased else None
    ids, weights = route(scores, bias, **how)
    for row in range(40):
        wanted = by_hand(scores[row].tolist(), None if bias is None else bias.tolist(), how)
        assert ids[row].tolist() == wanted[0]
        assert weights[row].tolist() == pytest.approx(wanted[1], rel=1e-12)


def test_of_equals_the_lowest_index_wins() -> None:
    ids, weights = route(torch.zeros(2, 8), None, **PLAIN | {"groups": 4, "active_groups": 2, "active": 3})
    assert ids.tolist() == [[0, 1, 2]] * 2
    assert torch.allclose(weights, torch.full((2, 3), 1 / 8))


def test_dropped_groups_stay_dropped_when_the_kept_are_negative() -> None:
    """With 0 instead of -inf, an expert of the dropped group would win over the kept, negative ones."""
    bias = torch.tensor([-2.0, -3.0, -9.0, -1.5])
    ids, weights = route(torch.zeros(1, 4), bias, **PLAIN | {"scoring": "sigmoid", "groups": 2})
    assert ids.tolist() == [[0, 1]]
    assert weights.tolist() == [[0.5, 0.5]]


def test_bias_never_reaches_the_weights() -> None:
    how = PLAIN | {"scoring": "sigmoid", "normalise": True, "scale": 2.0}
    ids, weights = route(torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([9.0, 0.0, 0.5]), **how)
    shares = torch.tensor([0.0, 2.0]).sigmoid()
    assert ids.tolist() == [[0, 2]]
    assert torch.allclose(weights, shares / shares.sum() * 2)


def test_further_experts_stand_behind_with_weight_one() -> None:
    scores = torch.randn(3, 8, dtype=torch.float64)
    ids, weights = route(scores, None, **PLAIN)
    more = route(scores, None, **PLAIN, further=2)
    assert torch.equal(more[0], torch.cat((ids, torch.tensor([[8, 9]] * 3)), 1))
    assert torch.equal(more[1], torch.cat((weights, torch.ones(3, 2, dtype=torch.float64)), 1))


def by_token(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, rounding: bool) -> Tensor:
    out = torch.zeros_like(x)
    for token in range(x.shape[0]):
        row = round_activations(x[token : token + 1]) if rounding else x[token : token + 1]
        for expert, weight in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
            gate, up = (row @ gate_up[expert].T).chunk(2, -1)
            hidden = F.silu(gate) * up
            out[token] += ((round_activations(hidden) if rounding else hidden) @ down[expert].T)[0] * weight
    return out


def layer(experts: int, inner: int, size: int) -> tuple[Tensor, Tensor]:
    gate_up = torch.randn(experts, 2 * inner, size, dtype=torch.float64) / size**0.5
    return gate_up, torch.randn(experts, size, inner, dtype=torch.float64) / inner**0.5


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("active", [2, 6])
def test_plain_experts(tokens: int, active: int) -> None:
    """Few of the experts (some never hit), and all of them in another order for each token."""
    torch.manual_seed(tokens + active)
    gate_up, down = layer(6, 10, 24)
    x = torch.randn(tokens, 24, dtype=torch.float64)
    ids = torch.stack([torch.randperm(6)[:active] for _ in range(tokens)])
    weights = torch.rand(tokens, active, dtype=torch.float64)
    wanted = by_token(x, ids, weights, gate_up, down, rounding=False)
    beside = down.permute(1, 0, 2).contiguous().permute(1, 0, 2)
    for form in (down, beside):
        assert torch.allclose(fused_experts_plain(x, ids, weights, gate_up, form), wanted, rtol=0, atol=1e-13)
    assert torch.allclose(fused_experts_plain(x, ids.int(), weights, gate_up, down), wanted, rtol=0, atol=1e-13)


def test_an_expert_taken_twice_counts_twice() -> None:
    torch.manual_seed(9)
    gate_up, down = layer(2, 4, 8)
    x, ids, weights = torch.randn(1, 8, dtype=torch.float64), torch.tensor([[1, 1]]), torch.tensor([[0.25, 0.5]])
    wanted = by_token(x, ids, weights, gate_up, down, rounding=False)
    assert torch.allclose(fused_experts_plain(x, ids, weights, gate_up, down), wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize("active", [2, 4])
def test_fp8_experts(active: int) -> None:
    """Ragged inner size; against float64 over the same quantised values, also from weights expanded beforehand."""
    torch.manual_seed(active)
    gate_up, down = layer(4, 192, 200)
    (gate_up_q, gate_up_s), (down_q, down_s) = quantize_blocks(gate_up), quantize_blocks(down)
    x = torch.randn(5, 200, dtype=torch.float64)
    ids = torch.stack([torch.randperm(4)[:active] for _ in range(5)])
    weights = torch.rand(5, active)
    expanded = [dequantize_blocks(*pair, torch.float64) for pair in ((gate_up_q, gate_up_s), (down_q, down_s))]
    wanted = by_token(x, ids, weights, *expanded, rounding=True)
    found = fused_experts(x, ids, weights, gate_up_q, gate_up_s, down_q, down_s)
    assert (found - wanted).norm() <= 1e-13 * wanted.norm()
    found = fused_experts_plain_reference(x, ids, weights, *expanded, rounding=True)
    assert (found - wanted).norm() <= 1e-13 * wanted.norm()
