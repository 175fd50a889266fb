"""Does a model fit? Arithmetic from config.json alone: weights, cache per token, and what is left for it on GPUs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from engines.layers.architecture import MLA, Architecture
from engines.llm.errors import ModelTooLarge, SettingInvalid
from engines.llm.gpus import MEBIBYTES, Gpus
from engines.weights.inventory import dtype_of, inventory

GB = 1e9
USABLE = 0.9
STEP_TOKENS = 8192
CONTEXT_MEMORY = 600_000_000  # CUDA context, compiled kernels, the allocator's rounding
LINKS_MEMORY = 400_000_000  # buffers of communication between GPUs
GRAPH_MEMORY = 16_000_000  # of one layer, over all captured batch sizes
COUNTS = (1, 2, 4, 8, 16, 32)
# Bytes of a weight, and of an activation and what is cached. A CPU multiplies no FP8: it expands it to float32.
LOADED = {"fp64": (8.0, 8), "fp32": (4.0, 4), "bf16": (2.0, 2), "fp8": (1.0, 2), "int8": (1.0, 4), "int4": (0.5, 4)}
EXPANDED = (4.0, 4)
ON_GPU = ("fp32", "bf16", "fp8")


@dataclass(frozen=True, slots=True)
class Line:
    """One term: its bytes, and the arithmetic that gives them."""

    label: str
    arithmetic: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Fit:
    """What one of `gpus` has to hold. `tokens` is how many tokens the caches hold in all, negative when not even the
    weights fit; `fits` whether `batch` sequences of `context` tokens do.
    """

    gpus: Gpus
    context: int
    batch: int
    usable: int
    held: tuple[Line, ...]
    token_bytes: int
    tokens: int

    @property
    def fits(self) -> bool:
        return self.tokens >= self.context * self.batch

    @property
    def missing(self) -> int:
        """Bytes that each GPU lacks; 0 when it fits."""
        needed = sum(line.bytes for line in self.held) + self.context * self.batch * self.token_bytes
        return max(0, needed - self.usable)


def fit(
    architecture: Architecture,
    gpus: Gpus,
    *,
    context: int | None = None,
    batch: int = 1,
    usable: float = USABLE,
    step_tokens: int = STEP_TOKENS,
    sizes: Counter[str] | None = None,
) -> Fit:
    """Whether `batch` sequences of `context` tokens (None: all that the model was made for) fit on `gpus`.

    `sizes` is what divided_sizes gives, for whoever asks about many GPUs. Raises SettingInvalid for a context
    that is longer than the model's.
    """
    if context is not None and context > architecture.context:
        raise SettingInvalid(
            f"the context is {context}, and the model was made for {architecture.context} tokens",
            mend=f"ask for at most {architecture.context}",
        )
    architecture = as_served(architecture)
    sizes = sizes or divided_sizes(architecture)
    length = context or architecture.context
    memory = int(gpus.bytes * usable)
    weights = weights_of_one(architecture, gpus.count, sizes)
    graphs = GRAPH_MEMORY * architecture.depth
    held = (
        Line("weights", f"1/{gpus.count} of what is divided, and all of the rest", weights),
        *_absorbed(architecture, gpus.count),
        *_working(architecture, gpus.count, length, batch, min(step_tokens, length * batch)),
        Line("CUDA graphs (assumed)", f"{architecture.depth} layers x {GRAPH_MEMORY / 1e6:.0f} MB", graphs),
        Line("CUDA context and kernels (assumed)", "", CONTEXT_MEMORY),
    )
    if gpus.count > 1:
        held = (*held, Line("communication between GPUs (assumed)", "", LINKS_MEMORY))
    token = token_bytes(architecture, gpus.count)
    left = memory - sum(line.bytes for line in held)
    return Fit(gpus, length, batch, memory, held, token, left // token)


def would_fit(architecture: Architecture, context: int | None = None, batch: int = 1) -> list[Gpus]:
    """For each kind of GPU the fewest (1, 2, 4 ... 32) that do, the smallest memory in all first."""
    fewest, sizes = list[Gpus](), divided_sizes(as_served(architecture))
    for name in MEBIBYTES:
        counts = (Gpus(name, count) for count in COUNTS)
        fits = (fit(architecture, gpus, context=context, batch=batch, sizes=sizes) for gpus in counts)
        enough = next((found.gpus for found in fits if found.fits), None)
        if enough is not None:
            fewest.append(enough)
    return sorted(fewest, key=lambda gpus: gpus.bytes * gpus.count)


def as_served(architecture: Architecture) -> Architecture:
    """What runs on a GPU: float32 and float64 checkpoints run in bf16 there, all others as they are stored."""
    wide = dtype_of(architecture.dtype).itemsize > 2
    return replace(architecture, dtype="bfloat16") if wide else architecture


def weights_by_part(architecture: Architecture) -> list[Line]:
    """Bytes of the stored weights by what they are for, and how many tensors make them."""
    sizes, numbers, tensors = Counter[str](), Counter[str](), Counter[str]()
    for spec in inventory(architecture, folded=True):
        sizes[spec.part] += spec.bytes
        numbers[spec.part] += spec.numbers
        tensors[spec.part] += spec.copies
    return [
        Line(part, f"{tensors[part]:,} tensors, {numbers[part] / 1e9:.3f} billion parameters", size)
        for part, size in sizes.most_common()
    ]


def divided_sizes(architecture: Architecture) -> Counter[str]:
    """Bytes of the weights by how several GPUs divide them: "heads", "kv heads", "columns", or "" for not at all."""
    sizes = Counter[str]()
    for spec in inventory(architecture, folded=True):
        sizes[spec.divided] += spec.bytes
    return sizes


def weights_of_one(architecture: Architecture, count: int, sizes: Counter[str]) -> int:
    """Bytes that each of `count` GPUs holds. Heads go whole: where they do not come out even, all hold all."""
    attention = architecture.attention
    ways = {"heads": math.gcd(attention.heads, count), "columns": count, "": 1}
    ways["kv heads"] = math.gcd(getattr(attention, "kv_heads", count), count)
    return sum(math.ceil(size / ways[divided]) for divided, size in sizes.items())


def token_bytes(architecture: Architecture, count: int = 1) -> int:
    """Bytes that a token takes in the cache of each of `count` GPUs. MLA's latent is held by every one of them."""
    size, attention = dtype_of(architecture.dtype).itemsize, architecture.attention
    if isinstance(attention, MLA):
        return int(architecture.depth * (attention.kv_lora + attention.rope) * size)
    heads = math.ceil(attention.kv_heads / math.gcd(attention.kv_heads, count))
    return int(architecture.depth * 2 * heads * attention.size * size)


