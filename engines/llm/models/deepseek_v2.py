"""DeepSeek-V2: multi-head latent attention, and experts chosen by softmax, in groups or among all."""

from __future__ import annotations

from engines.layers.architecture import MLA, Architecture, Experts, Yarn
from engines.llm.errors import ModelBroken
from engines.llm.models.fields import MOST_LAYERS, OTHER_MODEL, Fields, dtype_of, quantised_of, rope_of

METHODS = ("greedy", "group_limited_greedy")


def architecture(fields: Fields) -> Architecture:
    """Of a config with model_type "deepseek_v2"."""
    method = fields.word("topk_method", "greedy")
    if method not in METHODS:
        raise ModelBroken(
            f"{fields.where} has topk_method = {method!r}; known are {', '.join(METHODS)}", mend=OTHER_MODEL
        )
    fields.only("scoring_func", "softmax")
    grouped = method == "group_limited_greedy"
    normalise = fields.flag("norm_topk_prob", False)
    experts = Experts(
        count=fields.size("n_routed_experts"),
        active=fields.size("num_experts_per_tok"),
        size=fields.size("moe_intermediate_size"),
        shared=fields.integer("n_shared_experts", 0),
        groups=fields.size("n_group") if grouped else 1,
        active_groups=fields.size("topk_group") if grouped else 1,
        normalise=normalise,
        scale=1.0 if normalise else fields.number("routed_scaling_factor", 1.0),
    )
    return latent(fields, experts, interleaved=True)


def latent(fields: Fields, experts: Experts, *, interleaved: bool) -> Architecture:
    """A decoder with latent attention, dense in its first layers and with experts in the others."""
    fields.only("hidden_act", "silu")
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    depth = fields.size("num_hidden_layers", most=MOST_LAYERS)
    nope, turned = fields.size("qk_nope_head_dim"), fields.size("qk_rope_head_dim")
    rope = rope_of(fields, turned, interleaved=interleaved)
    scale = (nope + turned) ** -0.5
    attention = MLA(
        heads=heads,
        q_lora=fields.size("q_lora_rank") if fields.has("q_lora_rank") else None,
        kv_lora=fields.size("kv_lora_rank"),
        nope=nope,
        rope=turned,
        value=fields.size("v_head_dim"),
        scale=scale * rope.scaling.sharpening if isinstance(rope.scaling, Yarn) else scale,
        bias=fields.flag("attention_bias", False),
    )
    first, every = fields.integer("first_k_dense_replace", 0), fields.size("moe_layer_freq", 1)
    return Architecture(
        model_type=fields.word("model_type"),
        vocab=fields.size("vocab_size"),
        hidden=hidden,
        depth=depth,
        epsilon=fields.number("rms_norm_eps", 1e-6),
        context=fields.size("max_position_embeddings", 2048),
        tied=fields.flag("tie_word_embeddings", False),
        rope=rope,
        attention=attention,
        dense_size=fields.size("intermediate_size"),
        experts=experts,
        sparse=tuple(layer >= first and layer % every == 0 for layer in range(depth)),
        quantised=quantised_of(fields),
        dtype=dtype_of(fields),
        ends=fields.integers("eos_token_id"),
        mlp_bias=fields.flag("mlp_bias", False),
    )
