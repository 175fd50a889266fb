"""Drives a decoder as the engine's runner does: sequences with pages, several to a step, mixed as one likes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engines.layers.decoder import Decoder
from engines.layers.inputs import Inputs


@dataclass
class Sequenced:
    """One sequence: its tokens, and the slots of those that were computed."""

    tokens: list[int]
    slots: list[int] = field(default_factory=list)

    @property
    def done(self) -> int:
        return len(self.slots)


class Stepper:
    """A decoder and its cache; slots are given out in a shuffled order, so that pages are never neighbours."""

    def __init__(self, decoder: Decoder, slots: int = 2048, *, shuffled: bool = True) -> None:
        self.decoder = decoder
        self.cache = decoder.new_cache(slots)
        order = (
            torch.randperm(slots - 1, generator=torch.Generator().manual_seed(3))
            if shuffled
            else torch.arange(slots - 1)
        )
        self.free = (order + 1).tolist()

    def step(self, work: Sequence[tuple[Sequenced, int]], *, every: bool = False) -> Tensor:
        """Compute the next `count` tokens of each sequence, those with one token first; logits of their last tokens,
        or of all in order if `every`."""
        inputs = self.inputs(work, every=every)
        return self.decoder.logits(self.decoder.forward(inputs, self.cache))

    def inputs(self, work: Sequence[tuple[Sequenced, int]], *, every: bool = False) -> Inputs:
        """One step's tensors, as its slots are taken."""
        counts = [count for _, count in work]
        decodes = next((index for index, count in enumerate(counts) if count != 1), len(counts))
        assert 1 not in counts[decodes:], "sequences with one new token come first"
        ids, positions, slots = list[int](), list[int](), list[int]()
        for sequence, count in work:
            taken = [self.free.pop(0) for _ in range(count)]
            ids += sequence.tokens[sequence.done : sequence.done + count]
            positions += range(sequence.done, sequence.done + count)
            slots += taken
            sequence.slots += taken
        lengths = [sequence.done for sequence, _ in work]
        pages = torch.zeros(len(work), max(lengths) + 3, dtype=torch.int32)
        for row, (sequence, _) in enumerate(work):
            pages[row, : sequence.done] = torch.tensor(sequence.slots)
        ends = torch.tensor(counts).cumsum(0)
        device = self.decoder.numerics.device
        return Inputs(
            ids=torch.tensor(ids, device=device),
            positions=torch.tensor(positions, device=device),
            slots=torch.tensor(slots, device=device),
            pages=pages.to(device),
            starts=torch.cat([torch.zeros(1), ends]).to(device, torch.int32),
            lengths=torch.tensor(lengths, dtype=torch.int32, device=device),
            decodes=decodes,
            longest_query=max(counts),
            longest=max(lengths),
            keep=(torch.arange(len(ids)) if every else ends - 1).to(device),
        )

    def greedy(self, sequence: Sequenced, count: int) -> list[int]:
        """`count` tokens, each the likeliest, behind a sequence of which the last token is not computed yet."""
        found = []
        for _ in range(count):
            token = int(self.step([(sequence, len(sequence.tokens) - sequence.done)])[-1].argmax())
            found.append(token)
            sequence.tokens.append(token)
        return found
