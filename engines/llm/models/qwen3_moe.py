"""Qwen3-MoE: Qwen3 with experts chosen by softmax in every layer that the config does not leave dense."""

from __future__ import annotations

from dataclasses import replace

from engines.layers.architecture import Architecture, Experts
from engines.llm.models import qwen3
from engines.llm.models.fields import Fields


def architecture(fields: Fields) -> Architecture:
    """Of a config with model_type "qwen3_moe"."""
    dense = qwen3.architecture(fields)
    step, kept_dense = fields.size("decoder_sparse_step", 1), fields.integers("mlp_only_layers")
    experts = Experts(
        count=fields.size("num_experts") if fields.has("num_experts") else fields.size("num_local_experts"),
        active=fields.size("num_experts_per_tok"),
        size=fields.size("moe_intermediate_size"),
        normalise=fields.flag("norm_topk_prob", False),
    )
    sparse = tuple(layer not in kept_dense and (layer + 1) % step == 0 for layer in range(dense.depth))
    return replace(dense, experts=experts, sparse=sparse)
