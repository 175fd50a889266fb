"""Mixtures of experts: which experts a token takes, and what those give.

Shapes: x [T, D], ids [T, k] and weights [T, k] from `route`, gate_up [E, 2 I, D] (gate above up), down [E, D, I].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from engines.kernels.norm import silu_mul_reference
from engines.kernels.quant import dequantize_blocks, round_activations

Expert = Callable[[int], tuple[Tensor, Tensor]]


def route(
    scores: Tensor,
    bias: Tensor | None,
    *,
    scoring: Literal["softmax", "sigmoid"],
    groups: int,
    active_groups: int,
    active: int,
    normalise: bool,
    scale: float,
    further: int = 0,
) -> tuple[Tensor, Tensor]:
    """(ids [T, active + further] int64, weights float32 alike) from the router's outputs `scores` float32 [T, E].

    The `active` best of the best `active_groups` groups, best first; of equals the lowest index wins. With `bias` [E]
    it counts for the choice alone and a group is worth its two best experts (DeepSeek-V3); without, its best one (V2).
    `normalise` makes the weights sum to 1 before `scale` multiplies them. `further` experts that every token takes
    with weight 1 stand behind the others, as E, E + 1, ...
    """
    if scores.is_cuda:
        from engines.kernels.hopper import route as device

        if device.fits(scores.shape[1], groups):
            return device.route(scores, bias, scoring, groups, active_groups, active, normalise, scale, further)
    return route_reference(
        scores,
        bias,
        scoring=scoring,
        groups=groups,
        active_groups=active_groups,
        active=active,
        normalise=normalise,
        scale=scale,
        further=further,
    )


def route_reference(
    scores: Tensor,
    bias: Tensor | None,
    *,
    scoring: Literal["softmax", "sigmoid"],
    groups: int,
    active_groups: int,
    active: int,
    normalise: bool,
    scale: float,
    further: int = 0,
) -> tuple[Tensor, Tensor]:
    """The twin; float64 scores give float64 weights. topk would break ties as it likes: a stable sort does not."""
    wide = scores if scores.dtype == torch.float64 else scores.float()
    worth = wide.softmax(-1) if scoring == "softmax" else wide.sigmoid()
    biased = worth if bias is None else worth + bias.to(worth.dtype)
    if groups > 1 and active_groups < groups:
        biased = biased.masked_fill(_dropped(biased, groups, active_groups, 1 if bias is None else 2), -torch.inf)
    ids = _best(biased, active)
    weights = worth.gather(1, ids)
    if normalise:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    weights = weights * scale
    if not further:
        return ids, weights
    behind = torch.arange(scores.shape[1], scores.shape[1] + further, device=ids.device).expand(len(ids), -1)
    return torch.cat((ids, behind), 1), F.pad(weights, (0, further), value=1.0)


def _best(values: Tensor, count: int) -> Tensor:
    return values.sort(stable=True, dim=-1, descending=True).indices[..., :count]


def _dropped(biased: Tensor, groups: int, active_groups: int, best: int) -> Tensor:
    """A mask [T, E] of the experts whose group is not among the best."""
    grouped = biased.view(biased.shape[0], groups, -1)
    worth = grouped.topk(min(best, grouped.shape[-1]), -1).values.sum(-1)
    dropped = torch.ones_like(worth, dtype=torch.bool).scatter_(1, _best(worth, active_groups), False)
    return dropped.repeat_interleave(grouped.shape[-1], -1)


def fused_experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    gate_up_scales: Tensor,
    down: Tensor,
    down_scales: Tensor,
    quantised: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The weighted sum [T, D] of the experts of each token, block-FP8: e4m3 weights with float32 scales a block.

    x is quantised 1 x 128 before the first product (`quantised` is that of x where the caller has it already), and
    silu(gate) * up before the second.
    """
    if x.is_cuda:
        from engines.kernels.hopper import experts

        return experts.fused_experts(x, ids, weights, gate_up, gate_up_scales, down, down_scales, quantised)
    return fused_experts_reference(x, ids, weights, gate_up, gate_up_scales, down, down_scales)


