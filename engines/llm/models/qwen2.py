"""Qwen2: Llama with biases of queries, keys and values."""

from __future__ import annotations

from engines.layers.architecture import Architecture
from engines.llm.models.fields import Fields
from engines.llm.models.llama import grouped


def architecture(fields: Fields) -> Architecture:
    """Of a config with model_type "qwen2"."""
    return grouped(fields, bias=True)
