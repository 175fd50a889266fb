"""In which numbers a model computes, and on which device; what does not go together is refused."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from engines.layers.architecture import BlockFP8
from engines.layers.errors import PrecisionUnknown

PRECISIONS = ("fp32", "fp64", "bf16", "fp8", "int8", "int4")
CPU_ALONE = ("fp64", "int8", "int4")
X86_ALONE = ("int8", "int4")


@dataclass(frozen=True, slots=True)
class Numerics:
    """A precision on a device, known to go with the checkpoint."""

    precision: str
    device: torch.device

    @staticmethod
    def of(precision: str, device: torch.device | str, stored: BlockFP8 | None) -> Numerics:
        """Raises PrecisionUnknown. `stored` is how the checkpoint is quantised."""
        place = torch.device(device)
        if precision not in PRECISIONS:
            raise PrecisionUnknown(f"the precision {precision!r} is not known; write one of {', '.join(PRECISIONS)}")
        if precision in CPU_ALONE and place.type != "cpu":
            raise PrecisionUnknown(f"{precision} runs on a CPU alone, not on {place}; write fp8 or bf16")
        if precision in X86_ALONE and platform.machine() not in ("x86_64", "AMD64"):
            raise PrecisionUnknown(
                f"{precision} runs on x86 alone, and this is {platform.machine()}; write auto or fp32"
            )
        if precision == "fp8" and stored is None:
            raise PrecisionUnknown(
                "fp8 needs a checkpoint in block FP8, this one is not; run `chains quantize` on it, or write another "
                "precision"
            )
        if stored is not None and (stored.rows, stored.columns) != (128, 128):
            raise PrecisionUnknown(
                f"the checkpoint has FP8 blocks of {stored.rows}x{stored.columns}; only 128x128 can be used"
            )
        return Numerics(precision, place)

    @property
    def activations(self) -> torch.dtype:
        """The type of what flows between layers, and of the cache."""
        if self.precision == "fp64":
            return torch.float64
        if self.precision == "bf16" or (self.precision == "fp8" and not self.on_cpu):
            return torch.bfloat16
        return torch.float32

    @property
    def on_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def keeps_fp8(self) -> bool:
        """Whether weights stay in e4m3: a CPU multiplies none, and expands them once."""
        return self.precision == "fp8" and not self.on_cpu
