"""A dense model cut into experts, all of them active, is the dense model; of fewer the first are taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engines.layers.architecture import Experts
from engines.llm.errors import ModelBroken
from engines.llm.models import architecture_of, build
from engines.weights import MemoryTensors
from tests.engines.layers.stepping import Sequenced, Stepper
from tests.engines.llm.models.families import CASES, made

COUNT = 4
IDS = torch.randint(320, (30,), generator=torch.Generator().manual_seed(4)).tolist()


def upcycled(case: str, active: int = COUNT) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config and tensors of a case's dense model, cut into experts."""
    _, config, tensors = made(case)
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        prefix, _, part = name.partition(".mlp.")
        if not part:
            found[name] = tensor
            continue
        found[f"{prefix}.mlp.gate.weight"] = torch.zeros(COUNT, config["hidden_size"])
        for expert, piece in enumerate(tensor.chunk(COUNT, dim=1 if part.startswith("down") else 0)):
            found[f"{prefix}.mlp.experts.{expert}.{part}"] = piece
    changed = {
        **config,
        "model_type": "chains_upcycled",
        "base_model_type": config["model_type"],
        "num_experts": COUNT,
        "num_experts_per_tok": active,
        "moe_intermediate_size": config["intermediate_size"] // COUNT,
        "norm_topk_prob": True,
        "routed_scaling_factor": float(COUNT),
        "scoring_func": "softmax",
    }
    return changed, found


def run(config: dict[str, Any], tensors: dict[str, Tensor], precision: str) -> Tensor:
    decoder = build(architecture_of(config), MemoryTensors(tensors), precision=precision, device="cpu")
    stepper, sequence = Stepper(decoder), Sequenced(IDS)
    prefill = stepper.step([(sequence, 25)], every=True)
    return torch.cat([prefill, *(stepper.step([(sequence, 1)]) for _ in range(5))])


@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("fp64", 1e-12), ("bf16", 2e-2), ("int8", 6e-2)])
def test_all_experts_are_the_dense_model(case: str, precision: str, tolerance: float) -> None:
    _, config, tensors = made(case)
    dense, sparse = run(config, tensors, precision), run(*upcycled(case), precision)
    assert float((dense - sparse).norm() / dense.norm()) < tolerance


def test_with_fewer_experts_the_first_of_equals_are_taken() -> None:
    """A router of zeros likes all experts alike: of 2 active ones each weighs a half, times the scale of 4."""
    config, tensors = upcycled("llama", active=2)
    _, dense_config, dense = made("llama")
    size = dense_config["intermediate_size"] // 2
    for name in [name for name in dense if ".mlp." in name]:
        dense[name] = 2 * dense[name][:, :size] if "down" in name else dense[name][:size]
    wanted = run({**dense_config, "intermediate_size": size}, dense, "fp64")
    found = run(config, tensors, "fp64")
    assert float((found - wanted).norm() / wanted.norm()) < 1e-12


def test_architecture() -> None:
    config, _ = upcycled("qwen3")
    found = architecture_of(config)
    assert found.experts == Experts(count=4, active=4, size=24, normalise=True, scale=4.0)
    assert found.sparse == (True,) * CASES["qwen3"][1]["num_hidden_layers"]
    with pytest.raises(ModelBroken, match="base_model_type = 'mamba'; known are llama, qwen2, qwen3"):
        architecture_of({**config, "base_model_type": "mamba"})
