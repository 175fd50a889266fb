"""Block FP8 of a bf16 or fp32 checkpoint: e4m3 weights, one scale for each 128 x 128 block, errors told per layer."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from engines.kernels.quant import dequantize_blocks, quantize_blocks
from engines.llm.card import Card
from engines.llm.errors import ModelBroken
from engines.llm.remake import Named, remake
from engines.weights import Progress

REPORT = "quantization.json"
BLOCK = 128
LINEARS = {
    *("q_proj", "k_proj", "v_proj", "o_proj"),
    *("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"),
    *("gate_proj", "up_proj", "down_proj"),
}
WORST = 10
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def quantize(source: Path, target: Path, progress: Progress | None = None) -> Card:
    """Write `source` in block FP8 to `target`. Raises ModelMissing, ModelBroken or SettingInvalid."""
    return remake(source, target, [BlockFP8()], progress)


def is_quantised(name: str, tensor: torch.Tensor) -> bool:
    """The projections of attention, MLPs and experts are; embeddings, head, norms, routers and biases are not."""
    parts = name.split(".")
    return tensor.dim() == 2 and parts[-1] == "weight" and len(parts) > 1 and parts[-2] in LINEARS


class BlockFP8:
    """The change that quantises. Errors are relative by the Frobenius norm: |stored - given| / |given|."""

    def __init__(self) -> None:
        self._squares: dict[str, tuple[float, float]] = {}
        self._shapes: dict[str, list[int]] = {}
        self._kept: list[str] = []

    def check(self, config: Mapping[str, Any]) -> None:
        """Every architecture that is known here can be quantised."""

    def tensors(self, name: str, tensor: torch.Tensor) -> Iterable[Named]:
        if not is_quantised(name, tensor):
            if tensor.dim() == 2 and name.endswith(".weight"):
                self._kept.append(name.removesuffix(".weight"))
            return [(name, tensor)]
        given = tensor.float()
        stored, scales = quantize_blocks(given)
        error = torch.linalg.vector_norm(dequantize_blocks(stored, scales, torch.float32) - given).item()
        whole = torch.linalg.vector_norm(given).item()
        if not error < float("inf"):
            raise ModelBroken(f"the tensor {name} holds numbers that are not finite", mend="fetch the model again")
        self._squares[name] = (error**2, whole**2)
        self._shapes[name] = list(tensor.shape)
        return [(name, stored), (f"{name}_scale_inv", scales)]

    def config(self, config: dict[str, Any]) -> dict[str, Any]:
        settings = {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "modules_to_not_convert": [name for name in self._kept if not name.endswith("embed_tokens")],
            "quant_method": "fp8",
            "weight_block_size": [BLOCK, BLOCK],
        }
        return {**config, "quantization_config": settings}

    def step(self) -> str:
        layers = self._by_layer()
        worst = f", worst in {layers[-1][0]}: {layers[-1][1]:.4f}" if layers else ""
        return (
            f"quantised to block FP8 (e4m3, {BLOCK} x {BLOCK}): {len(self._squares)} weights, "
            f"relative error {_relative(self._squares.values()):.4f}{worst}"
        )

    def details(self) -> Mapping[str, Any]:
        return {
            "what": "quantised",
            "scheme": f"block FP8 e4m3 {BLOCK}x{BLOCK}, activations 1x{BLOCK} dynamic",
            "weights": len(self._squares),
            "relative_error": round(_relative(self._squares.values()), 6),
            "worst_layers": [{"layer": layer, "relative_error": round(e, 6)} for layer, e in self._by_layer()[-3:]],
        }

    def files(self) -> Mapping[str, str]:
        """quantization.json: the error of each layer and of each weight, the worst last."""
        weights = sorted(((_relative([pair]), name) for name, pair in self._squares.items()))
        report = {
            **self.details(),
            "not_quantised": self._kept,
            "layers": [{"layer": layer, "relative_error": round(error, 6)} for layer, error in self._by_layer()],
            "tensors": [
                {"name": name, "shape": self._shapes[name], "relative_error": round(error, 6)}
                for error, name in weights
            ],
        }
        return {REPORT: json.dumps(report, indent=1) + "\n"}

    def table(self) -> str:
        lines = ["## Error of the quantised weights", ""]
        lines += ["|stored - given| / |given| by the Frobenius norm; the worst last, all in " + REPORT + ".", ""]
        lines += ["| layer | relative error |", "|---|---|"]
        return "\n".join(lines + [f"| {layer} | {error:.5f} |" for layer, error in self._by_layer()[-WORST:]]) + "\n"

    def _by_layer(self) -> list[tuple[str, float]]:
        """(layer, relative error over all its weights), the worst last."""
        layers: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for name, pair in self._squares.items():
            found = _LAYER.match(name)
            layers[f"layer {found[1]}" if found else name].append(pair)
        return sorted(((layer, _relative(pairs)) for layer, pairs in layers.items()), key=lambda pair: pair[1])


def _relative(squares: Iterable[tuple[float, float]]) -> float:
    pairs = list(squares)
    whole = sum(pair[1] for pair in pairs)
    return float((sum(pair[0] for pair in pairs) / whole) ** 0.5) if whole else 0.0