def fused_experts_reference(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, gate_up_scales: Tensor, down: Tensor, down_scales: Tensor
) -> Tensor:
    """The twin: expands one hit expert after the other; in float32, or in float64 for float64 x."""
    wide = _wide(x)

    def expert(index: int) -> tuple[Tensor, Tensor]:
        return (
            dequantize_blocks(gate_up[index], gate_up_scales[index], wide.dtype),
            dequantize_blocks(down[index], down_scales[index], wide.dtype),
        )

    return _one_by_one(wide, ids, weights, expert, gate_up.shape[0], x.dtype, rounding=True).to(x.dtype)


def fused_experts_plain(x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """The same for weights in x's type; nothing is quantised."""
    if x.is_cuda:
        from engines.kernels.hopper import experts

        return experts.fused_experts_plain(x, ids, weights, gate_up, down)
    return fused_experts_plain_reference(x, ids, weights, gate_up, down)


def fused_experts_plain_reference(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, *, rounding: bool = False
) -> Tensor:
    """The twin. With `rounding` activations are quantised as fused_experts does: for FP8 weights expanded at load.

    Quickest for all experts at once where `down` is a view [E, D, I] of memory laid out [D, E, I].
    """
    wide = _wide(x)
    if ids.shape[1] == gate_up.shape[0] and _is_permutation(ids):
        return _all_at_once(wide, ids, weights, gate_up, down, x.dtype, rounding).to(x.dtype)

    def expert(index: int) -> tuple[Tensor, Tensor]:
        return gate_up[index].to(wide.dtype), down[index].to(wide.dtype)

    return _one_by_one(wide, ids, weights, expert, gate_up.shape[0], x.dtype, rounding).to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _is_permutation(ids: Tensor) -> bool:
    """Whether each row names every expert once; a token that takes one twice takes it twice."""
    return bool((ids.sort(-1).values == torch.arange(ids.shape[1], dtype=ids.dtype, device=ids.device)).all())


def _activated(hidden: Tensor, kept: torch.dtype, rounding: bool) -> Tensor:
    """silu(gate) * up, rounded as the kernels keep it between the two products."""
    product = silu_mul_reference(hidden.to(kept)).to(hidden.dtype)
    return round_activations(product) if rounding else product


def _one_by_one(
    x: Tensor, ids: Tensor, weights: Tensor, expert: Expert, count: int, kept: torch.dtype, rounding: bool
) -> Tensor:
    """Each hit expert over its tokens, in the order of the experts."""
    rows = round_activations(x) if rounding else x
    out = torch.zeros_like(x)
    hits = torch.bincount(ids.flatten(), minlength=count).tolist()
    order = torch.split(ids.flatten().argsort(stable=True), hits)
    for index, (taken, places) in enumerate(zip(hits, order, strict=True)):
        if not taken:
            continue
        gate_up, down = expert(index)
        tokens = places // ids.shape[1]
        hidden = _activated(rows[tokens] @ gate_up.T, kept, rounding)
        share = weights.flatten()[places].to(x.dtype).unsqueeze(1)
        out.index_add_(0, tokens, (hidden @ down.T) * share)
    return out


def _all_at_once(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, kept: torch.dtype, rounding: bool
) -> Tensor:
    """Every token takes every expert: the experts are one wide MLP whose inner columns are weighted."""
    tokens, count, size = x.shape[0], gate_up.shape[0], down.shape[2]
    rows = round_activations(x) if rounding else x
    hidden = (rows @ gate_up.flatten(0, 1).to(x.dtype).T).view(tokens * count, 2 * size)
    hidden = _activated(hidden, kept, rounding).view(tokens, count, size)
    share = torch.empty_like(weights, dtype=x.dtype).scatter_(1, ids.long(), weights.to(x.dtype))
    hidden = hidden * share.unsqueeze(-1)
    beside = down.permute(1, 0, 2)
    if beside.is_contiguous() or tokens > 4 * count:  # the copy into that layout pays with many tokens
        return hidden.flatten(1) @ beside.flatten(1).to(x.dtype).T
    return torch.bmm(hidden.transpose(0, 1), down.to(x.dtype).transpose(1, 2)).sum(0)
