"""Small random models of each family as transformers makes them, and their weights under the names of checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

SMALL: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LATENT: dict[str, Any] = {
    **SMALL,
    "num_key_value_heads": 8,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**SMALL, "num_key_value_heads": 2}),
    "llama-tied-biased-llama3": (
        "llama",
        {
            **SMALL,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": LLAMA3,
        },
    ),
    "llama-linear": (
        "llama",
        {**SMALL, "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}},
    ),
    "qwen2": ("qwen2", {**SMALL, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2-yarn": ("qwen2", {**SMALL, "num_key_value_heads": 8, "rope_parameters": YARN}),
    "qwen3": ("qwen3", {**SMALL, "num_key_value_heads": 2, "head_dim": 24, "tie_word_embeddings": True}),
    "qwen3-moe": (
        "qwen3_moe",
        {
            **SMALL,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
        },
    ),
    "qwen3-moe-mixed": (
        "qwen3_moe",
        {
            **SMALL,
            "num_hidden_layers": 5,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "norm_topk_prob": False,
        },
    ),
    "deepseek-v2-lite": ("deepseek_v2", {**LATENT, "q_lora_rank": None, "topk_method": "greedy"}),
    "deepseek-v2-grouped-yarn": (
        "deepseek_v2",
        {
            **LATENT,
            "q_lora_rank": 24,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 3.0,
            "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    "deepseek-v3": (
        "deepseek_v3",
        {
            **LATENT,
            "q_lora_rank": 24,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "deepseek-v3-halves": (
        "deepseek_v3",
        {**LATENT, "q_lora_rank": 24, "n_group": 1, "topk_group": 1, "rope_interleave": False},
    ),
    "moonlight": (
        "deepseek_v3",
        {
            **LATENT,
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "rms_norm_eps": 1e-5,
            "routed_scaling_factor": 2.446,
        },
    ),
}


def made(case: str, dtype: torch.dtype = torch.float32) -> tuple[Any, dict[str, Any], dict[str, Tensor]]:
    """(transformers' model, config.json's contents, tensors) of a case; random, the same at each call."""
    kind, settings = CASES[case]
    return modelled(kind, settings, dtype)


def modelled(
    kind: str, settings: dict[str, Any], dtype: torch.dtype = torch.float32
) -> tuple[Any, dict[str, Any], dict[str, Tensor]]:
    """The same for settings of one's own."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(11)
    config = AutoConfig.for_model(kind, **settings)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)
    _enliven(model)
    return model, model.config.to_dict(), tensors_of(model)


def _enliven(model: Any) -> None:
    """Norms that are not ones, biases that are not zeros: a fault in them must show."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if re.search(r"norm\.weight$", name):
            tensor.copy_(1 + 0.2 * torch.randn_like(tensor))
        elif name.endswith(".bias"):
            tensor.copy_(0.2 * torch.randn_like(tensor))
        elif name.endswith("e_score_correction_bias"):
            tensor.copy_(0.3 * torch.randn_like(tensor) - 0.6)  # many choices are by negative scores


def tensors_of(model: Any) -> dict[str, Tensor]:
    """A model's weights as its checkpoint names them: one tensor for each expert's projection."""
    found: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name.endswith(".experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            for expert, both in enumerate(tensor):
                gate, up = both.chunk(2)
                found[f"{stem}{expert}.gate_proj.weight"], found[f"{stem}{expert}.up_proj.weight"] = gate, up
        elif name.endswith(".experts.down_proj"):
            stem = name.removesuffix("down_proj")
            found |= {f"{stem}{expert}.down_proj.weight": one for expert, one in enumerate(tensor)}
        elif name != "lm_head.weight" or not model.config.tie_word_embeddings:
            found[name] = tensor
    return found


Make = Callable[[str], tuple[Any, dict[str, Any], dict[str, Tensor]]]
