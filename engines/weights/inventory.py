"""Which tensors a checkpoint of an architecture holds: names, shapes, types, and what each is for.

One list serves random weights, the arithmetic of memory, and the tests of the loaders.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Protocol

import torch

from engines.weights.tensors import NamedTensors, refuse_extra

BLOCK = 128
SCALE = "_scale_inv"
UP_AND_DOWN = ("gate_proj", "up_proj", "down_proj")


class Described(Protocol):
    """What is read of engines.layers.architecture.Architecture; `attention` and `experts` as described there."""

    @property
    def vocab(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def tied(self) -> bool: ...
    @property
    def attention(self) -> Any: ...
    @property
    def dense_size(self) -> int: ...
    @property
    def experts(self) -> Any: ...
    @property
    def sparse(self) -> tuple[bool, ...]: ...
    @property
    def quantised(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def mlp_bias(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Spec:
    """One tensor. `part` says what it is for, `divided` whether several GPUs share it out ("heads", "kv heads",
    "columns": any split) or each holds all of it (""). `copies` is more than one where it stands for its like.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    part: str
    divided: str = ""
    copies: int = 1

    @property
    def numbers(self) -> int:
        """Of all copies."""
        return math.prod(self.shape) * self.copies

    @property
    def bytes(self) -> int:
        """Of all copies."""
        return self.numbers * self.dtype.itemsize


def inventory(architecture: Described, *, folded: bool = False) -> Iterator[Spec]:
    """Every tensor, in the order of the layers. Quantised weights are followed by their scales.

    With `folded` the first expert of a layer stands for all of them: for counting, where they are many.
    """
    kind = dtype_of(architecture.dtype)
    size = (architecture.vocab, architecture.hidden)
    yield Spec("model.embed_tokens.weight", size, kind, "embedding", "columns")
    for layer in range(architecture.depth):
        prefix = f"model.layers.{layer}."
        for spec in (*_attention(architecture, kind), *_mlp(architecture, kind, architecture.sparse[layer], folded)):
            yield from _stored(architecture, prefix, spec)
    yield Spec("model.norm.weight", (architecture.hidden,), kind, "norms")
    if not architecture.tied:
        yield Spec("lm_head.weight", size, kind, "head", "columns")


def check_inventory(tensors: NamedTensors, architecture: Described, allowed: Iterable[str] = ()) -> None:
    """A checkpoint holds what its architecture needs and no more; raises WeightsInvalid with what it does not.

    Let pass are patterns of `allowed`, the head of a model that shares its embedding, and layers after the last:
    those that guess further tokens.
    """
    known = set()
    for spec in inventory(architecture):
        tensors.check(spec.name, spec.shape)
        known.add(spec.name)
    patterns = [*allowed, *(["lm_head.weight"] if architecture.tied else [])]
    extra = [name for name in tensors.names() if name not in known and not _after_the_last(name, architecture.depth)]
    refuse_extra([name for name in extra if not any(fnmatchcase(name, pattern) for pattern in patterns)])


def _after_the_last(name: str, depth: int) -> bool:
    found = re.match(r"model\.layers\.(\d+)\.", name)
    return found is not None and int(found[1]) >= depth


def dtype_of(name: Any) -> torch.dtype:
    """torch.bfloat16 of "bfloat16", "bf16" or itself."""
    if isinstance(name, torch.dtype):
        return name
    short = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16, "fp64": torch.float64}
    found = short.get(str(name)) or getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"{name!r} is no type of weights")
    return found


