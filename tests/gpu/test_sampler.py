"""On a GPU: the same tokens as on the CPU from the same logits, settings, masks and uniform numbers.

python -m pytest tests/gpu/test_sampler.py -m gpu
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from engines.llm.sampler import Penalised, SamplingTensors, sample, uniforms

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

ROWS, VOCABULARY = 32, 50_000


def settings(greedy: bool, filtered: bool, penalised: bool) -> SamplingTensors:
    generator = torch.Generator().manual_seed(2)
    positions = np.arange(ROWS, dtype=np.uint64)
    counts = torch.randint(0, 2, (ROWS // 2, VOCABULARY), generator=generator, dtype=torch.int16)
    prompt = torch.rand(ROWS // 2, VOCABULARY, generator=generator) < 0.01
    half = torch.full((ROWS // 2,), 0.3)
    return SamplingTensors(
        greedy=greedy,
        filtered=filtered,
        temperature=torch.where(torch.arange(ROWS) % 4 == 0, 0.0, 0.9),
        top_p=torch.linspace(0.5, 1, ROWS),
        min_p=torch.linspace(0.05, 0, ROWS),
        top_k=torch.full((ROWS,), VOCABULARY, dtype=torch.int32).index_fill_(0, torch.arange(0, ROWS, 3), 40),
        uniform=torch.from_numpy(uniforms(np.full(ROWS, 8, np.uint64), positions)),
        penalised=Penalised(torch.arange(0, ROWS, 2), half + 1, half, half, counts, prompt) if penalised else None,
    )


def on_gpu(params: SamplingTensors) -> SamplingTensors:
    moved = {
        field.name: value.cuda() if isinstance(value := getattr(params, field.name), torch.Tensor) else value
        for field in fields(params)
    }
    penalised = params.penalised
    if penalised is not None:
        moved["penalised"] = Penalised(*(getattr(penalised, field.name).cuda() for field in fields(penalised)))
    return replace(params, **moved)


@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("penalised", [False, True], ids=["plain", "penalised"])
@pytest.mark.parametrize("kind", [(True, False), (False, False), (False, True)], ids=["greedy", "drawn", "filtered"])
def test_the_same_tokens_as_on_the_cpu(kind: tuple[bool, bool], penalised: bool, masked: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(ROWS, VOCABULARY, generator=generator) * 3
    masks = torch.randint(-(2**31), 2**31 - 1, (ROWS, -(-VOCABULARY // 32)), generator=generator, dtype=torch.int32)
    params = settings(*kind, penalised)
    here = sample(logits, params, masks if masked else None)
    there = sample(logits.cuda(), on_gpu(params), masks.cuda() if masked else None).cpu()
    assert int((here != there).sum()) <= (0 if kind[0] else 1), "a draw on the very edge of two tokens, at most"
