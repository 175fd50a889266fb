"""Each family computes what transformers computes: whatever shares a step, wherever pages lie, in whatever pieces.

The installed transformers masks the experts of dropped groups with -inf for V3, as the paper has it (older versions
had 0.0, wrong where kept scores are negative: the biases here make most of them so), and with 0.0 for V2, whose scores
are all positive.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.layers.decoder import Decoder
from engines.llm.models import architecture_of, build
from engines.weights import MemoryTensors
from tests.engines.layers.stepping import Sequenced, Stepper
from tests.engines.llm.models.families import CASES, made

TOLERANCE = 1e-4  # of the range of the logits
PROMPT = 37


@cache
def pair(case: str) -> tuple[Any, Decoder]:
    """transformers' model and ours, of the same weights."""
    model, config, tensors = made(case)
    held = MemoryTensors(tensors)
    decoder = build(architecture_of(config), held, precision="fp32", device="cpu")
    held.finish()
    return model, decoder


def tokens(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(320, (count,), generator=generator).tolist()


def logits(model: Any, ids: list[int]) -> Tensor:
    """transformers' logits at each position."""
    with torch.inference_mode():
        found: Tensor = model(torch.tensor([ids])).logits[0]
    return found


def same(ours: Tensor, theirs: Tensor) -> None:
    spread = float(theirs.max() - theirs.min())
    assert spread > 1
    assert float((ours - theirs).abs().max()) < TOLERANCE * spread


@pytest.mark.parametrize("case", CASES)
def test_prefill(case: str) -> None:
    model, decoder = pair(case)
    ids = tokens(PROMPT)
    same(Stepper(decoder).step([(Sequenced(ids), PROMPT)], every=True), logits(model, ids))


@pytest.mark.parametrize("case", CASES)
def test_decode(case: str) -> None:
    model, decoder = pair(case)
    ids = tokens(PROMPT)
    stepper, sequence = Stepper(decoder), Sequenced(ids)
    stepper.step([(sequence, 20)])
    found = torch.cat([stepper.step([(sequence, 1)]) for _ in range(PROMPT - 20)])
    same(found, logits(model, ids)[20:])


@pytest.mark.parametrize("case", CASES)
def test_many_at_once_prompts_in_pieces_and_mixed_with_decodes(case: str) -> None:
    """Seven sequences of different lengths: some decode while others' prompts are computed piece by piece."""
    model, decoder = pair(case)
    stepper = Stepper(decoder)
    sequences = [Sequenced(tokens(20 + 7 * index, seed=index)) for index in range(7)]
    wanted = [logits(model, sequence.tokens) for sequence in sequences]
    early, late = sequences[:4], sequences[4:]
    stepper.step([(sequence, 9) for sequence in early])
    pieces = [7, 6, 8]
    for _ in range(3):
        at = [(sequence, 1) for sequence in early] + list(zip(late, pieces, strict=True))
        found = stepper.step(at)
        same(found, torch.stack([want[sequence.done - 1] for want, sequence in zip(wanted, sequences, strict=True)]))
    found = stepper.step([(sequence, 1) for sequence in sequences])
    same(found, torch.stack([want[sequence.done - 1] for want, sequence in zip(wanted, sequences, strict=True)]))


@pytest.mark.parametrize("case", CASES)
def test_after_a_prefix_hit_and_a_recompute(case: str) -> None:
    """A prefix's pages serve a second sequence; then that one loses its pages and is computed again elsewhere."""
    model, decoder = pair(case)
    stepper = Stepper(decoder)
    first = Sequenced(tokens(PROMPT))
    stepper.step([(first, PROMPT)])
    second = Sequenced(tokens(PROMPT)[:16] + tokens(30, seed=5), slots=first.slots[:16])
    wanted = logits(model, second.tokens)
    same(stepper.step([(second, 12)], every=True), wanted[16:28])
    same(stepper.step([(second, 1)]), wanted[28:29])
    again = Sequenced(second.tokens)
    same(stepper.step([(again, 29)])[-1:], wanted[28:29])
    same(torch.cat([stepper.step([(again, 1)]) for _ in range(10)]), wanted[29:39])


@pytest.mark.parametrize("case", CASES)
def test_greedy_over_64_steps(case: str) -> None:
    model, decoder = pair(case)
    ids = tokens(12, seed=2)
    reply = Stepper(decoder).greedy(Sequenced(list(ids)), 64)
    with torch.inference_mode():
        output = model.generate(torch.tensor([ids]), max_new_tokens=64, min_new_tokens=64, do_sample=False)
    assert reply == output[0, len(ids) :].tolist()
