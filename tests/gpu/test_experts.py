"""Routing and experts on the device against their twins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engines.kernels.experts import (
    fused_experts,
    fused_experts_plain,
    fused_experts_plain_reference,
    fused_experts_reference,
    route,
    route_reference,
)
from engines.kernels.quant import dequantize_activations, dequantize_blocks, quantize_activations
from tests.gpu.shapes import DEVICE, MODELS, MOONLIGHT, Shape, bits, fp8_weights, relative, replayed

pytestmark = pytest.mark.gpu


def by_name(shape: Shape) -> str:
    return shape.name


def settings(shape: Shape) -> dict[str, Any]:
    return {
        "scoring": "sigmoid", "groups": shape.groups, "active_groups": shape.active_groups, "active": shape.active,
        "normalise": True, "scale": 2.5,
    }  # fmt: skip


@pytest.mark.parametrize("scoring", ["sigmoid", "softmax"])
@pytest.mark.parametrize("shape", MODELS, ids=by_name)
def test_route(shape: Shape, scoring: str) -> None:
    """Scores are far enough apart that float32's rounding decides nothing; in the first row all are equal."""
    order = torch.stack([torch.randperm(shape.experts, device=DEVICE) for _ in range(200)])
    scores = order.float() * 0.01
    scores[0] = 0
    for bias in (None, torch.randperm(shape.experts, device=DEVICE).float() * 0.013):
        how = settings(shape) | {"scoring": scoring, "further": shape.shared}
        ids, weights = route(scores, bias, **how)
        wanted = route_reference(scores.double(), bias, **how)
        assert (ids == wanted[0]).float().mean() > 0.99
        same = (ids == wanted[0]).all(1)
        assert same[0] and relative(weights[same], wanted[1][same]) < 1e-5
        assert int(ids.min()) >= 0 and int(ids.max()) < shape.experts + shape.shared


def chosen(shape: Shape, tokens: int) -> tuple[Tensor, Tensor]:
    return route(torch.randn(tokens, shape.experts, device=DEVICE), None, **settings(shape))


