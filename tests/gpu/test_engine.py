"""The whole engine on a CUDA device: 64 requests at once on random FP8 weights of a 16 B model, held against the twins.

Run with `python -m pytest tests/gpu/test_engine.py -m gpu -rP`. Its CPU side takes about 20 GB of memory and minutes.
"""

from __future__ import annotations

import random

import pytest
import torch

from benchmarks.llm.configs import CONFIGS
from engines.layers.architecture import Architecture
from engines.llm.assembly import put_together
from engines.llm.config import EngineSettings
from engines.llm.core import Report, Submit
from engines.llm.models import architecture_of, build
from engines.llm.sequence import End, Request
from tests.engines.layers.stepping import Sequenced, Stepper
from tests.gpu.test_models import Copied, apart

pytestmark = pytest.mark.gpu
REQUESTS, REPLY = 64, 8
NEAR = 20
"""Random weights leave the likeliest tokens close to one another: what was said is among so many of the twin's."""


def served(architecture: Architecture) -> list[list[int]]:
    """Prompt and reply of each of the requests, all of which ran at once."""
    replies: dict[int, list[int]] = {number: [] for number in range(1, REQUESTS + 1)}
    ends: list[End] = []

    def hear(report: Report) -> None:
        for token in report.tokens:
            replies[token.id].append(token.token)
        ends.extend(report.ends)

    settings = EngineSettings(
        device="cuda", precision="fp8", max_running=REQUESTS, cuda_graph_max_bs=REQUESTS, cache_tokens=16_384
    ).on("cuda", "fp8")
    decoder = build(architecture, Copied(architecture), precision="fp8", device="cuda")
    core, facts = put_together(decoder, settings, hear, free=torch.cuda.mem_get_info()[0])
    chance = random.Random(7)
    prompts = {
        number: [chance.randrange(2, architecture.vocab) for _ in range(chance.randrange(4, 21))] for number in replies
    }
    for number, prompt in prompts.items():
        core.put(Submit(Request(number, tuple(prompt), REPLY)))
    while len(ends) < REQUESTS:
        core.turn()
    assert facts.graphs and sorted(end.id for end in ends) == list(replies)
    assert {(end.reason, end.completion) for end in ends} == {("length", REPLY)}
    return [prompts[number] + replies[number] for number in replies]


def states(architecture: Architecture, texts: list[list[int]], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states of every position in one step, and the logits of those that a reply's token follows."""
    decoder = build(architecture, Copied(architecture), precision="fp8", device=device)
    stepper = Stepper(decoder, 4096)
    with torch.inference_mode():
        inputs = stepper.inputs([(Sequenced(text), len(text) - 1) for text in texts], every=True)
        hidden = decoder.forward(inputs, stepper.cache)
        ends = torch.tensor([len(text) - 1 for text in texts]).cumsum(0)
        rows = torch.cat([torch.arange(int(end) - REPLY, int(end)) for end in ends])
        return hidden.float().cpu(), decoder.logits(hidden[rows.to(hidden.device)]).float().cpu()


@pytest.mark.timeout(900)
def test_64_requests_at_once_agree_with_the_twins() -> None:
    architecture = architecture_of(CONFIGS["moonlight"])
    texts = served(architecture)
    torch.cuda.empty_cache()
    (device, _), (twin, logits) = (states(architecture, texts, kind) for kind in ("cuda", "cpu"))
    error = apart(device, twin)
    said = torch.tensor([token for text in texts for token in text[-REPLY:]])
    ranks = (logits > logits.gather(1, said[:, None])).sum(dim=1)
    print(f"{len(error)} positions: median {error.median():.2%} apart, 99% under {error.quantile(0.99):.2%}")
    likeliest = float((ranks == 0).float().mean())
    print(f"of what was said {likeliest:.1%} is the twin's likeliest; the worst is its number {int(ranks.max()) + 1}")
    assert float(error.median()) < 0.15
    assert float((ranks < NEAR).float().mean()) > 0.99
