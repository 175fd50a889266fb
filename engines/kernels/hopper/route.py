"""The choice of experts, one program a token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def fits(experts: int, groups: int) -> bool:
    """Whether the kernel takes this many: groups must be powers of two of at least two experts."""
    whole = triton.next_power_of_2(experts) == experts and triton.next_power_of_2(groups) == groups
    return experts <= 1024 and (groups == 1 or (whole and experts >= 2 * groups))


def route(
    scores: Tensor,
    bias: Tensor | None,
    scoring: str,
    groups: int,
    active_groups: int,
    active: int,
    normalise: bool,
    scale: float,
    further: int = 0,
) -> tuple[Tensor, Tensor]:
    """See engines.kernels.experts."""
    tokens, experts = scores.shape
    ids = torch.empty((tokens, active + further), dtype=torch.int64, device=scores.device)
    weights = torch.empty((tokens, active + further), dtype=torch.float32, device=scores.device)
    if tokens:
        _route[(tokens,)](
            scores, scores if bias is None else bias, ids, weights, experts, scores.stride(0), scale,
            EXPERTS=triton.next_power_of_2(experts), GROUPS=groups, ACTIVE_GROUPS=min(active_groups, groups),
            ACTIVE=active, FURTHER=further, SLOTS=triton.next_power_of_2(active + further),
            SOFTMAX=scoring == "softmax",
            BIASED=bias is not None, NORMALISE=normalise, num_warps=1 if experts <= 256 else 4,
        )  # fmt: skip
    return ids, weights


@triton.jit
def _without_dropped(worth, GROUPS: tl.constexpr, KEPT: tl.constexpr, BIASED: tl.constexpr):
    """`worth` [E] with -inf for the experts outside the KEPT best groups; of equals the lowest group stays."""
    SIZE: tl.constexpr = worth.shape[0] // GROUPS
    table = tl.reshape(worth, (GROUPS, SIZE))
    best = tl.max(table, 1)
    if BIASED:
        member = tl.broadcast_to(tl.arange(0, SIZE)[None, :], (GROUPS, SIZE))
        first = tl.argmax(table, 1)
        best += tl.max(tl.where(member == first[:, None], -float("inf"), table), 1)
    group = tl.arange(0, GROUPS)
    kept = group < 0
    for _ in tl.static_range(KEPT):
        chosen = group == tl.argmax(best, 0)
        kept = kept | chosen
        best = tl.where(chosen, -float("inf"), best)
    return tl.reshape(tl.where(kept[:, None], table, -float("inf")), (worth.shape[0],))


@triton.jit
def _route(
    scores, bias, ids, weights, experts, stride, scale,
    EXPERTS: tl.constexpr, GROUPS: tl.constexpr, ACTIVE_GROUPS: tl.constexpr, ACTIVE: tl.constexpr,
    FURTHER: tl.constexpr, SLOTS: tl.constexpr, SOFTMAX: tl.constexpr, BIASED: tl.constexpr, NORMALISE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, EXPERTS)
    inside = expert < experts
    score = tl.load(scores + token * stride + expert, mask=inside, other=-float("inf")).to(tl.float32)
    if SOFTMAX:
        power = tl.exp(score - tl.max(score, 0))
        worth = power / tl.sum(power, 0)
    else:
        worth = 1.0 / (1.0 + tl.exp(-score))
    candidates = worth
    if BIASED:
        candidates += tl.load(bias + expert, mask=inside, other=0.0).to(tl.float32)
    candidates = tl.where(inside, candidates, -float("inf"))
    if ACTIVE_GROUPS < GROUPS:
        candidates = _without_dropped(candidates, GROUPS, ACTIVE_GROUPS, BIASED)
    slot = tl.arange(0, SLOTS)
    chosen = tl.zeros((SLOTS,), tl.int32)
    share = tl.zeros((SLOTS,), tl.float32)
    for place in tl.static_range(ACTIVE):
        best = tl.argmax(candidates, 0)
        chosen = tl.where(slot == place, best, chosen)
        share = tl.where(slot == place, tl.sum(tl.where(expert == best, worth, 0.0), 0), share)
        candidates = tl.where(expert == best, -float("inf"), candidates)
    if NORMALISE:
        share = share / (tl.sum(share, 0) + 1e-20)
    share *= scale
    if FURTHER > 0:
        chosen = tl.where(slot < ACTIVE, chosen, experts + slot - ACTIVE)
        share = tl.where(slot < ACTIVE, share, 1.0)
    at = token * (ACTIVE + FURTHER) + slot
    tl.store(ids + at, chosen.to(tl.int64), mask=slot < ACTIVE + FURTHER)
    tl.store(weights + at, share, mask=slot < ACTIVE + FURTHER)
