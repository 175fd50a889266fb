"""Every setting of sampling against a plain formula, the distribution drawn, and seeds that reproduce a reply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engines.llm.sampler import (
    Penalised,
    SamplingTensors,
    filtered,
    log_probabilities,
    masked,
    penalise,
    sample,
    uniforms,
)

VOCABULARY = 50
Floats = NDArray[np.float64]


def params(rows: int, **settings: float) -> SamplingTensors:
    """The same settings for each row, with the uniform numbers of seed 0 at positions 0, 1, ..."""

    def column(name: str, default: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((rows,), settings.get(name, default), dtype=dtype)

    return SamplingTensors(
        greedy=settings.get("temperature", 1.0) == 0,
        filtered=any(name in settings for name in ("top_k", "top_p", "min_p")),
        temperature=column("temperature", 1.0),
        top_p=column("top_p", 1.0),
        min_p=column("min_p", 0.0),
        top_k=column("top_k", VOCABULARY, torch.int32),
        uniform=torch.from_numpy(uniforms(np.full(rows, int(settings.get("seed", 0)), np.uint64), counted(rows))),
    )


def counted(rows: int) -> NDArray[np.uint64]:
    return np.arange(rows, dtype=np.uint64)


def logits(rows: int = 1, seed: int = 3) -> torch.Tensor:
    """One row of random logits, repeated."""
    row = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2
    return row.repeat(rows, 1)


def plain(scores: Floats, settings: dict[str, float]) -> Floats:
    """The distribution, token by token, as the settings are described."""
    weights = np.exp((scores - scores.max()) / settings.get("temperature", 1.0))
    shares = weights / weights.sum()
    order = sorted(range(len(shares)), key=lambda token: (-shares[token], token))
    kept = [token for token in order if shares[token] >= settings.get("min_p", 0.0) * shares.max()]
    kept = kept[: int(settings.get("top_k", len(kept)))]
    total, mass, nucleus = sum(shares[kept]), 0.0, []
    for token in kept:
        if settings.get("top_p", 1.0) < 1 and mass >= settings["top_p"] * total:
            break
        nucleus.append(token)
        mass += shares[token]
    result = np.zeros_like(shares)
    result[nucleus] = shares[nucleus] / sum(shares[nucleus])
    return result


SETTINGS: Sequence[dict[str, float]] = (
    {},
    {"temperature": 0.7},
    {"temperature": 2.0, "top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    {"top_k": 1},
)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_draws_follow_the_formula(settings: dict[str, float]) -> None:
    count = 20_000
    drawn = sample(logits(count), params(count, **settings)).numpy()
    expected = plain(logits()[0].double().numpy(), settings) * count
    seen = np.bincount(drawn, minlength=VOCABULARY)
    assert not seen[expected == 0].any(), "a token that the settings leave out"
    likely = expected >= 5
    rest = (seen[~likely].sum(), expected[~likely].sum())
    pairs = [*zip(seen[likely], expected[likely], strict=True), *([rest] if rest[1] >= 5 else [])]
    chi, freedom = sum((a - b) ** 2 / b for a, b in pairs), len(pairs) - 1
    assert chi <= freedom + 4 * math.sqrt(2 * max(freedom, 1)), "far from what the formula says"


def test_temperature_zero_takes_the_likeliest_and_the_lowest_of_equals() -> None:
    scores = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, 1.0, 5.0, 5.0]])
    assert sample(scores, replace(params(2), greedy=True)).tolist() == [1, 0]
    mixed = replace(params(2), temperature=torch.zeros(2))
    assert sample(scores, mixed).tolist() == [1, 0], "greedy rows beside rows that draw"


def test_a_row_draws_the_same_in_every_batch() -> None:
    scores = torch.randn(16, VOCABULARY, generator=torch.Generator().manual_seed(1))
    seeds, positions = np.arange(16, dtype=np.uint64) * 77, counted(16) + np.uint64(5)
    batch = replace(params(16), uniform=torch.from_numpy(uniforms(seeds, positions)))
    together = sample(scores, batch).tolist()
    for row in range(16):
        alone = replace(params(1), uniform=batch.uniform[row : row + 1])
        assert sample(scores[row : row + 1], alone).tolist() == [together[row]]
    neighbours = replace(batch, filtered=True, top_k=batch.top_k.clone().index_fill_(0, torch.tensor([3]), 2))
    others = [row for row in range(16) if row != 3]
    assert sample(scores, neighbours)[others].tolist() == [together[row] for row in others]


def test_uniforms_are_even_and_depend_on_seed_and_position() -> None:
    seeds = np.repeat(np.arange(100, dtype=np.uint64), 100)
    drawn = uniforms(seeds, np.tile(counted(100), 100))
    assert len(np.unique(drawn)) == 10_000
    assert drawn.min() >= 0 and drawn.max() < 1
    assert np.abs(np.bincount((drawn * 10).astype(int)) - 1000).max() < 130


def test_mask_leaves_what_it_allows() -> None:
    words = torch.zeros(2, math.ceil(VOCABULARY / 32), dtype=torch.int32)
    words[0, 0], words[0, 1] = -(2**31) | 0b100, 0b10  # tokens 2, 31 and 33
    words[1] = -1  # everything
    scores = logits(2)
    allowed = masked(scores, words)
    assert torch.isfinite(allowed[0]).nonzero().flatten().tolist() == [2, 31, 33]
    assert torch.equal(allowed[1], scores[1])
    drawn = sample(logits(500), params(500, top_p=0.99), words[:1].expand(500, -1))
    assert set(drawn.tolist()) <= {2, 31, 33}


def test_penalties_are_the_formula() -> None:
    generator = torch.Generator().manual_seed(9)
    scores = torch.randn(3, VOCABULARY, generator=generator)
    counts = torch.randint(0, 3, (2, VOCABULARY), generator=generator, dtype=torch.int16)
    prompt = torch.rand(2, VOCABULARY, generator=generator) < 0.3
    how = Penalised(
        torch.tensor([0, 2]),
        torch.tensor([1.3, 1.0]),
        torch.tensor([0.4, -1.0]),
        torch.tensor([0.2, 0.5]),
        counts,
        prompt,
    )
    expected = scores.numpy().copy()
    for place, row in enumerate((0, 2)):
        for token in range(VOCABULARY):
            value, count = expected[row, token], int(counts[place, token])
            if count or prompt[place, token]:
                value = value / float(how.repetition[place]) if value > 0 else value * float(how.repetition[place])
            expected[row, token] = (
                value - float(how.frequency[place]) * count - float(how.presence[place]) * (count > 0)
            )
    np.testing.assert_allclose(penalise(scores, how).numpy(), expected, rtol=1e-6, atol=1e-6)
    greedy = replace(params(3), greedy=True, penalised=how)
    assert sample(scores, greedy).tolist() == expected.argmax(axis=1).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("warmth", [0.3, 1.0, 30.0])
def test_what_is_kept_among_many_tokens_of_equal_weight(warmth: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(6, 4000, generator=generator).mul(4).round().div(4) / warmth * 3  # many ties
    shares = torch.softmax(scores.to(dtype), -1)
    how = replace(
        params(6),
        top_p=torch.tensor([0.9, 1.0, 0.5, 1.0, 0.99, 1.0]),
        top_k=torch.tensor([4000, 7, 700, 4000, 300, 4000], dtype=torch.int32),
        min_p=torch.tensor([0.0, 0.0, 0.0, 0.2, 0.01, 0.0]),
    )
    found = filtered(shares, how)
    for row in range(6):
        limits = {"top_p": float(how.top_p[row]), "top_k": float(how.top_k[row]), "min_p": float(how.min_p[row])}
        expected = plain(np.log(shares[row].double().numpy()), limits)
        assert ((found[row].numpy() > 0) == (expected > 0)).all(), limits


def test_log_probabilities_are_the_models_own() -> None:
    scores = logits(2)
    chosen, values, tokens = log_probabilities(scores, torch.tensor([4, 7]), 3)
    shares = torch.log_softmax(scores, -1)
    assert torch.equal(chosen, torch.stack([shares[0, 4], shares[1, 7]]))
    assert torch.equal(values[0], shares[0].sort(descending=True).values[:3])
    assert torch.equal(shares[0, tokens[0]], values[0])
