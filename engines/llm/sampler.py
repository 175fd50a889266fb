"""Picks tokens from logits, on the device: one uniform number a row decides, so that a seed reproduces a reply."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
WORD = 32
SMALL = 4096


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """A number in [0, 1) for each (seed, position): a counter hash, so it never depends on what else runs."""
    return (_mixed(_mixed(seeds) + positions * GOLDEN) >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: each bit of the input moves each bit of the output."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(slots=True)
class Penalised:
    """Which rows [R] of the logits are penalised, how [R], and what they hold: counts of reply tokens [R, V] and
    whether the prompt holds a token [R, V].
    """

    rows: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    counts: Tensor
    prompt: Tensor


@dataclass(slots=True)
class SamplingTensors:
    """How each row is picked, on the logits' device. `greedy`: all rows take the likeliest token (temperature 0);
    `filtered`: some row has a top_k (vocabulary size: no limit), top_p or min_p. `uniform` is f64 in [0, 1).
    """

    greedy: bool
    filtered: bool
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    uniform: Tensor
    penalised: Penalised | None = None


def sample(logits: Tensor, params: SamplingTensors, mask: Tensor | None = None) -> Tensor:
    """Tokens i64 [S] from logits [S, V]. `mask` i32 [S, ceil(V/32)]: bit v of a row says that it may take token v.

    Penalties come first, then the mask, temperature, min_p, top_k, top_p of what is left. Ties: the lowest token.
    """
    if params.penalised is not None:
        logits = penalise(logits, params.penalised)
    if mask is not None:
        logits = masked(logits, mask)
    likeliest = argmax(logits)
    if params.greedy:
        return likeliest
    cold = params.temperature == 0
    if logits.device.type != "cpu" or logits.shape[-1] <= SMALL:
        return torch.where(cold, likeliest, _drawn(logits, params))
    for row in (~cold).nonzero().flatten().tolist():  # one by one: large temporaries are slow on a CPU
        likeliest[row : row + 1] = _drawn(logits[row : row + 1], _row(params, row))
    return likeliest


def _drawn(logits: Tensor, params: SamplingTensors) -> Tensor:
    """A token of each row by its uniform number: the first at which the summed probabilities exceed it."""
    warmth = torch.where(params.temperature == 0, 1.0, params.temperature).to(logits.dtype)
    shares = torch.softmax(logits / warmth[:, None], dim=-1)
    if params.filtered:
        shares = filtered(shares, params)
    mass = shares.double().cumsum(dim=-1)
    drawn = torch.searchsorted(mass, params.uniform[:, None] * mass[:, -1:], right=True)[:, 0]
    return drawn.clamp_max(logits.shape[-1] - 1)


def _row(params: SamplingTensors, row: int) -> SamplingTensors:
    one = slice(row, row + 1)
    top_p, min_p, top_k = params.top_p[one], params.min_p[one], params.top_k[one]
    return SamplingTensors(False, params.filtered, params.temperature[one], top_p, min_p, top_k, params.uniform[one])


def argmax(logits: Tensor) -> Tensor:
    """The likeliest token of each row; of equals the lowest. On a CPU by numpy, ten times as fast as torch."""
    return torch.from_numpy(logits.numpy().argmax(axis=1)) if logits.device.type == "cpu" else logits.argmax(dim=-1)


def masked(logits: Tensor, mask: Tensor) -> Tensor:
    """Logits with minus infinity wherever the row's bit is 0."""
    bits = torch.arange(WORD, dtype=torch.int32, device=logits.device)
    allowed = ((mask[:, :, None] >> bits) & 1).flatten(1)[:, : logits.shape[-1]]
    return logits.masked_fill(allowed == 0, -torch.inf)


def penalise(logits: Tensor, how: Penalised) -> Tensor:
    """repetition divides positive and multiplies negative logits of tokens that prompt or reply hold; presence and
    frequency (times the count) are subtracted for what the reply holds.
    """
    chosen, counts = logits[how.rows], how.counts
    repetition = how.repetition[:, None].to(logits.dtype)
    repeated = torch.where(chosen > 0, chosen / repetition, chosen * repetition)
    chosen = torch.where((counts > 0) | how.prompt, repeated, chosen)
    chosen = chosen - how.frequency[:, None].to(logits.dtype) * counts
    chosen = chosen - how.presence[:, None].to(logits.dtype) * (counts > 0)
    return logits.index_copy(0, how.rows, chosen)


def filtered(shares: Tensor, params: SamplingTensors) -> Tensor:
    """Probabilities [S, V] with 0 for what min_p, top_k and top_p leave out; not brought back to a sum of 1."""
    ranked, order = _ranked(shares)
    rank = torch.arange(shares.shape[-1], device=shares.device)
    kept = (ranked >= params.min_p[:, None] * ranked[:, :1]) & (rank < params.top_k[:, None])
    ranked = torch.where(kept, ranked, 0.0).double()
    mass = ranked.cumsum(dim=-1)
    top_p = params.top_p[:, None]
    kept &= (mass - ranked < top_p * mass[:, -1:]) | (top_p >= 1)
    return torch.where(torch.zeros_like(kept).scatter_(1, order, kept), shares, 0.0)


def _ranked(shares: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities from the likeliest down, and their tokens; of equals the lowest token first."""
    if shares.device.type != "cpu" or shares.dtype != torch.float32:
        ranked, order = torch.sort(shares, dim=-1, descending=True, stable=True)
        return ranked, order
    # As integers floats of one sign keep their order: with the token behind them numpy sorts both, ten times as fast.
    bits = shares.contiguous().numpy().view(np.uint32).astype(np.uint64)
    keys = (bits << np.uint64(WORD)) | np.arange(shares.shape[-1] - 1, -1, -1, dtype=np.uint64)
    keys.sort(axis=1)
    keys = keys[:, ::-1]
    tokens = (np.uint64(shares.shape[-1] - 1) - (keys & np.uint64(2**WORD - 1))).astype(np.int64)
    return torch.from_numpy((keys >> np.uint64(WORD)).astype(np.uint32).view(np.float32)), torch.from_numpy(tokens)


def log_probabilities(logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
    """The model's own log-probabilities, before any setting: of `tokens` [S], and of the likeliest `top` tokens
    (values [S, top], tokens [S, top]).
    """
    shares = torch.log_softmax(logits, dim=-1)
    values, likeliest = shares.topk(top, dim=-1)
    return shares.gather(1, tokens[:, None])[:, 0], values, likeliest
