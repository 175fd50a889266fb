"""A model that is nothing but its context: what it says next is a hash of all tokens before, read through the pages.

One page, slot, position or token that is wrong changes everything it says; it costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor

from engines.layers.inputs import Inputs

STATES = 4096


@dataclass
class HashModel:
    """`vocabulary` tokens; the logits at each context are one of STATES random rows."""

    vocabulary: int = 40
    device: str = "cpu"
    fails: bool = False

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(11)
        self.rows = torch.randn(STATES, self.vocabulary, generator=generator).to(self.device)
        self.architecture = SimpleNamespace(vocab=self.vocabulary)
        self.forwards = 0

    def new_cache(self, slots: int) -> Tensor:
        return torch.full((slots,), -1, dtype=torch.int64, device=self.device)

    def forward(self, inputs: Inputs, cache: Tensor) -> Tensor:
        """States [S]."""
        if self.fails:
            raise RuntimeError("the device is on fire")
        self.forwards += 1
        cache[inputs.slots] = inputs.ids * 1009 + inputs.positions * 31 + 7
        states = []
        for row, (start, end) in enumerate(zip(inputs.starts.tolist(), inputs.starts.tolist()[1:], strict=False)):
            length = int(inputs.lengths[row])
            said = cache[inputs.pages[row, :length].long()]
            assert length <= inputs.longest and end - start <= inputs.longest_query
            weights = torch.arange(1, length + 1, device=said.device) * 7919 % 1013
            totals = (said * weights).cumsum(0) % STATES
            states.append(totals[length - (end - start) :])
        return torch.cat(states)[inputs.keep]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.rows[hidden]

    def after(self, tokens: list[int]) -> Tensor:
        """Logits [vocabulary] behind these tokens, computed without pages."""
        said = [token * 1009 + place * 31 + 7 for place, token in enumerate(tokens)]
        total = sum(value * ((place + 1) * 7919 % 1013) for place, value in enumerate(said))
        return self.rows[total % STATES]

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.after(tokens).argmax()))
        return tokens[len(prompt) :]
