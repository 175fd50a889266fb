"""Reading a checkpoint's config.json: each field by name and type, with an error that says what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.layers.architecture import TYPE_BYTES, BlockFP8, Llama3, Rope, Stretched, Yarn
from engines.llm.errors import ModelBroken

MOST_SIZE = 1 << 31
MOST_LAYERS = 4096
MOST_NUMBER = 1e30
OTHER_MODEL = "check config.json, or take another checkpoint"


@dataclass(frozen=True)
class Fields:
    """A config, or a part of it named `where`."""

    config: Mapping[str, Any]
    where: str = "the config"

    def has(self, name: str) -> bool:
        return self.config.get(name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        """Of 0 or more."""
        found = self._found(name, default)
        if not _finite(found) or found < 0 or int(found) != found:
            raise self._wrong(name, found, "a whole number")
        return int(found)

    def size(self, name: str, default: int | None = None, *, most: int = MOST_SIZE) -> int:
        """How many there are of something that a model cannot lack."""
        found = self.integer(name, default)
        if not 1 <= found <= most:
            raise self._wrong(name, found, f"a whole number from 1 to {most}")
        return found

    def number(self, name: str, default: float | None = None) -> float:
        found = self._found(name, default)
        if not _finite(found):
            raise self._wrong(name, found, "a number")
        return float(found)

    def positive(self, name: str, default: float | None = None) -> float:
        found = self.number(name, default)
        if found <= 0:
            raise self._wrong(name, found, "a number above 0")
        return found

    def flag(self, name: str, default: bool | None = None) -> bool:
        found = self._found(name, default)
        if not isinstance(found, bool):
            raise self._wrong(name, found, "true or false")
        return found

    def word(self, name: str, default: str | None = None) -> str:
        found = self._found(name, default)
        if not isinstance(found, str):
            raise self._wrong(name, found, "a word")
        return found

    def part(self, name: str) -> Fields | None:
        """An object within this one; None where it is missing or null."""
        found = self.config.get(name)
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise self._wrong(name, found, "an object")
        return Fields(found, f"{self.where}'s {name}")

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers, a single one, or nothing."""
        found = self.config.get(name)
        listed = found if isinstance(found, list | tuple) else [] if found is None else [found]
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in listed):
            raise self._wrong(name, found, "a whole number or a list of them")
        return tuple(listed)

    def only(self, name: str, wanted: object) -> None:
        """Refuses a config that sets this field to anything but `wanted`."""
        if self.config.get(name, wanted) not in (wanted, None):
            raise ModelBroken(
                f"{self.where} has {name} = {self.config[name]!r}; only {wanted!r} is supported", mend=OTHER_MODEL
            )

    def _found(self, name: str, default: object) -> Any:
        found = self.config.get(name)
        if found is None:
            found = default
        if found is None:
            raise ModelBroken(f"{self.where} has no {name}", mend=OTHER_MODEL)
        return found

    def _wrong(self, name: str, found: object, wanted: str) -> ModelBroken:
        return ModelBroken(f"{self.where} has {name} = {repr(found)[:80]}, which is not {wanted}", mend=OTHER_MODEL)


def _finite(found: Any) -> bool:
    """Whether it is a number to compute with: JSON knows NaN and Infinity, and numbers of any length."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        return False
    return -MOST_NUMBER <= found <= MOST_NUMBER


def rope_of(fields: Fields, size: int, *, interleaved: bool = False) -> Rope:
    """Rotary positions, from either of the two ways in which configs write them."""
    scaling = fields.part("rope_parameters") or fields.part("rope_scaling")
    if scaling is None:
        return Rope(fields.positive("rope_theta", 10000.0), size, interleaved)
    theta = scaling.positive("rope_theta", fields.positive("rope_theta", 10000.0))
    kind = scaling.word("rope_type", scaling.word("type", "default"))
    match kind:
        case "default":
            return Rope(theta, size, interleaved)
        case "linear":
            return Rope(theta, size, interleaved, Stretched(scaling.positive("factor")))
        case "llama3":
            low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
            original = scaling.size("original_max_position_embeddings")
            return Rope(theta, size, interleaved, Llama3(scaling.positive("factor"), low, high, original))
        case "yarn":
            return Rope(theta, size, interleaved, _yarn(scaling, fields))
    raise ModelBroken(
        f"{scaling.where} has the type {kind!r}; supported are default, linear, llama3 and yarn", mend=OTHER_MODEL
    )


def _yarn(scaling: Fields, fields: Fields) -> Yarn:
    context = fields.size("max_position_embeddings")
    return Yarn(
        factor=scaling.positive("factor"),
        original=scaling.size("original_max_position_embeddings", context),
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        mscale=scaling.number("mscale", 1.0) or 1.0,
        mscale_all_dim=scaling.number("mscale_all_dim", 0.0),
        attention=scaling.number("attention_factor") if scaling.has("attention_factor") else None,
        truncate=scaling.flag("truncate", True),
    )


def dtype_of(fields: Fields) -> str:
    """The name of the type that unquantised weights are stored in."""
    name = fields.word("dtype", fields.word("torch_dtype", "bfloat16")).removeprefix("torch.")
    if name not in TYPE_BYTES:
        raise ModelBroken(f"{fields.where} has the type {name!r}; known are {', '.join(TYPE_BYTES)}", mend=OTHER_MODEL)
    return name


def quantised_of(fields: Fields) -> BlockFP8 | None:
    """How the checkpoint is quantised: block FP8 with activations quantised as they come, or not at all."""
    found = fields.part("quantization_config")
    if found is None:
        return None
    if (method := found.word("quant_method", "")) != "fp8":
        raise ModelBroken(
            f"{found.where} has the method {method!r}; only block FP8 is supported",
            mend="take the unquantised checkpoint",
        )
    found.only("fmt", "e4m3")
    found.only("activation_scheme", "dynamic")
    found.only("scale_fmt", "float")
    block = found.integers("weight_block_size")
    if len(block) != 2 or min(block) < 1:
        raise ModelBroken(
            f"{found.where} has no weight_block_size; only FP8 with a scale for each block is supported",
            mend="take a checkpoint in block FP8, or the unquantised one",
        )
    skipped = found.config.get("modules_to_not_convert") or ()
    return BlockFP8(*block, skipped=tuple(str(name) for name in skipped))
