"""Random weights of an architecture, made when they are taken: for measuring without a checkpoint."""

from __future__ import annotations

import zlib

import torch

from engines.weights.inventory import SCALE, Described, Spec, inventory
from engines.weights.tensors import NamedTensors

ADDED = ("o_proj.weight", "down_proj.weight")
FP8_SPREAD = 64.0  # the standard deviation of quantised values; e4m3 reaches 448


class RandomTensors(NamedTensors):
    """A checkpoint that is nowhere stored. A name and a seed always give the same numbers on the same kind of device.

    Linear weights keep the size of what passes through them (deviation 1 / sqrt(inputs)); norms are ones. What a
    layer adds is small beside what it adds to, as in a trained model: else the rounding of activations to FP8, which
    each product makes larger, would be all that is left of a token after a few layers.
    """

    def __init__(self, architecture: Described, seed: int = 0, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self._specs = {spec.name: spec for spec in inventory(architecture)}
        self._seed, self._device = seed, torch.device(device)
        self._added = (2 * architecture.depth) ** -0.5

    def names(self) -> tuple[str, ...]:
        return tuple(self._specs)

    def has(self, name: str) -> bool:
        return name in self._specs

    def shape(self, name: str) -> tuple[int, ...]:
        return self._found(name).shape

    def dtype(self, name: str) -> torch.dtype:
        return self._found(name).dtype

    def _found(self, name: str) -> Spec:
        if name not in self._specs:
            raise self._missing(name)
        return self._specs[name]

    def _rows(self, name: str, first: int, end: int) -> torch.Tensor:
        spec = self._found(name)
        if spec.name.endswith("norm.weight"):
            return torch.ones(end - first, dtype=spec.dtype, device=self._device)
        if spec.part == "block scales":
            deviation = self._deviation(self._specs[name.removesuffix(SCALE)])
            return torch.full(spec.shape, deviation / FP8_SPREAD, dtype=spec.dtype, device=self._device)[first:end]
        generator = torch.Generator(self._device)
        generator.manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))  # a CPU looks at 32 bits alone
        kind = torch.bfloat16 if self._device.type == "cuda" and spec.dtype.itemsize < 4 else torch.float32
        numbers = torch.randn(spec.shape, generator=generator, dtype=kind, device=self._device)
        if spec.dtype == torch.float8_e4m3fn:
            return numbers.mul_(FP8_SPREAD).clamp_(-448, 448).to(spec.dtype)[first:end]
        return numbers.mul_(self._deviation(spec)).to(spec.dtype)[first:end]

    def _deviation(self, spec: Spec) -> float:
        if spec.part == "embedding":
            return 1.0
        if len(spec.shape) == 1:
            return 0.02
        added = self._added if spec.name.endswith(ADDED) else 1.0
        return float(added * spec.shape[1] ** -0.5)


def random_tensors(architecture: Described, seed: int = 0, device: torch.device | str = "cpu") -> RandomTensors:
    """Weights of `architecture` (block FP8 where it is quantised), under the names its family's checkpoint has."""
    return RandomTensors(architecture, seed, device)
