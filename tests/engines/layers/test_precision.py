"""What a model can be run in."""

from __future__ import annotations

import pytest
import torch

from engines.layers.architecture import BlockFP8
from engines.layers.errors import PrecisionUnknown
from engines.layers.precision import Numerics


@pytest.mark.parametrize(
    ("precision", "device", "stored", "match"),
    [
        ("fp7", "cpu", None, "'fp7' is not known; write one of fp32, fp64, bf16, fp8, int8, int4"),
        ("int8", "cuda", None, "int8 runs on a CPU alone"),
        ("fp8", "cpu", None, "run `chains quantize`"),
        ("fp32", "cpu", BlockFP8(64, 64), "blocks of 64x64; only 128x128"),
    ],
)
def test_refused(precision: str, device: str, stored: BlockFP8 | None, match: str) -> None:
    with pytest.raises(PrecisionUnknown, match=match):
        Numerics.of(precision, device, stored)


def test_small_integers_are_multiplied_on_x86_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    for precision in ("int8", "int4"):
        with pytest.raises(PrecisionUnknown, match=f"{precision} runs on x86 alone, and this is arm64; write auto"):
            Numerics.of(precision, "cpu", None)
    assert Numerics.of("fp32", "cpu", None).precision == "fp32"


def test_types_between_layers() -> None:
    kinds = [(p, d) for p in ("fp32", "fp64", "bf16", "fp8") for d in ("cpu", "cuda") if (p, d) != ("fp64", "cuda")]
    found = {(p, d): Numerics.of(p, d, BlockFP8()).activations for p, d in kinds}
    assert found["fp8", "cpu"] == torch.float32 and found["fp8", "cuda"] == torch.bfloat16
    assert found["fp64", "cpu"] == torch.float64 and found["bf16", "cpu"] == torch.bfloat16
    assert Numerics.of("fp8", "cuda", BlockFP8()).keeps_fp8 and not Numerics.of("fp8", "cpu", BlockFP8()).keeps_fp8
