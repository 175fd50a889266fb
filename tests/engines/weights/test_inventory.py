"""The list of a checkpoint's tensors is the one that transformers' own models have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engines.llm.models import architecture_of, build
from engines.weights import MemoryTensors, WeightsInvalid
from engines.weights.inventory import check_inventory, dtype_of, inventory
from engines.weights.random import random_tensors
from tests.engines.llm.checkpoints import LLAMA, QWEN2, QWEN3, QWEN3_MOE, SMALL_DEEPSEEK, SMALL_V2

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["model.layers.0.mlp"]}


@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3], ids=lambda config: config["model_type"])
def test_names_and_shapes_are_those_of_the_library(config: Mapping[str, Any]) -> None:
    settings = dict(config)
    library = AutoModelForCausalLM.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    wanted = {name: tuple(tensor.shape) for name, tensor in library.state_dict().items()}
    if config["tie_word_embeddings"]:
        wanted.pop("lm_head.weight")
    assert {spec.name: spec.shape for spec in inventory(architecture_of(dict(config)))} == wanted


@pytest.mark.parametrize(
    "config", [LLAMA, QWEN2, QWEN3, QWEN3_MOE, SMALL_V2, SMALL_DEEPSEEK], ids=lambda config: config["model_type"]
)
@pytest.mark.parametrize("quantised", [False, True], ids=["plain", "fp8"])
def test_the_decoder_takes_every_tensor_and_no_other(config: Mapping[str, Any], quantised: bool) -> None:
    block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    architecture = architecture_of({**config, "quantization_config": block} if quantised else dict(config))
    tensors = random_tensors(architecture)
    build(architecture, tensors, precision="fp32", device="cpu")
    tensors.finish()


def test_quantised_weights_have_their_scales_beside_them() -> None:
    architecture = architecture_of({**LLAMA, "quantization_config": FP8})
    specs = {spec.name: spec for spec in inventory(architecture)}
    assert specs["model.layers.1.mlp.gate_proj.weight"].dtype == torch.float8_e4m3fn
    assert specs["model.layers.1.mlp.gate_proj.weight_scale_inv"].shape == (3, 1)
    assert specs["model.layers.0.mlp.gate_proj.weight"].dtype == torch.float32  # named as not converted
    assert specs["model.layers.0.self_attn.q_proj.weight"].dtype == torch.float8_e4m3fn
    assert specs["model.embed_tokens.weight"].dtype == torch.float32


def test_a_checkpoint_is_held_against_it() -> None:
    architecture = architecture_of(dict(LLAMA))
    made = random_tensors(architecture)
    whole = {name: made.take(name, made.shape(name)) for name in made.names()}
    check_inventory(MemoryTensors(whole), architecture)
    check_inventory(MemoryTensors({**whole, "lm_head.weight": torch.ones(1)}), architecture)  # shared, stored again
    check_inventory(MemoryTensors({**whole, "model.layers.2.eh_proj.weight": torch.ones(1)}), architecture)
    with pytest.raises(WeightsInvalid, match=r"no place for 1 of the tensors: model\.layers\.1\.odd"):
        check_inventory(MemoryTensors({**whole, "model.layers.1.odd": torch.ones(1)}), architecture)
    check_inventory(MemoryTensors({**whole, "model.layers.1.odd": torch.ones(1)}), architecture, ["*.odd"])
    del whole["model.norm.weight"]
    with pytest.raises(WeightsInvalid, match=r"model\.norm\.weight is missing"):
        check_inventory(MemoryTensors(whole), architecture)


def test_folded_experts_count_the_same() -> None:
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "base_model_type": "llama"}
    architecture = architecture_of({**LLAMA, **experts, "model_type": "chains_upcycled", "quantization_config": FP8})
    whole, folded = list(inventory(architecture)), list(inventory(architecture, folded=True))
    assert len(folded) < len(whole) == sum(spec.copies for spec in folded)
    assert sum(spec.bytes for spec in folded) == sum(spec.bytes for spec in whole)


def test_types_by_name() -> None:
    assert dtype_of("bfloat16") is dtype_of("bf16") is dtype_of(torch.bfloat16) is torch.bfloat16
    with pytest.raises(ValueError, match="'int3'"):
        dtype_of("int3")