def require_room(
    architecture: Architecture, precision: str, available: int, *, where: str, tokens: int, on_cpu: bool = False
) -> None:
    """Raises ModelTooLarge when weights in `precision` and a cache of `tokens` are more than `available` bytes.

    The message says how much is missing, in which precisions it would do, and on which GPUs as it is stored.
    """
    sizes = LOADED | ({"fp8": EXPANDED} if on_cpu else {})
    needed = {name: _loaded(architecture, size, tokens) for name, size in sizes.items()}
    weights, cache = needed[precision]
    missing = weights + cache - available
    if missing <= 0:
        return
    smaller = [name for name in sizes if sum(needed[name]) <= available and (on_cpu or name in ON_GPU)]
    others = [str(gpus) for gpus in would_fit(architecture, max(1, min(tokens, architecture.context)))[:3]]
    raise ModelTooLarge(
        f"the model needs {(weights + cache) / GB:.2f} GB in {precision} (weights {weights / GB:.2f}, cache of "
        f"{tokens:,} tokens {cache / GB:.2f}), {where} has {available / GB:.2f} GB: {missing / GB:.2f} GB are missing",
        mend=(f"take precision {' or '.join(smaller)}" if smaller else "take a larger machine")
        + (f"; as stored it would fit on {', '.join(others)}" if others else ""),
    )


def _loaded(architecture: Architecture, size: tuple[float, int], tokens: int) -> tuple[int, int]:
    """Bytes of weights, with embedding and head in the activations' type, and of a cache of `tokens`."""
    weight, activation = size
    specs = [spec for spec in inventory(architecture, folded=True) if spec.part != "block scales"]
    ends = sum(spec.numbers for spec in specs if spec.part in ("embedding", "head"))
    rest = sum(spec.numbers for spec in specs) - ends
    return int(
        rest * weight + ends * activation
    ), architecture.depth * architecture.attention.cached * activation * tokens


def _absorbed(architecture: Architecture, count: int) -> Iterator[Line]:
    attention = architecture.attention
    if not isinstance(attention, MLA) or architecture.quantised is None:
        return
    heads = attention.heads // math.gcd(attention.heads, count)
    size = architecture.depth * heads * (attention.nope + attention.value) * attention.kv_lora * 2
    wide = f"({attention.nope} + {attention.value}) x {attention.kv_lora}"
    text = f"{architecture.depth} layers x {heads} heads x {wide} x 2 bytes"
    yield Line("kv_b in bf16, for decoding on the latent", text, size)


def _working(architecture: Architecture, count: int, context: int, batch: int, step: int) -> Iterator[Line]:
    """What a step needs besides: rows of the widest layer, K and V expanded for a prefill (MLA), logits."""
    size, attention, experts = dtype_of(architecture.dtype).itemsize, architecture.attention, architecture.experts
    head = attention.nope + attention.rope if isinstance(attention, MLA) else attention.size
    heads = attention.heads // math.gcd(attention.heads, count)
    mlp = 3 * architecture.dense_size // count if not all(architecture.sparse) else 0
    if experts is not None:
        mlp = max(mlp, experts.active * (3 * experts.size // count + architecture.hidden))
    width = 4 * architecture.hidden + max(3 * heads * head, mlp)
    yield Line("activations", f"{step:,} tokens a step x {width:,} numbers x {size} bytes", step * width * size)
    if isinstance(attention, MLA):
        wide = head + attention.value
        text = f"{context:,} tokens x {heads} heads x {wide} x {size} bytes"
        yield Line("K and V expanded for one prefill", text, context * heads * wide * size)
    yield Line("logits", f"{batch} x {architecture.vocab:,} x 4 bytes", batch * architecture.vocab * 4)
