"""Qwen3: Llama whose queries and keys are normed, head by head."""

from __future__ import annotations

from engines.layers.architecture import Architecture
from engines.llm.models.fields import Fields
from engines.llm.models.llama import grouped


def architecture(fields: Fields) -> Architecture:
    """Of a config with model_type "qwen3"."""
    bias = fields.flag("attention_bias", False)
    return grouped(fields, bias=bias, out_bias=bias, qk_norm=True)