def _stored(architecture: Described, prefix: str, spec: Spec) -> Iterator[Spec]:
    name = prefix + spec.name
    if architecture.quantised is None or not _linear(spec) or _skipped(name, architecture.quantised.skipped):
        yield replace(spec, name=name)
        return
    yield replace(spec, name=name, dtype=torch.float8_e4m3fn)
    blocks = tuple(-(-size // BLOCK) for size in spec.shape)
    yield Spec(name + SCALE, blocks, torch.float32, "block scales", spec.divided, spec.copies)


def _linear(spec: Spec) -> bool:
    return spec.name.endswith(".weight") and len(spec.shape) == 2 and spec.part != "router"


def _skipped(name: str, skipped: tuple[str, ...]) -> bool:
    """Whether the list of what is not quantised (modules, as in config.json) covers this weight."""
    stem = name.removesuffix(".weight")
    return any(stem == module or stem.startswith(module + ".") for module in skipped)


def _attention(architecture: Described, kind: torch.dtype) -> Iterator[Spec]:
    hidden, attention = architecture.hidden, architecture.attention
    yield Spec("input_layernorm.weight", (hidden,), kind, "norms")
    shapes = _mla(hidden, attention) if hasattr(attention, "kv_lora") else _gqa(hidden, attention)
    for name, shape, divided in shapes:
        part = "norms" if name.endswith("norm.weight") else "attention"
        yield Spec(f"self_attn.{name}", shape, kind, part, divided)
    yield Spec("post_attention_layernorm.weight", (hidden,), kind, "norms")


def _gqa(hidden: int, attention: Any) -> Iterator[tuple[str, tuple[int, ...], str]]:
    queries, keys = attention.heads * attention.size, attention.kv_heads * attention.size
    yield "q_proj.weight", (queries, hidden), "heads"
    yield "k_proj.weight", (keys, hidden), "kv heads"
    yield "v_proj.weight", (keys, hidden), "kv heads"
    if attention.bias:
        yield "q_proj.bias", (queries,), "heads"
        yield "k_proj.bias", (keys,), "kv heads"
        yield "v_proj.bias", (keys,), "kv heads"
    yield "o_proj.weight", (hidden, queries), "heads"
    if attention.out_bias:
        yield "o_proj.bias", (hidden,), ""
    if attention.qk_norm:
        yield "q_norm.weight", (attention.size,), ""
        yield "k_norm.weight", (attention.size,), ""


def _mla(hidden: int, attention: Any) -> Iterator[tuple[str, tuple[int, ...], str]]:
    queries = attention.heads * (attention.nope + attention.rope)
    if attention.q_lora:
        yield "q_a_proj.weight", (attention.q_lora, hidden), ""
        yield "q_a_layernorm.weight", (attention.q_lora,), ""
        yield "q_b_proj.weight", (queries, attention.q_lora), "heads"
    else:
        yield "q_proj.weight", (queries, hidden), "heads"
    yield "kv_a_proj_with_mqa.weight", (attention.kv_lora + attention.rope, hidden), ""
    yield "kv_a_layernorm.weight", (attention.kv_lora,), ""
    yield "kv_b_proj.weight", (attention.heads * (attention.nope + attention.value), attention.kv_lora), "heads"
    yield "o_proj.weight", (hidden, attention.heads * attention.value), "heads"
    if attention.bias:
        if attention.q_lora:
            yield "q_a_proj.bias", (attention.q_lora,), ""
        yield "kv_a_proj_with_mqa.bias", (attention.kv_lora + attention.rope,), ""
        yield "o_proj.bias", (hidden,), ""


def _mlp(architecture: Described, kind: torch.dtype, sparse: bool, folded: bool) -> Iterator[Spec]:
    hidden, experts = architecture.hidden, architecture.experts
    if not sparse:
        yield from _three("mlp.", hidden, architecture.dense_size, kind, "dense MLP")
        if architecture.mlp_bias:
            for name, size in zip(UP_AND_DOWN, (architecture.dense_size, architecture.dense_size, hidden), strict=True):
                yield Spec(f"mlp.{name}.bias", (size,), kind, "dense MLP")
        return
    yield Spec("mlp.gate.weight", (experts.count, hidden), kind, "router")
    if experts.bias:
        yield Spec("mlp.gate.e_score_correction_bias", (experts.count,), torch.float32, "router")
    for expert in range(1 if folded else experts.count):
        for spec in _three(f"mlp.experts.{expert}.", hidden, experts.size, kind, "experts"):
            yield replace(spec, copies=experts.count) if folded else spec
    if experts.shared:
        yield from _three("mlp.shared_experts.", hidden, experts.size * experts.shared, kind, "shared experts")


def _three(prefix: str, hidden: int, size: int, kind: torch.dtype, part: str) -> Iterator[Spec]:
    for name in UP_AND_DOWN:
        shape = (hidden, size) if name == "down_proj" else (size, hidden)
        yield Spec(f"{prefix}{name}.weight", shape, kind, part, "columns")
