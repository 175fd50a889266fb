"""The decoder that all models share: embedding, layers of attention and MLP or experts, the last norm, the head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engines.layers.architecture import GQA, Architecture
from engines.layers.attention import Attention, GroupedAttention, LatentAttention, Step
from engines.layers.inputs import Inputs
from engines.layers.linear import Linear
from engines.layers.loading import Loader
from engines.layers.moe import MLP, Mixture
from engines.layers.norm import Norm
from engines.layers.precision import Numerics
from engines.layers.rotary import Rotary, side_by_side
from engines.layers.tensors import Tensors
from engines.parallel import Ranks

Cache = list[Tensor]
"""One tensor a layer, whose first dimension is the slots; what follows is the attention's affair."""


class Hidden(Protocol):
    """What follows attention: [T, hidden] of [T, hidden]."""

    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights and how it computes."""

    attention: Attention
    mlp: Hidden
    norm_attention: Norm
    norm_mlp: Norm

    def __call__(self, x: Tensor, residual: Tensor | None, step: Step, cache: Tensor) -> tuple[Tensor, Tensor]:
        """(what the layer adds, what it is added to)."""
        if residual is None:
            x, residual = self.norm_attention(x), x
        else:
            x, residual = self.norm_attention.after(x, residual)
        x, residual = self.norm_mlp.after(self.attention(x, step, cache), residual)
        return self.mlp(x), residual


class Decoder:
    """A loaded model. `forward` reads and writes tensors alone, so that steps of decodes can be captured in a graph."""

    def __init__(self, architecture: Architecture, tensors: Tensors, numerics: Numerics, ranks: Ranks) -> None:
        """Takes every tensor that it needs, the others are the caller's affair."""
        loader = Loader(tensors, numerics, ranks)
        self.architecture, self.numerics = architecture, numerics
        rope = architecture.rope
        # Pairs are brought side by side where rows may be shuffled: e4m3 on the device stays as it is stored.
        paired = numerics.on_cpu and not rope.interleaved
        order = side_by_side(rope.size) if paired else None
        self.rotary = Rotary(
            rope, architecture.context, paired=paired, dtype=numerics.activations, device=numerics.device
        )
        size = (architecture.vocab, architecture.hidden)
        self.embedding = loader.matrix("model.embed_tokens.weight", *size)
        self.layers = [_layer(architecture, index, loader, order) for index in range(architecture.depth)]
        self.norm = Norm(loader.vector("model.norm.weight", architecture.hidden), architecture.epsilon)
        head = self.embedding if architecture.tied else loader.matrix("lm_head.weight", *size)
        self.head: Linear = loader.product(head, exact=True)
        self._head = head

    def new_cache(self, slots: int) -> Cache:
        """Zeros for the keys and values of `slots` tokens, slot 0 included."""
        return [layer.attention.new_cache(slots) for layer in self.layers]

    @torch.inference_mode()
    def forward(self, inputs: Inputs, cache: Cache) -> Tensor:
        """Run one step; keys and values go into the cache. The hidden states [S, hidden] of the rows `keep`, normed."""
        step = Step(inputs, self.rotary)
        x, residual = functional.embedding(inputs.ids, self.embedding), None
        for layer, kept in zip(self.layers, cache, strict=True):
            x, residual = layer(x, residual, step, kept)
        if residual is None:
            return self.norm(x[inputs.keep])
        return self.norm.after(x[inputs.keep], residual[inputs.keep])[0]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[S, vocab] of hidden [S, hidden], in float32, or in float64 where the model computes in it."""
        if hidden.is_cuda and hidden.dtype == torch.bfloat16:
            return torch.mm(hidden, self._head.t(), out_dtype=torch.float32)
        found = self.head(hidden)
        return found if found.dtype == torch.float64 else found.float()


def _layer(architecture: Architecture, index: int, loader: Loader, order: Tensor | None) -> Layer:
    prefix, hidden, spec = f"model.layers.{index}", architecture.hidden, architecture.attention
    attention: Attention
    if isinstance(spec, GQA):
        attention = GroupedAttention(spec, hidden, architecture.epsilon, f"{prefix}.self_attn", loader, order)
    else:
        attention = LatentAttention(spec, hidden, f"{prefix}.self_attn", loader, order)
    mlp: Hidden
    if architecture.sparse[index] and architecture.experts is not None:
        mlp = Mixture(architecture.experts, f"{prefix}.mlp", hidden, loader)
    else:
        mlp = MLP(f"{prefix}.mlp", hidden, architecture.dense_size, loader, bias=architecture.mlp_bias)
    before, between = (
        Norm(loader.vector(f"{prefix}.{name}_layernorm.weight", hidden), architecture.epsilon)
        for name in ("input", "post_attention")
    )
    return Layer(attention, mlp, before, between)
