"""What stands behind attention in a layer: a dense MLP, or a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engines.kernels.experts import fused_experts, fused_experts_plain, fused_experts_plain_reference, route
from engines.kernels.norm import silu_mul
from engines.kernels.quant import BLOCK
from engines.layers.architecture import Experts
from engines.layers.linear import Linear
from engines.layers.loading import Loader, Part, filled

EXPANDED_AT_MOST = 2**28
"""Numbers in a layer's FP8 experts up to which a CPU expands them once (4 bytes each), rather than at each use."""


class MLP:
    """silu(gate) * up, then down."""

    def __init__(self, prefix: str, hidden: int, size: int, loader: Loader, *, bias: bool = False) -> None:
        gate, up, down = _three(prefix, hidden, size, loader.ranks.share(size), bias=bias)
        self.gate_up = loader.linear(gate, up, fill=0)
        self.down = loader.linear(down, fill=1)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(silu_mul(self.gate_up(x)))


class Routed(Protocol):
    """The weighted sum [T, D] of each token's experts, ids [T, k] and weights [T, k]."""

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor: ...


class Mixture:
    """A router, its experts, and the experts that every token takes."""

    def __init__(self, spec: Experts, prefix: str, hidden: int, loader: Loader) -> None:
        self.spec = spec
        self.wide = torch.float64 if loader.numerics.activations == torch.float64 else torch.float32
        self.router = loader.matrix(f"{prefix}.gate.weight", spec.count, hidden, self.wide)
        self.bias: Tensor | None = None
        if spec.bias:
            self.bias = loader.vector(f"{prefix}.gate.e_score_correction_bias", spec.count).to(self.wide)
        stored = [
            _three(f"{prefix}.experts.{expert}", hidden, spec.size, loader.ranks.share(spec.size))
            for expert in range(spec.count)
        ]
        self.shared: MLP | None = None
        self.further = 0
        if spec.shared and not loader.numerics.on_cpu and spec.size % BLOCK == 0:
            self.further = spec.shared  # one launch for all experts, the shared ones included
            stored += list(_cut(prefix, hidden, spec, loader))
        elif spec.shared:
            self.shared = MLP(f"{prefix}.shared_experts", hidden, spec.size * spec.shared, loader)
        self.experts = _held(stored, spec, loader)

    def __call__(self, x: Tensor) -> Tensor:
        ids, weights = self._route(x)
        out = self.experts(x, ids, weights)
        return out if self.shared is None else out + self.shared(x)

    def _route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spec = self.spec
        ids, weights = route(
            functional.linear(x.to(self.wide), self.router),
            self.bias,
            scoring=spec.scoring,
            groups=spec.groups,
            active_groups=spec.active_groups,
            active=spec.active,
            normalise=spec.normalise,
            scale=spec.scale,
        )
        if not self.further:
            return ids, weights
        # The shared experts stand behind the others; ids and weights grow without a look at the device.
        behind = torch.arange(spec.count, spec.count + self.further, device=ids.device, dtype=ids.dtype)
        ids = torch.cat([ids, behind.expand(len(ids), -1)], dim=1)
        return ids, functional.pad(weights, (0, self.further), value=1.0)


class PackedExperts:
    """gate_up [E, 2 I, D] and down [E, D, I] in the activations' type; `rounding`: with FP8's activations."""

    def __init__(self, gate_up: Tensor, down: Tensor, *, rounding: bool) -> None:
        self.gate_up, self.down, self.rounding = gate_up, down, rounding

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        if self.rounding:
            return fused_experts_plain_reference(x, ids, weights, self.gate_up, self.down, rounding=True)
        return fused_experts_plain(x, ids, weights, self.gate_up, self.down)


class PackedFP8Experts:
    """The same in e4m3 with a scale for each block."""

    def __init__(self, gate_up: Tensor, gate_up_scales: Tensor, down: Tensor, down_scales: Tensor) -> None:
        self.gate_up, self.gate_up_scales, self.down, self.down_scales = gate_up, gate_up_scales, down, down_scales

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return fused_experts(x, ids, weights, self.gate_up, self.gate_up_scales, self.down, self.down_scales)


class SmallExperts:
    """Experts in 8 or 4 bits on a CPU, one after the other."""

    def __init__(self, experts: Sequence[tuple[Linear, Linear]]) -> None:
        self.experts = experts

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for expert in torch.unique(ids).tolist():
            gate_up, down = self.experts[expert]
            tokens, places = torch.where(ids == expert)
            share = weights[tokens, places].unsqueeze(1)
            out.index_add_(0, tokens, down(silu_mul(gate_up(x[tokens]))) * share)
        return out


