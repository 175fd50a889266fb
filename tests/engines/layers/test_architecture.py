"""Numbers that follow from a config: published scales of YaRN, bytes of weights and caches."""

from __future__ import annotations

import pytest

from engines.layers.architecture import GQA, MLA, Architecture, BlockFP8, Experts, Rope, Yarn
from engines.weights.inventory import inventory

MOONLIGHT = Architecture(
    model_type="deepseek_v3",
    vocab=163840,
    hidden=2048,
    depth=27,
    epsilon=1e-5,
    context=8192,
    tied=False,
    rope=Rope(50000.0, 64, interleaved=True),
    attention=MLA(16, None, 512, 128, 64, 128, 192**-0.5),
    dense_size=11264,
    experts=Experts(64, 6, 1408, shared=2, scoring="sigmoid", bias=True),
    sparse=(False,) + (True,) * 26,
    quantised=BlockFP8(),
)


def test_yarn() -> None:
    v3, lite = (Yarn(40.0, 4096, mscale=mscale, mscale_all_dim=mscale) for mscale in (1.0, 0.707))
    assert v3.multiplier == 1 and lite.multiplier == 1
    assert 192**-0.5 * v3.sharpening == pytest.approx(0.135234, abs=1e-6)
    assert 192**-0.5 * lite.sharpening == pytest.approx(0.114721, abs=1e-6)
    assert Yarn(4.0, 32768).multiplier == pytest.approx(1.1386294)
    assert Yarn(4.0, 32768, attention=1.5).multiplier == 1.5
    assert Yarn(0.5, 32768).multiplier == 1


def test_bytes() -> None:
    assert MOONLIGHT.kv_bytes_per_token == 27 * 1152
    assert sum(spec.bytes for spec in inventory(MOONLIGHT)) / 1e9 == pytest.approx(16.6, abs=0.1)


def test_bytes_without_quantisation() -> None:
    small = Architecture(
        "llama", 100, 8, 2, 1e-6, 64, True, Rope(1e4, 4), GQA(2, 1, 4), 16, None, (False,) * 2, dtype="float32"
    )
    assert small.kv_bytes_per_token == 2 * 2 * 4 * 4
    assert sum(spec.bytes for spec in inventory(small) if len(spec.shape) == 2) == 4 * (
        100 * 8 + 2 * (2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16)
    )
