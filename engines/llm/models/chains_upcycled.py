"""A dense model whose MLPs were cut into experts: its base's attention, and a router in each layer."""

from __future__ import annotations

from dataclasses import replace

from engines.layers.architecture import Architecture, Experts
from engines.llm.errors import ModelBroken
from engines.llm.models import llama, qwen2, qwen3
from engines.llm.models.fields import OTHER_MODEL, Fields

BASES = {"llama": llama.architecture, "qwen2": qwen2.architecture, "qwen3": qwen3.architecture}


def architecture(fields: Fields) -> Architecture:
    """Of a config with model_type "chains_upcycled"; `base_model_type` says what it was."""
    base = fields.word("base_model_type")
    if base not in BASES:
        raise ModelBroken(
            f"{fields.where} has base_model_type = {base!r}; known are {', '.join(BASES)}", mend=OTHER_MODEL
        )
    fields.only("scoring_func", "softmax")
    dense = BASES[base](fields)
    experts = Experts(
        count=fields.size("num_experts"),
        active=fields.size("num_experts_per_tok"),
        size=fields.size("moe_intermediate_size"),
        normalise=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 1.0),
    )
    return replace(dense, experts=experts, sparse=(True,) * dense.depth)
