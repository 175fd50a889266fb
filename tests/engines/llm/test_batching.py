"""Batching changes nothing: real small models, requests that come and go, each says what it says alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from engines.layers.decoder import Decoder
from engines.llm.config import Sampling
from engines.llm.messages import Abort
from engines.llm.models import architecture_of, build
from engines.llm.sequence import SamplingCode
from engines.weights.tensors import MemoryTensors
from tests.engines.llm.models.families import made
from tests.engines.llm.rig import Rig

TOLD = SamplingCode.of(Sampling(logprobs=2))
MARGIN = 1e-3
CASES = ["qwen3", "qwen3-moe", "deepseek-v3"]  # grouped attention, experts, latent attention with experts


def decoder(case: str, precision: str) -> Decoder:
    dtype = torch.float64 if precision == "fp64" else torch.float32
    _, config, tensors = made(case, dtype)
    return build(architecture_of(config), MemoryTensors(tensors), precision=precision, device="cpu")


def alone(model: Decoder, prompt: Sequence[int], most: int) -> tuple[list[int], list[float]]:
    """The reply, and at each token how far the second likeliest is behind."""
    rig = Rig(model=model)
    rig.submit(0, prompt, most, sampling=TOLD)
    rig.finish()
    return rig.replies[0], [top[0][1] - top[1][1] for _, top in rig.logprobs[0]]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("case", CASES)
def test_200_requests_say_what_each_says_alone(case: str, precision: str) -> None:
    chance, model = random.Random(7), decoder(case, precision)
    rig = Rig(model=model, slots=220)
    prefixes = [[chance.randrange(1, 300) for _ in range(chance.randrange(3, 30))] for _ in range(6)]
    prompts, most, aborted = {}, {}, set[int]()
    waiting = list(range(200))
    while waiting or not rig.scheduler.idle:
        for _ in range(chance.choice([0, 1, 2, 4])):
            if waiting:
                id = waiting.pop(0)
                prompts[id] = [
                    *chance.choice(prefixes),
                    *(chance.randrange(1, 300) for _ in range(chance.randrange(1, 9))),
                ]
                most[id] = chance.randrange(1, 16)
                rig.submit(id, prompts[id], most[id], tenant=chance.choice("ab"), batch=chance.random() < 0.3)
        if chance.random() < 0.1:
            victim = chance.choice(list(prompts) or [0])
            aborted.add(victim)
            rig.core.put(Abort(victim))
        rig.core.turn()
    rig.scheduler.check()
    assert len(rig.ends) == 200
    assert rig.scheduler.stats().held == 0
    assert rig.scheduler.stats().hit > 500
    for id in range(200):
        said = rig.replies.get(id, [])
        whole, margins = alone(model, prompts[id], most[id])
        assert rig.reason(id) == "abort" or len(said) == len(whole) or precision == "fp32"
        for at, (token, expected) in enumerate(zip(said, whole, strict=False)):
            if token != expected:
                assert precision == "fp32" and margins[at] <= MARGIN, (id, at, margins[at])
                break


@pytest.mark.parametrize("case", CASES)
def test_a_remembered_prefix_chunks_and_preemption_change_no_token(case: str) -> None:
    model = decoder(case, "fp64")
    prompt = [7 * place % 300 for place in range(1, 45)]
    whole, _ = alone(model, prompt, 20)
    rig = Rig(model=model, slots=100, overlap=True)
    rig.submit(1, prompt, 20)
    rig.finish()
    for id in range(2, 6):
        rig.submit(id, prompt if id % 2 else [id, *prompt], 20)
    rig.finish()
    rig.scheduler.check()
    assert rig.replies[1] == rig.replies[3] == rig.replies[5] == whole
    assert rig.replies[4] == alone(model, [4, *prompt], 20)[0]
    assert rig.scheduler.stats().preemptions > 0
