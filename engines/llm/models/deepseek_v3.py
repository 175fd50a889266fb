"""DeepSeek-V3 and its relatives (Moonlight): V2's attention, and experts chosen by sigmoid with a correcting bias."""

from __future__ import annotations

from engines.layers.architecture import Architecture, Experts
from engines.llm.models.deepseek_v2 import latent
from engines.llm.models.fields import Fields


def architecture(fields: Fields) -> Architecture:
    """Of a config with model_type "deepseek_v3"."""
    fields.only("topk_method", "noaux_tc")
    fields.only("scoring_func", "sigmoid")
    experts = Experts(
        count=fields.size("n_routed_experts"),
        active=fields.size("num_experts_per_tok"),
        size=fields.size("moe_intermediate_size"),
        shared=fields.integer("n_shared_experts", 0),
        scoring="sigmoid",
        groups=fields.size("n_group", 1),
        active_groups=fields.size("topk_group", 1),
        normalise=fields.flag("norm_topk_prob", True),
        scale=fields.number("routed_scaling_factor", 1.0),
        bias=True,
    )
    return latent(fields, experts, interleaved=fields.flag("rope_interleave", True))
