"""Configs as published are read whole; what is missing, of another kind or not supported is named."""

from __future__ import annotations

from typing import Any

import pytest

from engines.layers.architecture import GQA, MLA, BlockFP8, Experts, Llama3, Rope, Yarn
from engines.llm.errors import ModelBroken
from engines.llm.models import architecture_of
from engines.weights.inventory import inventory
from tests.engines.llm.checkpoints import DEEPSEEK_V3

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
V3: dict[str, Any] = dict(DEEPSEEK_V3)
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "eos_token_id": [128001, 128008, 128009],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}


def test_deepseek_v3() -> None:
    found = architecture_of(V3)
    assert isinstance(found.attention, MLA) and found.attention.scale == pytest.approx(0.135234, abs=1e-6)
    assert found.attention.q_lora == 1536 and found.attention.cached == 576
    assert found.experts == Experts(256, 8, 2048, 1, "sigmoid", 8, 4, True, 2.5, True)
    assert found.sparse == (False,) * 3 + (True,) * 58
    assert found.rope == Rope(10000.0, 64, True, Yarn(40.0, 4096, mscale_all_dim=1.0))
    assert found.quantised == BlockFP8() and found.ends == (1,) and found.dtype == "bfloat16"
    assert sum(spec.bytes for spec in inventory(found)) / 1e9 == pytest.approx(673, abs=3)


def test_llama() -> None:
    found = architecture_of(LLAMA)
    assert found.attention == GQA(32, 8, 64)
    assert found.rope == Rope(500000.0, 64, False, Llama3(32.0, 1.0, 4.0, 8192))
    assert found.tied and found.experts is None and found.ends == (128001, 128008, 128009)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'.*take one of chains_upcycled, deepseek_v2, deepseek_v3, llama"),
        ({"hidden_size": None}, "the config has no hidden_size"),
        ({"hidden_size": "big"}, "hidden_size = 'big', which is not a whole number"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'; only 'silu'"),
        ({"topk_method": "greedy"}, "topk_method = 'greedy'; only 'noaux_tc'"),
        ({"rope_scaling": {"type": "longrope"}}, "the type 'longrope'; supported are default, linear, llama3 and yarn"),
        ({"rope_scaling": 7}, "rope_scaling = 7, which is not an object"),
        ({"torch_dtype": "int3"}, "the type 'int3'"),
        ({"norm_topk_prob": 1}, "norm_topk_prob = 1, which is not true or false"),
        ({"eos_token_id": "end"}, "eos_token_id = 'end', which is not a whole number or a list"),
        ({"quantization_config": {"quant_method": "awq"}}, "the method 'awq'; only block FP8"),
        ({"quantization_config": {**FP8, "activation_scheme": "static"}}, "activation_scheme = 'static'"),
        ({"quantization_config": {**FP8, "weight_block_size": None}}, "no weight_block_size"),
    ],
)
def test_what_cannot_be_used(changed: dict[str, Any], match: str) -> None:
    with pytest.raises(ModelBroken, match=match):
        architecture_of({**V3, **changed})


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
@pytest.mark.parametrize("value", [0, -1, 1e400, float("nan"), 10**400, 1 << 40, 1.5, True, "8"])
@pytest.mark.parametrize("config", [LLAMA, V3])
def test_a_size_is_a_number_that_a_model_can_have(config: dict[str, Any], name: str, value: object) -> None:
    with pytest.raises(ModelBroken, match=f"has {name} = .*, which is not a whole number"):
        architecture_of({**config, name: value})


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan, which is not a number"),
        ({"rope_theta": 0, "rope_scaling": None}, "rope_theta = 0.0, which is not a number above 0"),
        ({"rope_scaling": {**V3["rope_scaling"], "factor": 0}}, "factor = 0.0, which is not a number above 0"),
        ({"moe_layer_freq": 0}, "moe_layer_freq = 0"),
        ({"quantization_config": {**FP8, "weight_block_size": [0, 128]}}, "weight_block_size"),
        ({"num_hidden_layers": 10**6}, "from 1 to 4096"),
    ],
)
def test_numbers_that_cannot_be_computed_with(changed: dict[str, Any], match: str) -> None:
    with pytest.raises(ModelBroken, match=match):
        architecture_of({**V3, **changed})
