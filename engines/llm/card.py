"""A model's card: where it comes from and what was done to it, for people (README.md) and programs (card.json)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.llm.errors import ModelBroken

CARD = "card.json"
README = "README.md"


@dataclass(frozen=True, slots=True)
class Card:
    """What a served model tells of itself.

    `base` is the model that it was made from ("" when nothing was done), `steps` what was done, oldest first, each
    in a sentence; `details` the same steps with all their figures. `precision` is that of the stored weights.
    """

    name: str
    base: str = ""
    model_type: str = ""
    precision: str = ""
    steps: tuple[str, ...] = ()
    details: tuple[Mapping[str, Any], ...] = ()

    def json(self) -> dict[str, Any]:
        """As it stands in card.json and in /v1/models."""
        return {
            "name": self.name,
            "base": self.base,
            "model_type": self.model_type,
            "precision": self.precision,
            "steps": list(self.steps),
            "details": [dict(detail) for detail in self.details],
        }


def card_of(model: Path) -> Card:
    """The card of a directory, or of a .gguf file; without card.json what config.json says. Raises ModelBroken."""
    if model.suffix == ".gguf":
        return Card(model.stem, precision="gguf")
    file = model / CARD
    if file.is_file():
        return _read(file, model.name)
    config = read_json(model / "config.json")
    return Card(model.absolute().name, model_type=str(config.get("model_type", "")), precision=precision_of(config))


def precision_of(config: Mapping[str, Any]) -> str:
    """The precision of stored weights by config.json: fp8, bf16, fp16, fp32, another method's name, or ""."""
    quantised = config.get("quantization_config")
    if isinstance(quantised, dict):
        return str(quantised.get("quant_method", "quantised"))
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "")
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(dtype, dtype)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object in a file. Raises ModelBroken when it is not there or not one."""
    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise ModelBroken(f"{file} cannot be read ({error.strerror or error})", mend="name the whole model") from error
    except ValueError as error:
        raise ModelBroken(f"{file} is no JSON ({error})", mend="fetch or write the model again") from error
    if not isinstance(found, dict):
        raise ModelBroken(f"{file} is no JSON object", mend="fetch or write the model again")
    return found


def _read(file: Path, name: str) -> Card:
    found = read_json(file)
    words = {key: found.get(key, "") for key in ("base", "model_type", "precision")}
    steps, details = found.get("steps", []), found.get("details", [])
    if not all(isinstance(value, str) for value in (*words.values(), *steps)) or not isinstance(details, list):
        raise ModelBroken(f"{file} is no card of a model", mend="remove it, or make the model again")
    return Card(str(found.get("name") or name), **words, steps=tuple(steps), details=tuple(details))


def readme(card: Card, tables: str) -> str:
    """README.md of a model that was made: what was done to it, in words and with its tables."""
    lines = ["---", f"base_model: {card.base}", "---", f"# {card.name}", ""]
    lines += [f"Made from {card.base}. What was done to it, oldest first:", ""]
    for step, detail in zip(card.steps, card.details, strict=True):
        lines.append(f"- {step} ({detail.get('when', '')}, {detail.get('version', '')})")
    return "\n".join([*lines, "", tables]).rstrip() + "\n"
