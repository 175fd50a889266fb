"""Products with weights: y = x W^T + b for x [T, inputs], in each of the forms that weights are held in."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engines.kernels.gemm import block_fp8_gemm
from engines.kernels.quant import round_activations

INT4_GROUP = 64
INT4_ROWS = 16
INT4_FEW = 16
"""Tokens up to which the 4-bit product is quicker than one with the weights expanded to bfloat16."""


class Linear(Protocol):
    """y [T, outputs] of x [T, inputs], in x's type."""

    def __call__(self, x: Tensor) -> Tensor: ...


class PlainLinear:
    """Weights in the activations' type."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


def by_inputs(weight: Tensor) -> Tensor:
    """The same weight [outputs, inputs], laid out in memory input by input where that is quicker: in float32 on a CPU
    one token takes an eighth less time so, and four or eight take a quarter less."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or weight.shape[0] <= weight.shape[1]:
        return weight
    return weight.t().contiguous().t()


class BlockFP8Linear:
    """e4m3 weights with a scale for each 128 x 128 block; x is quantised on the way."""

    def __init__(self, weight: Tensor, scales: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.scales, self.bias = weight, scales, bias

    def __call__(self, x: Tensor) -> Tensor:
        y = block_fp8_gemm(x, self.weight, self.scales)
        return y if self.bias is None else y.add_(self.bias)


class RoundedLinear:
    """What BlockFP8Linear computes, with weights that were expanded once: for CPUs, which multiply no e4m3."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(round_activations(x), self.weight, self.bias)


class Int8Linear:
    """int8 weights (a scale for each output) and 8-bit activations (a scale for each token), on a CPU.

    Held twice: one token alone is quickest in one library's layout, several together in the other's. Activations are
    unsigned with their zero in the middle, as every x86 multiplies them; signed ones only some do, and on others the
    library falls back to plain loops that take a thousand times as long.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        weight = weight.float()
        scales = weight.abs().amax(dim=1).clamp_min(1e-8) / 127
        whole = torch.clamp(torch.round(weight / scales[:, None]), -127, 127).to(torch.int8)
        self.single, self.several = _for_one(whole, scales), torch.ops.onednn.qlinear_prepack(whole, None)
        self.scales, self.zeros = scales, torch.zeros(len(scales), dtype=torch.int32)
        self.bias = None if bias is None else bias.float()
        self.coarse, self.levels = _saturates_for_one(), 63 if _saturates_for_several() else 127

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) == 1:
            y: Tensor = torch.ops.quantized.linear_dynamic(x, self.single, self.coarse)
        else:
            ranges = x.abs().amax(dim=-1, keepdim=True).clamp_min_(1e-8).mul_(1 / self.levels)
            rounded = torch.div(x, ranges).round_().add_(self.levels + 1).to(torch.uint8)
            y = _several(rounded, self.levels + 1, self.several, self.scales, self.zeros).mul_(ranges)
        return y if self.bias is None else y.add_(self.bias)


def _for_one(whole: Tensor, scales: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch plans to move this API to another package; our torch is pinned
        zeros = torch.zeros(len(scales), dtype=torch.long)
        weight = torch._make_per_channel_quantized_tensor(whole, scales, zeros, 0)
        return torch.ops.quantized.linear_prepack(weight, None)


def _several(x: Tensor, zero: int, weight: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """x [T, inputs] of uint8, whose nought is `zero`."""
    made: Tensor = torch.ops.onednn.qlinear_pointwise(
        x, 1.0, zero, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return made


# Before VNNI, x86 adds two products of 8 bits in 16, which the largest do not fit into. Whether they do is tried, for
# each of the two libraries: they choose by rules of their own. With 7 bits of activations they always fit.


@lru_cache(maxsize=1)
def _saturates_for_one() -> bool:
    weight, ones = torch.full((16, 64), 127, dtype=torch.int8), torch.ones(16)
    found = torch.ops.quantized.linear_dynamic(torch.full((1, 64), 255.0), _for_one(weight, ones))
    return bool((found - 64 * 255 * 127).abs().max() > 255 * 127)


@lru_cache(maxsize=1)
def _saturates_for_several() -> bool:
    weight = torch.ops.onednn.qlinear_prepack(torch.full((16, 64), 127, dtype=torch.int8), None)
    zeros = torch.zeros(16, dtype=torch.int32)
    found = _several(torch.full((2, 64), 255, dtype=torch.uint8), 0, weight, torch.ones(16), zeros)
    return bool((found != 64 * 255 * 127).any())


class Int4Linear:
    """4-bit weights with a scale and an offset for each 64 inputs, multiplied in bfloat16, on a CPU.

    The inputs are a multiple of 64 and the outputs of 16. Held twice: prompts are multiplied with the same weights
    expanded.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        outputs, inputs = weight.shape
        groups = weight.float().view(outputs, inputs // INT4_GROUP, INT4_GROUP)
        least, most = groups.amin(-1), groups.amax(-1)
        scales = ((most - least) / 15).clamp_min(1e-8).bfloat16()
        # The library computes (q - 8) * scale + offset.
        offsets = (least + 8 * scales.float()).bfloat16()
        levels = (groups - offsets.float().unsqueeze(-1)) / scales.float().unsqueeze(-1) + 8
        q = levels.round().clamp(0, 15).int().view(outputs, inputs)
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(q, 1)
        self.scales = torch.stack((scales, offsets), -1).transpose(0, 1).contiguous()
        restored = (q.view_as(groups) - 8) * scales.float().unsqueeze(-1) + offsets.float().unsqueeze(-1)
        self.expanded = restored.view(outputs, inputs).bfloat16()
        self.bias = bias

    @staticmethod
    def takes(outputs: int, inputs: int) -> bool:
        """Whether weights of this shape can be held so."""
        return inputs % INT4_GROUP == 0 and outputs % INT4_ROWS == 0

    def __call__(self, x: Tensor) -> Tensor:
        half = x.bfloat16()
        if len(x) > INT4_FEW:
            y = functional.linear(half, self.expanded)
        else:
            y = torch.ops.aten._weight_int4pack_mm_for_cpu(half, self.packed, INT4_GROUP, self.scales)
        y = y.to(x.dtype)
        return y if self.bias is None else y.add_(self.bias)


class Beside:
    """Products that could not be fused into one; their results lie side by side."""

    def __init__(self, parts: Sequence[Linear]) -> None:
        self.parts = parts

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], dim=-1)