class WideExperts:
    """Experts in 8 or 4 bits on a CPU, all of which every token takes: one wide MLP of weighted inner columns."""

    def __init__(self, gate_up: Linear, down: Linear, count: int) -> None:
        self.gate_up, self.down, self.count = gate_up, down, count

    def __call__(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        share = torch.empty_like(weights).scatter_(1, ids, weights).to(x.dtype)
        hidden = silu_mul(self.gate_up(x)).view(len(x), self.count, -1)
        return self.down((hidden * share.unsqueeze(-1)).flatten(1))


def _three(prefix: str, hidden: int, size: int, taken: slice, *, bias: bool = False) -> tuple[Part, Part, Part]:
    """gate, up and down of an MLP, the range `taken` of its inner size."""
    return (
        Part(f"{prefix}.gate_proj", size, hidden, taken_rows=taken, bias=bias),
        Part(f"{prefix}.up_proj", size, hidden, taken_rows=taken, bias=bias),
        Part(f"{prefix}.down_proj", hidden, size, taken_columns=taken, bias=bias),
    )


def _cut(prefix: str, hidden: int, spec: Experts, loader: Loader) -> Iterator[tuple[Part, Part, Part]]:
    """The shared experts, which are stored as one, as experts of the others' size."""
    whole = spec.size * spec.shared
    share = loader.ranks.share(spec.size)
    for index in range(spec.shared):
        first = index * spec.size
        taken = slice(first + share.start, first + share.stop)
        yield _three(f"{prefix}.shared_experts", hidden, whole, taken)


def _held(stored: Sequence[tuple[Part, Part, Part]], spec: Experts, loader: Loader) -> Routed:
    """The experts in the form that suits the numbers, the device and how many of them a token takes."""
    numerics = loader.numerics
    together = spec.active == spec.count and numerics.on_cpu
    if numerics.precision in ("int8", "int4"):
        if together:
            gates, ups = (torch.cat([loader.expanded(three[place]) for three in stored]) for place in (0, 1))
            downs = torch.cat([loader.expanded(down) for _, _, down in stored], dim=1)
            return WideExperts(loader.product(torch.cat([gates, ups])), loader.product(downs), spec.count)
        return SmallExperts([(loader.linear(gate, up), loader.linear(down)) for gate, up, down in stored])
    fp8 = numerics.precision == "fp8" and loader.quantised(stored[0][0])
    numbers = sum(part.shape[0] * part.shape[1] for three in stored for part in three)
    if fp8 and (numerics.keeps_fp8 or numbers > EXPANDED_AT_MOST):
        return _packed_fp8(stored, loader)
    gate_up, down = _packed(stored, loader)
    if together:  # laid out as the one product over all experts wants it
        down = down.permute(1, 0, 2).contiguous().permute(1, 0, 2)
    return PackedExperts(gate_up, down, rounding=fp8)


def _packed(stored: Sequence[tuple[Part, Part, Part]], loader: Loader) -> tuple[Tensor, Tensor]:
    size, hidden = stored[0][0].shape
    kind, device = loader.numerics.activations, loader.numerics.device
    gate_up = torch.empty(len(stored), 2 * size, hidden, dtype=kind, device=device)
    down = torch.empty(len(stored), hidden, size, dtype=kind, device=device)
    for index, three in enumerate(stored):
        gate_up[index, :size], gate_up[index, size:], down[index] = map(loader.expanded, three)
    return gate_up, down


def _packed_fp8(stored: Sequence[tuple[Part, Part, Part]], loader: Loader) -> PackedFP8Experts:
    """The inner size is filled up with zeros to whole blocks: scales could not tell a block's gate from its up."""
    size, hidden = stored[0][0].shape
    inner, outer, device = -(-size // BLOCK), -(-hidden // BLOCK), loader.numerics.device
    gate_up = torch.empty(len(stored), 2 * inner * BLOCK, hidden, dtype=torch.uint8, device=device)
    down = torch.empty(len(stored), hidden, inner * BLOCK, dtype=torch.uint8, device=device)
    gate_up_scales = torch.empty(len(stored), 2 * inner, outer, device=device)
    down_scales = torch.empty(len(stored), outer, inner, device=device)
    for index, (gate, up, last) in enumerate(stored):
        for place, part in enumerate((gate, up)):
            q, scales = loader.blocks(part)
            gate_up[index, place * inner * BLOCK : (place + 1) * inner * BLOCK] = filled(q, 0).view(torch.uint8)
            gate_up_scales[index, place * inner : (place + 1) * inner] = scales
        q, down_scales[index] = loader.blocks(last)
        down[index] = filled(q, 1).view(torch.uint8)
    kind = torch.float8_e4m3fn
    return PackedFP8Experts(gate_up.view(kind), gate_up_scales, down.view(kind), down_scales)
