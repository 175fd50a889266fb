"""The model families: what a checkpoint's config says, in the terms of the one decoder that runs them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from engines.layers.architecture import Architecture
from engines.layers.decoder import Decoder
from engines.layers.errors import PrecisionUnknown
from engines.layers.precision import Numerics
from engines.layers.tensors import Tensors
from engines.llm.errors import ModelBroken, SettingInvalid
from engines.llm.models import chains_upcycled, deepseek_v2, deepseek_v3, llama, qwen2, qwen3, qwen3_moe
from engines.llm.models.fields import Fields
from engines.parallel import Ranks

FAMILIES: Mapping[str, Callable[[Fields], Architecture]] = {
    "chains_upcycled": chains_upcycled.architecture,
    "deepseek_v2": deepseek_v2.architecture,
    "deepseek_v3": deepseek_v3.architecture,
    "llama": llama.architecture,
    "qwen2": qwen2.architecture,
    "qwen3": qwen3.architecture,
    "qwen3_moe": qwen3_moe.architecture,
}


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """What a checkpoint's config.json describes. Raises ModelBroken for what is missing, unknown or not supported."""
    kind = config.get("model_type")
    family = FAMILIES.get(str(kind))
    if family is None:
        raise ModelBroken(
            f"the config has the model_type {kind!r}, which is not known", mend=f"take one of {', '.join(FAMILIES)}"
        )
    return family(Fields(config))


def build(
    architecture: Architecture,
    tensors: Tensors,
    *,
    precision: str,
    device: torch.device | str,
    ranks: Ranks | None = None,
) -> Decoder:
    """The decoder with its weights taken from `tensors`. Raises SettingInvalid for a precision that does not go."""
    try:
        numerics = Numerics.of(precision, device, architecture.quantised)
    except PrecisionUnknown as error:
        raise SettingInvalid(str(error)) from None
    with torch.inference_mode():
        return Decoder(architecture, tensors, numerics, ranks or Ranks())
