"""Random weights: the same for the same seed, and such that what passes through them stays in range."""

from __future__ import annotations

import pytest
import torch

from engines.kernels.quant import dequantize_blocks
from engines.llm.models import architecture_of
from engines.weights import WeightsInvalid, random_tensors
from tests.engines.llm.checkpoints import LLAMA

ARCHITECTURE = architecture_of(dict(LLAMA))
FP8 = architecture_of({**LLAMA, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})
UP = "model.layers.1.mlp.up_proj.weight"


def test_the_same_seed_gives_the_same_numbers() -> None:
    first, second = random_tensors(ARCHITECTURE, 1), random_tensors(ARCHITECTURE, 1)
    assert torch.equal(first.take(UP, (384, 64)), second.take(UP, (384, 64)))
    assert torch.equal(first.take(UP, (384, 64), rows=slice(9, 20)), second.take(UP, (384, 64))[9:20])
    assert not torch.equal(first.take(UP, (384, 64)), random_tensors(ARCHITECTURE, 2).take(UP, (384, 64)))
    gate = UP.replace("up", "gate")
    assert not torch.equal(first.take(UP, (384, 64)), first.take(gate, (384, 64)))


def test_linear_weights_keep_the_size_of_what_passes_through() -> None:
    tensors = random_tensors(FP8)
    stored = tensors.take(UP, (384, 64))
    scales = tensors.take(f"{UP}_scale_inv", (3, 1))
    assert stored.dtype == torch.float8_e4m3fn and scales.dtype == torch.float32
    weight = dequantize_blocks(stored, scales, torch.float32)
    assert weight.std() == pytest.approx(64**-0.5, rel=0.05)
    assert random_tensors(ARCHITECTURE).take(UP, (384, 64)).std() == pytest.approx(64**-0.5, rel=0.05)
    assert torch.equal(tensors.take("model.norm.weight", (64,)), torch.ones(64))


def test_only_what_the_architecture_has() -> None:
    tensors = random_tensors(ARCHITECTURE)
    assert tensors.has(UP) and not tensors.has("lm_head.weight")
    with pytest.raises(WeightsInvalid, match=r"lm_head\.weight is missing"):
        tensors.take("lm_head.weight", (96, 64))
