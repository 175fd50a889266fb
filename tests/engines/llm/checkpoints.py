"""Tiny checkpoints as Hugging Face stores them, with random weights, and the dense model's maths in plain torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from engines.layers.inputs import Inputs
from engines.llm.models import architecture_of, build
from engines.weights import open_checkpoint
from engines.weights.inventory import inventory
from engines.weights.random import random_tensors

Tensors = dict[str, torch.Tensor]

LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 1,
    "dtype": "float32",
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 384,
    "max_position_embeddings": 128,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "vocab_size": 96,
}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "tie_word_embeddings": False}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
SMALL_DEEPSEEK: Mapping[str, Any] = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "dtype": "bfloat16",
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 160,
    "intermediate_size": 200,
    "kv_lora_rank": 64,
    "max_position_embeddings": 128,
    "moe_intermediate_size": 96,
    "moe_layer_freq": 1,
    "n_group": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "v_head_dim": 32,
    "vocab_size": 96,
}
SMALL_V2 = {
    **SMALL_DEEPSEEK,
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "norm_topk_prob": False,
    "q_lora_rank": None,
    "scoring_func": "softmax",
    "topk_method": "group_limited_greedy",
}
QWEN3_MOE = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 96,
    "norm_topk_prob": True,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}
DEEPSEEK_V3: Mapping[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 129280,
}


def write_checkpoint(
    folder: Path, config: Mapping[str, Any], change: Callable[[Tensors], object] | None = None, shards: int = 1
) -> Path:
    """A directory with config.json, a tokenizer's files and random weights; `change` may spoil the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    made = random_tensors(architecture_of(dict(config)), seed=11)
    tensors = {name: made.take(name, made.shape(name)).contiguous() for name in made.names()}
    if change is not None:
        change(tensors)
    names = list(tensors)
    for shard in range(shards):
        save_file({name: tensors[name] for name in names[shard::shards]}, folder / f"model-{shard}.safetensors")
    (folder / "config.json").write_text(json.dumps(dict(config)))
    (folder / "tokenizer_config.json").write_text('{"chat_template": "hello"}')
    (folder / "tokenizer.json").write_text('{"model": {}}')
    (folder / "generation_config.json").write_text('{"eos_token_id": 2}')
    (folder / "optimizer.pt").write_bytes(b"no part of the model")
    return folder


def read_tensors(folder: Path) -> Tensors:
    """Every stored tensor."""
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def names_of(config: Mapping[str, Any]) -> set[str]:
    return {spec.name for spec in inventory(architecture_of(dict(config)))}


def mlp(x: torch.Tensor, tensors: Tensors, prefix: str) -> torch.Tensor:
    """down(silu(gate x) * up x)."""
    gate, up, down = (tensors[f"{prefix}{name}_proj.weight"].to(x.dtype) for name in ("gate", "up", "down"))
    return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T


def logits(folder: Path, tokens: list[int], precision: str) -> torch.Tensor:
    """[T, vocab] of one sequence through the engine's decoder."""
    tensors = open_checkpoint(folder)
    architecture = architecture_of(json.loads((folder / "config.json").read_text()))
    decoder = build(architecture, tensors, precision=precision, device="cpu")
    tensors.finish()
    count, small = len(tokens), torch.int32
    inputs = Inputs(
        ids=torch.tensor(tokens),
        positions=torch.arange(count),
        slots=torch.arange(1, count + 1),
        pages=torch.arange(1, count + 1, dtype=small)[None],
        starts=torch.tensor([0, count], dtype=small),
        lengths=torch.tensor([count], dtype=small),
        decodes=0,
        longest_query=count,
        longest=count,
        keep=torch.arange(count),
    )
    return decoder.logits(decoder.forward(inputs, decoder.new_cache(count + 1)))
