"""Two ways to run a decoder-only model on a CPU, one interface: transformers' own forward, and a short int8 one.

The second exists because a small model on few cores spends most of its time between the matrix products:
for Llama-shaped models it fuses the projections, keeps keys and values in one buffer and calls some 15 torch
operations a layer (about three times the tokens a second of the first).
"""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from engines.llm.loading import DynamicCache

FUSED_TYPES = ("llama", "qwen2", "qwen3")


class Cache(Protocol):
    """Keys and values of a sequence's first `length` tokens."""

    @property
    def length(self) -> int: ...

    def crop(self, length: int) -> None:
        """Forget what lies behind the first `length` tokens."""
        ...

    def copy(self, length: int, room: int) -> Self:
        """The first `length` tokens as a cache of its own, with room for `room` more."""
        ...


class Decoder(Protocol):
    """A loaded model. Not for two threads at once."""

    context: int

    def new_cache(self, room: int) -> Any: ...

    def forward(
        self, ids: Tensor, cache: Any, keep: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Run ids [T] behind the cache, which grows by T; logits [K, vocabulary] in fp32 at the rows `keep` [K].

        `positions` [T] and `mask` [T, cache + T] (true: may see) replace plain causal order.
        """
        ...


class TransformersCache:
    """A DynamicCache of transformers."""

    def __init__(self, layers: Any) -> None:
        self.layers = layers

    @property
    def length(self) -> int:
        return int(self.layers.get_seq_length())

    def crop(self, length: int) -> None:
        if length < self.length:
            self.layers.crop(length - self.length)  # a negative number: tokens to drop

    def copy(self, length: int, room: int) -> TransformersCache:
        taken = TransformersCache(copy.deepcopy(self.layers))
        taken.crop(length)
        return taken


class TransformersDecoder:
    """transformers' own forward: any architecture, fp32, bf16, or int8 by swapping its linear layers."""

    def __init__(self, model: Any) -> None:
        self.model = model
        # The parameter was renamed within version 5 of transformers.
        names = inspect.signature(model.forward).parameters
        self.cache_name = "cache" if "cache" in names else "past_key_values"
        self.context = int(getattr(model.config, "max_position_embeddings", 2048))

    def new_cache(self, room: int) -> TransformersCache:
        return TransformersCache(DynamicCache())

    def forward(
        self,
        ids: Tensor,
        cache: TransformersCache,
        keep: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        past = cache.length
        if positions is None:
            positions = torch.arange(past, past + len(ids))
        bias = None
        if mask is not None:
            bias = torch.zeros(mask.shape, dtype=self.model.dtype).masked_fill_(~mask, -torch.inf)[None, None]
        output = self.model(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=bias,
            **{self.cache_name: cache.layers},
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: Tensor = output.logits[0].float()
        return logits


class FusedCache:
    """Keys and values [layers, 2, heads, room, size] of which `length` rows are filled."""

    def __init__(self, buffer: Tensor, length: int = 0) -> None:
        self.buffer = buffer
        self.length = length

    def crop(self, length: int) -> None:
        self.length = min(self.length, length)

    def copy(self, length: int, room: int) -> FusedCache:
        layers, two, heads, _, size = self.buffer.shape
        buffer = torch.empty(layers, two, heads, length + room, size)
        buffer[:, :, :, :length] = self.buffer[:, :, :, :length]
        return FusedCache(buffer, length)

    def reserve(self, tokens: int) -> None:
        if self.length + tokens > self.buffer.shape[3]:
            self.buffer = self.copy(self.length, max(tokens, self.length)).buffer


class Int8Linear(nn.Module):
    """y = x W^T + b with int8 weights (a scale for each output) and int8 activations (a scale for each row)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        weight = weight.detach().float()
        scales = weight.abs().amax(dim=1).clamp_min(1e-8) / 127
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch plans to move this API to another package; our torch is pinned
            zeros = torch.zeros(len(scales), dtype=torch.long)
            whole = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            self.packed = torch.ops.quantized.linear_prepack(whole, None)
        self.bias = None if bias is None else bias.detach().float()
        self.out_features, self.in_features = weight.shape

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() == self.in_features:
            y: Tensor = torch.ops.quantized.linear_dynamic(x, self.packed)
        else:
            # torch scales all rows alike. The first token's activations are a thousand times the others', which
            # would round those to nothing; so each row is brought to the same range first.
            scales = x.abs().amax(dim=-1, keepdim=True).clamp_min_(1e-8)
            y = torch.ops.quantized.linear_dynamic(x / scales, self.packed).mul_(scales)
        return y if self.bias is None else y.add_(self.bias)


class _Layer:
    """One decoder layer's weights, fused: queries, keys and values in one product, gate and up in one."""

    def __init__(self, layer: Any, order: Tensor) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        size = len(order)
        q, k, v = attention.q_proj, attention.k_proj, attention.v_proj

        def paired(weight: Tensor) -> Tensor:
            heads = weight.reshape(-1, size, *weight.shape[1:])
            return heads[:, order].reshape(weight.shape)

        bias = None if q.bias is None else torch.cat([paired(q.bias), paired(k.bias), v.bias])
        self.qkv = Int8Linear(torch.cat([paired(q.weight), paired(k.weight), v.weight]), bias)
        self.out = Int8Linear(attention.o_proj.weight, attention.o_proj.bias)
        self.gate_up = Int8Linear(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
        self.down = Int8Linear(mlp.down_proj.weight)
        self.norm_attention = _own(layer.input_layernorm.weight)
        self.norm_mlp = _own(layer.post_attention_layernorm.weight)
        norms = (getattr(attention, "q_norm", None), getattr(attention, "k_norm", None))
        self.norm_q, self.norm_k = (None if norm is None else _own(norm.weight)[order] for norm in norms)


class FusedDecoder:
    """int8 forward of a Llama-shaped model (config.model_type in FUSED_TYPES) in few operations."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self.context = int(config.max_position_embeddings)
        self.epsilon = float(config.rms_norm_eps)
        self.heads, self.kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.size = int(getattr(config, "head_dim", 0) or config.hidden_size // self.heads)
        # A rotation turns the pairs (i, i + size/2). With the pairs side by side it is one complex product,
        # and an equal shuffle of queries and keys leaves their dot products as they were.
        order = torch.arange(self.size).view(2, -1).t().flatten()
        self.rotary = model.model.rotary_emb
        self.layers = [_Layer(layer, order) for layer in model.model.layers]
        self.embedding = _own(model.model.embed_tokens.weight)
        self.norm = _own(model.model.norm.weight)
        self.head = Int8Linear(model.lm_head.weight)

    def new_cache(self, room: int) -> FusedCache:
        return FusedCache(torch.empty(len(self.layers), 2, self.kv_heads, room, self.size))

    def forward(
        self,
        ids: Tensor,
        cache: FusedCache,
        keep: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        count, past = len(ids), cache.length
        cache.reserve(count)
        if positions is None:
            positions = torch.arange(past, past + count)
        if mask is None and count > 1:
            mask = torch.ones(count, past + count, dtype=torch.bool).tril_(past)
        x = self.embedding[ids]
        turn = self._rotation(x, positions)
        for layer, buffer in zip(self.layers, cache.buffer, strict=True):
            x = x + layer.out(self._attend(layer, buffer, x, turn, past, mask))
            hidden = functional.rms_norm(x, x.shape[-1:], layer.norm_mlp, self.epsilon)
            gate, up = layer.gate_up(hidden).chunk(2, dim=-1)
            x = x + layer.down(functional.silu(gate).mul_(up))
        cache.length = past + count
        logits: Tensor = self.head(functional.rms_norm(x[keep], x.shape[-1:], self.norm, self.epsilon))
        return logits

    def _rotation(self, x: Tensor, positions: Tensor) -> Tensor:
        """cos + i sin [T, 1, size/2]."""
        cos, sin = self.rotary(x, positions[None])
        half = self.size // 2
        return torch.complex(cos[0, :, None, :half].float(), sin[0, :, None, :half].float())

    def _attend(self, layer: _Layer, buffer: Tensor, x: Tensor, turn: Tensor, past: int, mask: Tensor | None) -> Tensor:
        """Attention of x [T, hidden] over buffer [2, heads, room, size], into which its keys and values go."""
        count, turned = len(x), self.heads + self.kv_heads
        hidden = functional.rms_norm(x, x.shape[-1:], layer.norm_attention, self.epsilon)
        qkv = layer.qkv(hidden).view(count, -1, self.size)
        qk = qkv[:, :turned]
        if layer.norm_q is not None and layer.norm_k is not None:
            q = functional.rms_norm(qk[:, : self.heads], (self.size,), layer.norm_q, self.epsilon)
            k = functional.rms_norm(qk[:, self.heads :], (self.size,), layer.norm_k, self.epsilon)
            qk = torch.cat([q, k], dim=1)
        qk = torch.view_as_real(torch.view_as_complex(qk.unflatten(2, (-1, 2))) * turn).flatten(2)
        end = past + count
        buffer[0, :, past:end] = qk[:, self.heads :].transpose(0, 1)
        buffer[1, :, past:end] = qkv[:, turned:].transpose(0, 1)
        keys, values = buffer[None, 0, :, :end], buffer[None, 1, :, :end]
        if count == 1:  # the heads that share keys become rows: no copies of keys for each head
            rows = qk[0, : self.heads].view(1, self.kv_heads, -1, self.size)
            return functional.scaled_dot_product_attention(rows, keys, values).reshape(1, -1)
        q = qk[:, : self.heads].transpose(0, 1)[None]
        seen = functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
        return seen[0].transpose(0, 1).reshape(count, -1)


def _own(weight: Tensor) -> Tensor:
    """A copy in fp32: a view would keep the whole checkpoint file mapped."""
    return weight.detach().to(torch.float32, copy=True)


def build(model: Any, precision: str) -> Decoder:
    """The decoder for a loaded transformers model; "int8" is fused where the architecture is known."""
    model.eval().requires_grad_(False)
    if precision != "int8":
        return TransformersDecoder(model)
    if can_fuse(model.config):
        return FusedDecoder(model)
    _swap_linears(model)
    return TransformersDecoder(model)


def can_fuse(config: Any) -> bool:
    """Whether the fused forward computes what this architecture's own forward computes."""
    return (
        config.model_type in FUSED_TYPES
        and getattr(config, "hidden_act", "silu") == "silu"
        and not getattr(config, "mlp_bias", False)
        and not getattr(config, "use_sliding_window", False)
    )


def _swap_linears(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, Int8Linear(child.weight, child.bias))
        else:
            _swap_linears(child)
