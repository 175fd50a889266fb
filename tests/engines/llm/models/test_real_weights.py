"""The packaged model's greedy text is transformers' text, token by token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engines.llm.config import ModelSource
from engines.llm.errors import ModelMissing
from engines.llm.models import architecture_of, build
from engines.weights import open_checkpoint
from tests.engines.layers.stepping import Sequenced, Stepper

PROMPTS = (
    "The capital of France is",
    "Water boils at",
    "def fibonacci(n):",
    "Once upon a time, in a small village,",
    "The three primary colours are",
    "To make a cup of tea, first",
    "Dear Sir or Madam,",
    "The opposite of hot is",
    "Photosynthesis is the process by which",
    "1, 2, 3, 4,",
    "In 1969, humans first",
    "My favourite book is",
    "The recipe needs flour, sugar and",
    "A triangle has",
    "Good morning! How can I",
    "The clinic is open from",
    "If it rains tomorrow, we",
    "import numpy as np\n",
    "The largest planet is",
    "She opened the door and saw",
)


@pytest.fixture(scope="module")
def directory() -> Path:
    try:
        return Path(ModelSource.resolve("default").directory)
    except ModelMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_greedy_text(directory: Path) -> None:
    """20 prompts of 64 tokens each: all together in one batch here, one after the other there."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    config = json.loads((directory / "config.json").read_text())
    decoder = build(architecture_of(config), open_checkpoint(directory), precision="fp32", device="cpu")
    stepper = Stepper(decoder, 4096)
    sequences = [Sequenced(tokenizer(prompt).input_ids) for prompt in PROMPTS]
    lengths = [len(sequence.tokens) for sequence in sequences]
    last = stepper.step([(sequence, len(sequence.tokens)) for sequence in sequences])
    for step in range(64):
        for sequence, token in zip(sequences, last.argmax(-1).tolist(), strict=True):
            sequence.tokens.append(token)
        if step < 63:
            last = stepper.step([(sequence, 1) for sequence in sequences])
    for sequence, length, prompt in zip(sequences, lengths, PROMPTS, strict=True):
        ids = torch.tensor([sequence.tokens[:length]])
        with torch.inference_mode():
            wanted = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False)
        reply = wanted[0].tolist()
        assert len(reply) == length + 64 or reply[-1] == tokenizer.eos_token_id
        assert sequence.tokens[: len(reply)] == reply, prompt
