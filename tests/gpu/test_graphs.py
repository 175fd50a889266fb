"""On a GPU: steps replayed by graphs give what steps without give, greedy and drawn, masked, padded, overlapped.

python -m pytest tests/gpu/test_graphs.py -m gpu
"""

from __future__ import annotations

import pytest
import torch

from engines.llm.assembly import put_together
from engines.llm.config import EngineSettings, Sampling
from engines.llm.core import Core
from engines.llm.messages import Report, Submit
from engines.llm.models import architecture_of, build
from engines.llm.sequence import Request, SamplingCode
from engines.weights.random import random_tensors

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

QWEN3 = {
    "model_type": "qwen3", "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu", "tie_word_embeddings": False,
    "attention_bias": False, "dtype": "bfloat16", "eos_token_id": 0,
}  # fmt: skip
CODES = [
    SamplingCode(),
    SamplingCode.of(Sampling(temperature=0.8, seed=5)),
    SamplingCode.of(Sampling(temperature=0.9, top_p=0.8, top_k=50, min_p=0.01, seed=6)),
    SamplingCode.of(Sampling(temperature=0.7, repetition_penalty=1.2, frequency_penalty=0.3, seed=7)),
]


def engine(replies: dict[int, list[int]], **settings: object) -> tuple[Core, bool]:
    architecture = architecture_of(QWEN3)
    decoder = build(architecture, random_tensors(architecture, 1, "cuda"), precision="bf16", device="cuda")
    chosen = EngineSettings(device="cuda", precision="bf16", cache_tokens=8000, **{"max_running": 16, **settings})  # type: ignore[arg-type]

    def hear(report: Report) -> None:
        for token in report.tokens:
            replies.setdefault(token.id, []).append(token.token)
        assert not [end for end in report.ends if end.reason == "error"], report.ends

    core, facts = put_together(decoder, chosen.on("cuda"), hear)
    return core, facts.graphs


def replies_of(*, together: bool = True, **settings: object) -> dict[int, list[int]]:
    replies: dict[int, list[int]] = {}
    core, graphs = engine(replies, **settings)
    assert graphs == bool(settings.get("cuda_graph_max_bs", 64))
    for id in range(11):
        prompt = tuple(1 + (id * 37 + place * 11) % 4000 for place in range(20 + 9 * id))
        core.put(Submit(Request(id, prompt, 30, sampling=CODES[id % len(CODES)])))
        if not together:
            settle(core, replies, id)
    for id in range(11):
        settle(core, replies, id)
    return replies


def settle(core: Core, replies: dict[int, list[int]], id: int) -> None:
    while len(replies.get(id, [])) < 30:
        core.turn()


def test_graphs_change_no_token() -> None:
    """The same kernels on the same numbers (a graph of exactly 11): only the launching differs."""
    assert replies_of(cuda_graph_max_bs=11) == replies_of(cuda_graph_max_bs=0)


def test_padding_changes_nothing_but_near_ties() -> None:
    """Products of 16 rows may add in another order than those of 11; a wrong page or token would change all replies."""
    padded, exact = replies_of(cuda_graph_max_bs=16, max_running=16), replies_of(cuda_graph_max_bs=11)
    assert sum(padded[id][:4] == exact[id][:4] for id in range(11)) >= 8


def test_overlap_changes_no_token() -> None:
    assert replies_of(cuda_graph_max_bs=16, overlap=True) == replies_of(cuda_graph_max_bs=16, overlap=False)


def test_pages_are_sized_by_what_is_left() -> None:
    architecture = architecture_of(QWEN3)
    free = torch.cuda.mem_get_info()[0]
    decoder = build(architecture, random_tensors(architecture, 1, "cuda"), precision="bf16", device="cuda")
    settings = EngineSettings(device="cuda", precision="bf16", memory_fraction=0.05, max_running=16).on("cuda")
    _, facts = put_together(decoder, settings, lambda report: None, free=free)
    left = torch.cuda.mem_get_info()[0]
    assert facts.graphs
    assert 0.03 * free < free - left < 0.065 * free, "what was allowed is used, and not much more"
