"""What a model is made of, as numbers: read from a checkpoint's config, enough to build it and to say what it needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

TYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Yarn:
    """Rotary positions stretched by `factor` beyond `original` tokens; quick frequencies stay as they were."""

    factor: float
    original: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    attention: float | None = None
    """The multiplier of cosines and sines where the config names one."""
    truncate: bool = True

    @property
    def multiplier(self) -> float:
        """What cosines and sines are multiplied by."""
        if self.attention is not None:
            return self.attention
        return self._grown(self.mscale) / self._grown(self.mscale_all_dim)

    @property
    def sharpening(self) -> float:
        """What MLA's attention scale is multiplied by."""
        return self._grown(self.mscale_all_dim) ** 2

    def _grown(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class Llama3:
    """Slow frequencies divided by `factor`, quick ones kept, those between blended."""

    factor: float
    low: float
    high: float
    original: int


@dataclass(frozen=True, slots=True)
class Stretched:
    """All frequencies divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions over `size` dimensions: pairs (2i, 2i + 1) if interleaved, else (i, i + size / 2)."""

    theta: float
    size: int
    interleaved: bool = False
    scaling: Yarn | Llama3 | Stretched | None = None


@dataclass(frozen=True, slots=True)
class GQA:
    """Attention whose queries share key and value heads in groups."""

    heads: int
    kv_heads: int
    size: int
    bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False

    @property
    def cached(self) -> int:
        """Numbers a token keeps in each layer."""
        return 2 * self.kv_heads * self.size


@dataclass(frozen=True, slots=True)
class MLA:
    """Attention through a latent of `kv_lora` numbers a token, beside `rope` that carry the position."""

    heads: int
    q_lora: int | None
    kv_lora: int
    nope: int
    rope: int
    value: int
    scale: float
    epsilon: float = 1e-6
    """Of the norms of both latents, whatever the other norms have."""
    bias: bool = False

    @property
    def cached(self) -> int:
        """Numbers a token keeps in each layer."""
        return self.kv_lora + self.rope


@dataclass(frozen=True, slots=True)
class Experts:
    """`active` of `count` experts of inner size `size` for each token, and `shared` ones for all tokens."""

    count: int
    active: int
    size: int
    shared: int = 0
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    groups: int = 1
    active_groups: int = 1
    normalise: bool = True
    scale: float = 1.0
    bias: bool = False


@dataclass(frozen=True, slots=True)
class BlockFP8:
    """Linear weights as e4m3 with one scale for each block; modules named in `skipped` are left as they were."""

    rows: int = 128
    columns: int = 128
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder-only model. `sparse` says which layers have experts, `ends` which tokens end a reply."""

    model_type: str
    vocab: int
    hidden: int
    depth: int
    epsilon: float
    context: int
    tied: bool
    rope: Rope
    attention: GQA | MLA
    dense_size: int
    experts: Experts | None
    sparse: tuple[bool, ...]
    quantised: BlockFP8 | None = None
    dtype: str = "bfloat16"
    ends: tuple[int, ...] = ()
    mlp_bias: bool = False
    note: str = ""

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that a token keeps in the cache, in the checkpoint's type."""
        return self.depth * self.attention.cached * TYPE_BYTES[self.dtype]
