"""Attention over a paged cache: grouped queries (GQA), and multi-head latent attention (MLA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engines.kernels.attention import gqa_decode, gqa_prefill, mla_decode, mla_prefill, write_cache
from engines.layers.architecture import GQA, MLA
from engines.layers.inputs import Inputs
from engines.layers.loading import Loader, Part
from engines.layers.norm import Norm
from engines.layers.paged import decode, rows_of
from engines.layers.rotary import Rotary, Turn


@dataclass(slots=True)
class Prefills:
    """The sequences of a step that have several new tokens, or may have."""

    pages: Tensor
    starts: Tensor
    lengths: Tensor
    longest_query: int
    contexts: int | None

    def laid_out(self) -> tuple[Tensor, Tensor]:
        """The slots of all their contexts end to end [L], and where each begins [B + 1] int32."""
        lengths = self.lengths.long()
        total = int(lengths.sum()) if self.contexts is None else self.contexts
        ends = lengths.cumsum(0)
        sequences = torch.arange(len(lengths), device=lengths.device)
        owners = torch.repeat_interleave(sequences, lengths, output_size=total)
        positions = torch.arange(total, device=lengths.device) - (ends - lengths)[owners]
        starts = functional.pad(ends, (1, 0)).to(torch.int32)
        return self.pages[owners, positions].long(), starts


class Step:
    """What all layers need to know of one step: rows up to `decodes` are one query of a sequence each."""

    def __init__(self, inputs: Inputs, rotary: Rotary) -> None:
        self.turn: Turn = rotary.at(inputs.positions)
        self.slots = inputs.slots
        self.decodes = inputs.decodes
        self.pages, self.lengths = inputs.pages[: self.decodes], inputs.lengths[: self.decodes]
        self.prefills: Prefills | None = None
        if self.decodes < len(inputs.lengths):
            self.prefills = Prefills(
                pages=inputs.pages[self.decodes :],
                starts=inputs.starts[self.decodes :] - self.decodes,
                lengths=inputs.lengths[self.decodes :],
                longest_query=inputs.longest_query,
                contexts=inputs.contexts,
            )
        self.rows = None if inputs.ids.is_cuda else rows_of(self.pages, self.lengths)
        self._contexts: tuple[Tensor, Tensor] | None = None

    def contexts(self, prefills: Prefills) -> tuple[Tensor, Tensor]:
        """Prefills.laid_out, once a step."""
        if self._contexts is None:
            self._contexts = prefills.laid_out()
        return self._contexts


class Attention(Protocol):
    """Attention of x [T, hidden], whose keys and values go into the layer's cache: [T, hidden]."""

    def __call__(self, x: Tensor, step: Step, cache: Tensor) -> Tensor: ...

    def new_cache(self, slots: int) -> Tensor: ...


class GroupedAttention:
    """Queries share keys and values in groups. The cache is [slots, 2, kv_heads, size]: keys, then values."""

    def __init__(
        self, spec: GQA, hidden: int, epsilon: float, prefix: str, loader: Loader, order: Tensor | None
    ) -> None:
        self.numerics, self.size = loader.numerics, spec.size
        self.heads, self.kv_heads = spec.heads // loader.ranks.size, spec.kv_heads // loader.ranks.size
        queries = loader.ranks.share(spec.heads, spec.size)
        keys = loader.ranks.share(spec.kv_heads, spec.size)

        def part(name: str, heads: int, taken: slice, shuffle: Tensor | None) -> Part:
            name = f"{prefix}.{name}_proj"
            return Part(name, heads * spec.size, hidden, taken_rows=taken, order=shuffle, bias=spec.bias)

        self.qkv = loader.linear(
            part("q", spec.heads, queries, order),
            part("k", spec.kv_heads, keys, order),
            part("v", spec.kv_heads, keys, None),
        )
        columns = spec.heads * spec.size
        self.out = loader.linear(Part(f"{prefix}.o_proj", hidden, columns, taken_columns=queries, bias=spec.out_bias))
        self.norms: tuple[Norm, Norm] | None = None
        if spec.qk_norm:
            q, k = (loader.vector(f"{prefix}.{name}_norm.weight", spec.size) for name in ("q", "k"))
            q, k = (q, k) if order is None else (q[order], k[order])
            self.norms = Norm(q, epsilon), Norm(k, epsilon)

    def new_cache(self, slots: int) -> Tensor:
        shape = (slots, 2, self.kv_heads, self.size)
        return torch.zeros(shape, dtype=self.numerics.activations, device=self.numerics.device)

    def __call__(self, x: Tensor, step: Step, cache: Tensor) -> Tensor:
        turned = self.heads + self.kv_heads
        qkv = self.qkv(x).view(len(x), turned + self.kv_heads, self.size)
        q = qkv[:, : self.heads]
        if self.norms is None:
            step.turn(qkv[:, :turned])
            write_cache(cache.view(len(cache), -1, self.size), qkv[:, self.heads :], step.slots)
        else:
            q, k = self.norms[0](q), self.norms[1](qkv[:, self.heads : turned])
            step.turn(q, k)
            write_cache(cache[:, 0], k, step.slots)
            write_cache(cache[:, 1], qkv[:, turned:], step.slots)
        return self.out(self._attend(q, step, cache).flatten(1))

    def _attend(self, q: Tensor, step: Step, cache: Tensor) -> Tensor:
        k, v, scale, some = cache[:, 0], cache[:, 1], self.size**-0.5, step.prefills
        if some is None:
            return self._decode(q, step, cache)
        several = gqa_prefill(q[step.decodes :], k, v, some.pages, some.starts, some.lengths, scale, some.longest_query)
        if not step.decodes:
            return several
        return torch.cat([self._decode(q[: step.decodes], step, cache), several])

    def _decode(self, q: Tensor, step: Step, cache: Tensor) -> Tensor:
        if step.rows is not None and q.dtype != torch.bfloat16:
            return decode(q, cache, step.rows, self.size**-0.5)
        return gqa_decode(q, cache[:, 0], cache[:, 1], step.pages, step.lengths, self.size**-0.5)


