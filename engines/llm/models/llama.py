"""Llama: grouped attention and a dense MLP in each layer. Its relatives begin with this and change what differs."""

from __future__ import annotations

from engines.layers.architecture import GQA, Architecture
from engines.llm.models.fields import MOST_LAYERS, Fields, dtype_of, quantised_of, rope_of


def architecture(fields: Fields) -> Architecture:
    """Of a config with model_type "llama"."""
    bias = fields.flag("attention_bias", False)
    return grouped(fields, bias=bias, out_bias=bias, mlp_bias=fields.flag("mlp_bias", False))


def grouped(
    fields: Fields, *, bias: bool = False, out_bias: bool = False, qk_norm: bool = False, mlp_bias: bool = False
) -> Architecture:
    """A dense decoder with grouped attention."""
    fields.only("hidden_act", "silu")
    fields.only("use_sliding_window", False)
    heads, hidden = fields.size("num_attention_heads"), fields.size("hidden_size")
    depth = fields.size("num_hidden_layers", most=MOST_LAYERS)
    size = fields.size("head_dim", hidden // heads)
    return Architecture(
        model_type=fields.word("model_type"),
        vocab=fields.size("vocab_size"),
        hidden=hidden,
        depth=depth,
        epsilon=fields.number("rms_norm_eps", 1e-6),
        context=fields.size("max_position_embeddings", 2048),
        tied=fields.flag("tie_word_embeddings", False),
        rope=rope_of(fields, size),
        attention=GQA(heads, fields.size("num_key_value_heads", heads), size, bias, out_bias, qk_norm),
        dense_size=fields.size("intermediate_size"),
        experts=None,
        sparse=(False,) * depth,
        quantised=quantised_of(fields),
        dtype=dtype_of(fields),
        ends=fields.integers("eos_token_id"),
        mlp_bias=mlp_bias,
    )
