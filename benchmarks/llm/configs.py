"""Shapes of mixture-of-experts models to measure with random weights, as their config.json would say."""

from __future__ import annotations

from typing import Any

_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
_DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_layer_freq": 1,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True, "tie_word_embeddings": False,
    "max_position_embeddings": 16384, "rope_theta": 10000.0, "rope_interleave": True, "dtype": "bfloat16",
    "bos_token_id": 0, "eos_token_id": 1, "quantization_config": _FP8,
}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {
    "moonlight": _DEEPSEEK | {
        "num_hidden_layers": 27, "first_k_dense_replace": 1, "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 16, "q_lora_rank": None, "intermediate_size": 11264, "moe_intermediate_size": 1408,
        "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "n_group": 1, "topk_group": 1,
        "routed_scaling_factor": 2.446, "rope_theta": 50000.0, "vocab_size": 163840, "rms_norm_eps": 1e-5,
    },
    "mini-v3": _DEEPSEEK | {
        "num_hidden_layers": 28, "first_k_dense_replace": 2, "hidden_size": 2560, "num_attention_heads": 32,
        "num_key_value_heads": 32, "q_lora_rank": 1536, "intermediate_size": 10240, "moe_intermediate_size": 768,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8, "topk_group": 4,
        "routed_scaling_factor": 2.5, "vocab_size": 129280,
    },
    "v3-slice-8": _DEEPSEEK | {
        "num_hidden_layers": 8, "first_k_dense_replace": 3, "hidden_size": 7168, "num_attention_heads": 128,
        "num_key_value_heads": 128, "q_lora_rank": 1536, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8, "topk_group": 4,
        "routed_scaling_factor": 2.5, "vocab_size": 129280,
    },
    "tiny": _DEEPSEEK | {
        "num_hidden_layers": 2, "first_k_dense_replace": 1, "hidden_size": 256, "num_attention_heads": 2,
        "num_key_value_heads": 2, "q_lora_rank": None, "intermediate_size": 256, "moe_intermediate_size": 128,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
        "routed_scaling_factor": 1.0, "vocab_size": 512,
    },
}  # fmt: skip
