"""A mixture of experts out of a dense model: each MLP is cut into experts that together are the MLP.

The router is all zeros, so each expert gets the weight 1/count, and `routed_scaling_factor` = count makes that 1: with
all experts active the sum over the experts is what the MLP gave, up to the rounding of the sum.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from engines.llm.card import Card
from engines.llm.errors import ModelBroken, SettingInvalid
from engines.llm.remake import Named, remake
from engines.weights import Progress

MODEL_TYPE = "chains_upcycled"
DENSE = ("llama", "qwen2", "qwen3")
BLOCK = 128
MOST_BY_DEFAULT = 16
_MLP = re.compile(r"(model\.layers\.\d+\.mlp\.)(gate|up|down)_proj\.weight")


def upcycle(source: Path, target: Path, *, experts: int = 0, active: int = 0, progress: Progress | None = None) -> Card:
    """Write `source` as a mixture of experts to `target`. Raises ModelMissing, ModelBroken or SettingInvalid."""
    return remake(source, target, [Experts(experts, active)], progress)


def default_experts(size: int) -> int:
    """Most experts, up to 16, of whole blocks of 128 that an MLP of `size` can be cut into; else of any equal size."""
    counts = range(MOST_BY_DEFAULT, 1, -1)
    blocked = [count for count in counts if size % (count * BLOCK) == 0]
    equal = [count for count in counts if size % count == 0]
    if not blocked and not equal:
        raise SettingInvalid(f"an MLP of {size} has no equal parts, 2 to 16 of them", mend="name the number: --experts")
    return (blocked or equal)[0]


class Experts:
    """The change that cuts MLPs into `experts` parts (0: as many as default_experts says), `active` of them at work
    for each token (0: all). With fewer the result is another, worse model: its router has learnt nothing.
    """

    def __init__(self, experts: int = 0, active: int = 0) -> None:
        self._experts, self._active = experts, active
        self._size = self._hidden = self._layers = 0
        self._base = ""

    @property
    def note(self) -> str:
        """What to know about the quality; "" when the model is what it was."""
        if self._active == self._experts:
            return ""
        return (
            f"the router has learnt nothing: each token goes to the first {self._active} of {self._experts} experts, "
            "so the text is much worse than the dense model's; good for measuring, not for talking"
        )

    def check(self, config: Mapping[str, Any]) -> None:
        self._base = str(config.get("model_type", ""))
        if self._base not in DENSE or "num_experts" in config:
            raise ModelBroken(
                f"a model of type {self._base!r} cannot be cut into experts", mend=f"take one of {', '.join(DENSE)}"
            )
        if config.get("mlp_bias") or config.get("hidden_act", "silu") != "silu":
            raise ModelBroken("MLPs with a bias, or another activation than silu, cannot be cut into experts")
        self._size, self._hidden = int(config["intermediate_size"]), int(config["hidden_size"])
        self._layers = int(config["num_hidden_layers"])
        self._experts = self._experts or default_experts(self._size)
        self._active = self._active or self._experts
        if self._experts < 2 or self._size % self._experts:
            fitting = [str(count) for count in range(2, min(self._size, 257)) if self._size % count == 0]
            raise SettingInvalid(
                f"an MLP of {self._size} cannot be cut into {self._experts} equal experts",
                mend=f"write one of {', '.join(fitting)}",
            )
        if not 1 <= self._active <= self._experts:
            raise SettingInvalid(
                f"{self._active} of {self._experts} experts cannot be active", mend=f"write 1 to {self._experts}"
            )

    def tensors(self, name: str, tensor: torch.Tensor) -> Iterable[Named]:
        found = _MLP.fullmatch(name)
        if found is None:
            yield name, tensor
            return
        prefix, part = found[1], found[2]
        if part == "gate":
            yield f"{prefix}gate.weight", torch.zeros(self._experts, self._hidden, dtype=tensor.dtype)
        pieces = tensor.chunk(self._experts, dim=1 if part == "down" else 0)
        for expert, piece in enumerate(pieces):
            yield f"{prefix}experts.{expert}.{part}_proj.weight", piece

    def config(self, config: dict[str, Any]) -> dict[str, Any]:
        return {
            **config,
            "architectures": ["ChainsUpcycledForCausalLM"],
            "base_model_type": self._base,
            "model_type": MODEL_TYPE,
            "moe_intermediate_size": self._size // self._experts,
            "norm_topk_prob": True,
            "num_experts": self._experts,
            "num_experts_per_tok": self._active,
            "routed_scaling_factor": float(self._experts),
            "scoring_func": "softmax",
        }

    def step(self) -> str:
        done = (
            f"upcycled: {self._layers} MLPs of {self._size} cut into {self._experts} experts of "
            f"{self._size // self._experts} each, {self._active} active"
        )
        return f"{done}; {self.note or 'all of them together are the dense MLP'}"

    def details(self) -> Mapping[str, Any]:
        return {
            "what": "upcycled",
            "experts": self._experts,
            "active": self._active,
            "expert_size": self._size // self._experts,
            "equals_base": self._active == self._experts,
            "note": self.note,
        }

    def files(self) -> Mapping[str, str]:
        return {}

    def table(self) -> str:
        return ""