class LatentAttention:
    """A token keeps one latent for all heads, cache [slots, kv_lora + rope]: the normed latent, then the turned key.

    At decode W_UK and W_UV are absorbed into queries and outputs, so that the latents serve as keys and values; at
    prefill whole contexts are expanded. Both multiply with the same plain W_UK and W_UV, whatever the precision.
    """

    def __init__(self, spec: MLA, hidden: int, prefix: str, loader: Loader, order: Tensor | None) -> None:
        self.spec, self.numerics = spec, loader.numerics
        self.heads = spec.heads // loader.ranks.size
        size, each = spec.nope + spec.rope, spec.nope + spec.value
        tail = None if order is None else torch.cat([torch.arange(spec.nope), spec.nope + order])
        keys = None if order is None else torch.cat([torch.arange(spec.kv_lora), spec.kv_lora + order])
        rows = spec.heads * size
        taken = loader.ranks.share(spec.heads, size)
        kv_a = Part(f"{prefix}.kv_a_proj_with_mqa", spec.cached, hidden, order=keys, bias=spec.bias)
        self.norm_q: Norm | None = None
        if spec.q_lora is None:
            self.down = loader.linear(Part(f"{prefix}.q_proj", rows, hidden, taken_rows=taken, order=tail), kv_a)
        else:
            self.down = loader.linear(Part(f"{prefix}.q_a_proj", spec.q_lora, hidden, bias=spec.bias), kv_a)
            self.norm_q = Norm(loader.vector(f"{prefix}.q_a_layernorm.weight", spec.q_lora), spec.epsilon)
            self.up = loader.linear(Part(f"{prefix}.q_b_proj", rows, spec.q_lora, taken_rows=taken, order=tail))
        self.norm_kv = Norm(loader.vector(f"{prefix}.kv_a_layernorm.weight", spec.kv_lora), spec.epsilon)
        expand = Part(f"{prefix}.kv_b_proj", spec.heads * each, spec.kv_lora, loader.ranks.share(spec.heads, each))
        self.expand = loader.expanded(expand)
        w = self.expand.view(self.heads, each, spec.kv_lora)
        self.w_uk, self.w_uv = w[:, : spec.nope], w[:, spec.nope :].transpose(1, 2)
        columns = loader.ranks.share(spec.heads, spec.value)
        out = Part(f"{prefix}.o_proj", hidden, spec.heads * spec.value, taken_columns=columns, bias=spec.bias)
        self.out = loader.linear(out)

    def new_cache(self, slots: int) -> Tensor:
        return torch.zeros(slots, self.spec.cached, dtype=self.numerics.activations, device=self.numerics.device)

    def __call__(self, x: Tensor, step: Step, cache: Tensor) -> Tensor:
        spec = self.spec
        down = self.down(x)
        q, kv = down[:, : -spec.cached], down[:, -spec.cached :]
        if self.norm_q is not None:
            q = self.up(self.norm_q(q))
        q = torch.unflatten(q, 1, (self.heads, spec.nope + spec.rope))
        key = kv[:, spec.kv_lora :]
        step.turn(q[..., spec.nope :], key.unsqueeze(1))
        latent = self.norm_kv(kv[:, : spec.kv_lora])
        write_cache(cache[:, : spec.kv_lora], latent, step.slots)
        write_cache(cache[:, spec.kv_lora :], key, step.slots)
        found = []
        if step.decodes:
            found.append(self._decode(q[: step.decodes], step, cache))
        if step.prefills is not None:
            found.append(self._prefill(q[step.decodes :], step, step.prefills, cache).flatten(1))
        return self.out(found[0] if len(found) == 1 else torch.cat(found))

    def _decode(self, q: Tensor, step: Step, cache: Tensor) -> Tensor:
        nope = self.spec.nope
        q_latent = torch.bmm(q[..., :nope].transpose(0, 1), self.w_uk).transpose(0, 1)
        latent = mla_decode(q_latent, q[..., nope:], cache, step.pages, step.lengths, self.spec.scale)
        return torch.bmm(latent.transpose(0, 1), self.w_uv).transpose(0, 1).flatten(1)

    def _prefill(self, q: Tensor, step: Step, some: Prefills, cache: Tensor) -> Tensor:
        spec = self.spec
        slots, kv_starts = step.contexts(some)
        rows = cache.index_select(0, slots)
        kv = functional.linear(rows[:, : spec.kv_lora], self.expand).view(len(rows), self.heads, spec.nope + spec.value)
        shared = rows[:, None, spec.kv_lora :].expand(-1, self.heads, -1)
        k = torch.cat([kv[..., : spec.nope], shared], dim=-1)
        return mla_prefill(q, k, kv[..., spec.nope :], some.starts, kv_starts, spec.scale, some.longest_query)