@pytest.mark.parametrize("shape", MODELS, ids=by_name)
def test_each_product_alone(shape: Shape) -> None:
    """Against float64 of the same quantised operands, in float32 and in bf16."""
    from engines.kernels.hopper.experts import Matrix, arrange, first_product, second_product

    first, second = (
        Matrix(*fp8_weights(shape.experts, 2 * shape.inner, shape.hidden)),
        Matrix(*fp8_weights(shape.experts, shape.hidden, shape.inner)),
    )
    for tokens in (2, 8, 64, 128, 257, 1024):
        ids, weights = chosen(shape, tokens)
        found = arrange(ids, shape.experts)
        order = ids.flatten().argsort(stable=True)
        assert torch.equal(found.order, order.int()), f"{tokens} tokens"
        x, hidden = (torch.randn(n, k, device=DEVICE) for n, k in ((tokens, shape.hidden), (len(order), shape.inner)))
        q, s = quantize_activations(x)
        wanted = by_expert(dequantize_activations(q, s, torch.float64)[order // shape.active], ids, first)
        got = first_product(q, s, first, found, ids, torch.float32)
        assert relative(got, wanted) < 1e-3, f"{tokens} tokens"
        q, s = quantize_activations(hidden)
        rows = by_expert(dequantize_activations(q, s, torch.float64), ids, second) * weights.flatten()[order, None]
        wanted = torch.zeros(tokens, shape.hidden, dtype=torch.float64, device=DEVICE)
        wanted.index_add_(0, order // shape.active, rows)
        assert relative(second_product(q, s, second, found, weights, x), wanted) < 1e-3, f"{tokens} tokens"
        got = second_product(q, s, second, found, weights, x.bfloat16())
        assert relative(got, wanted) < 3e-3, f"{tokens} tokens, bfloat16"


def by_expert(rows: Tensor, ids: Tensor, matrix: Any) -> Tensor:
    """Rows sorted by expert, each times its expert's weights."""
    counts = torch.bincount(ids.flatten(), minlength=matrix.w.shape[0]).tolist()
    parts = torch.split(rows, counts)
    products = [
        part @ dequantize_blocks(matrix.w[expert], matrix.scales[expert], torch.float64).T
        for expert, part in enumerate(parts)
        if len(part)
    ]
    return torch.cat(products)


@pytest.mark.parametrize("shape", MODELS, ids=by_name)
def test_fp8_experts(shape: Shape) -> None:
    """Both products and what lies between: a value that rounds the other way there moves a whole step of e4m3."""
    gate_up, down = (
        fp8_weights(shape.experts, 2 * shape.inner, shape.hidden),
        fp8_weights(shape.experts, shape.hidden, shape.inner),
    )
    for tokens in (1, 8, 64, 128, 257):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(tokens, shape.hidden, device=DEVICE).to(dtype)
            ids, weights = chosen(shape, tokens)
            wanted = fused_experts_reference(x, ids, weights, *gate_up, *down)
            found = fused_experts(x, ids, weights, *gate_up, *down)
            assert relative(found, wanted) < 1e-2, f"{tokens} tokens, {dtype}"


def test_shared_experts_beside_the_routed() -> None:
    """As a model has them: two more experts that every token takes."""
    shape = MOONLIGHT
    count = shape.experts + shape.shared
    gate_up, down = fp8_weights(count, 2 * shape.inner, shape.hidden), fp8_weights(count, shape.hidden, shape.inner)
    for tokens in (1, 8, 1279):
        x = torch.randn(tokens, shape.hidden, device=DEVICE).bfloat16()
        scores = torch.randn(tokens, shape.experts, device=DEVICE)
        ids, weights = route(scores, None, **settings(shape), further=shape.shared)
        wanted = fused_experts_reference(x, ids, weights, *gate_up, *down)
        given = fused_experts(x, ids, weights, *gate_up, *down, quantised=quantize_activations(x))
        assert relative(given, wanted) < 1e-2, f"{tokens} tokens"


@pytest.mark.parametrize("tokens", [4, 100, 700])
def test_as_near_to_exact_as_the_twin(tokens: int) -> None:
    """Two right FP8 results may lie as far apart as each from the exact one: what counts is the distance to that."""
    gate_up, down = fp8_weights(16, 2 * 704, 1024), fp8_weights(16, 1024, 704)
    expanded = [dequantize_blocks(*pair, torch.float64) for pair in (gate_up, down)]
    x = torch.randn(tokens, 1024, device=DEVICE).bfloat16()
    ids = torch.stack([torch.randperm(16, device=DEVICE)[:4] for _ in range(tokens)])
    weights = torch.rand(tokens, 4, device=DEVICE)
    exact = fused_experts_plain_reference(x.double(), ids, weights, *expanded)
    twin = relative(fused_experts_reference(x, ids, weights, *gate_up, *down), exact)
    assert 0.01 < twin < 0.1
    assert relative(fused_experts(x, ids, weights, *gate_up, *down), exact) < 1.05 * twin


@pytest.mark.parametrize("inner", [704, 96])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_plain_experts(dtype: torch.dtype, inner: int) -> None:
    gate_up = (torch.randn(8, 2 * inner, 512, device=DEVICE) / 512**0.5).to(dtype)
    down = (torch.randn(8, 512, inner, device=DEVICE) / inner**0.5).to(dtype)
    for tokens in (1, 5, 64, 300, 2000):
        x = torch.randn(tokens, 512, device=DEVICE).to(dtype)
        ids = torch.stack([torch.randperm(8, device=DEVICE)[:3] for _ in range(tokens)])
        weights = torch.rand(tokens, 3, device=DEVICE)
        wanted = fused_experts_plain_reference(x.double(), ids, weights, gate_up.double(), down.double())
        found = fused_experts_plain(x, ids, weights, gate_up, down)
        assert relative(found, wanted) < (5e-3 if dtype == torch.bfloat16 else 1e-5), f"{tokens} tokens"


@pytest.mark.parametrize("ids", [[[0, 0]], [[5, 5]] * 40, [[7, 0]] * 300], ids=str)
def test_one_expert_takes_all(ids: list[list[int]]) -> None:
    gate_up, down = fp8_weights(8, 256, 256), fp8_weights(8, 256, 128)
    taken = torch.tensor(ids, device=DEVICE)
    x, weights = torch.randn(len(ids), 256, device=DEVICE), torch.rand(len(ids), 2, device=DEVICE)
    wanted = fused_experts_reference(x.double(), taken, weights, *gate_up, *down)
    assert relative(fused_experts(x, taken, weights, *gate_up, *down), wanted) < 1e-2


def test_a_token_is_the_same_in_any_batch() -> None:
    gate_up = fp8_weights(MOONLIGHT.experts, 2 * MOONLIGHT.inner, MOONLIGHT.hidden)
    down = fp8_weights(MOONLIGHT.experts, MOONLIGHT.hidden, MOONLIGHT.inner)
    x = torch.randn(128, MOONLIGHT.hidden, device=DEVICE).bfloat16()
    ids, weights = chosen(MOONLIGHT, 128)
    whole = fused_experts(x, ids, weights, *gate_up, *down)
    for m in (1, 8, 32, 64):
        assert torch.equal(bits(fused_experts(x[:m], ids[:m], weights[:m], *gate_up, *down)), bits(whole[:m])), f"M={m}"


@pytest.mark.parametrize("tokens", [4, 400])
def test_in_a_graph(tokens: int) -> None:
    """The replayed tokens take other experts than the captured ones."""
    gate_up, down = fp8_weights(64, 512, 256), fp8_weights(64, 256, 256)

    def layer(x: Tensor, scores: Tensor) -> Tensor:
        return fused_experts(x, *route(scores, None, **settings(MOONLIGHT)), *gate_up, *down)

    before, after = (
        [torch.randn(tokens, 256, device=DEVICE).bfloat16(), torch.randn(tokens, 64, device=DEVICE)] for _ in range(2)
    )
    replayed(layer, before, after)
