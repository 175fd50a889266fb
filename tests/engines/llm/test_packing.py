"""A step's numbers in one buffer: what is written is what the views show, with padding behind."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from engines.llm.batch import BatchPlan, Row
from engines.llm.config import MOST_LOGPROBS, Sampling
from engines.llm.packing import Fields, Layout, Lines, Shape, size_of, views
from engines.llm.sequence import GREEDY, SamplingCode

WIDTH, CODE = 50, SamplingCode(temperature=700_000, top_k=5, top_p=900_000, min_p=100_000, seed=3)


def told() -> Lines:
    lines = Lines(6, 40)
    for line in range(1, 6):
        lines.tell(line, CODE if line % 2 else GREEDY)
    return lines


def packed(plan: BatchPlan, shape: Shape | None = None) -> Fields:
    layout = Layout(plan, WIDTH)
    buffer = torch.full((4096,), 255, dtype=torch.uint8)  # padding is written, not assumed
    return views(buffer, layout.pack(buffer, told(), shape))


def test_a_mixed_step() -> None:
    plan = BatchPlan(
        1, (Row(3, 7, 1, (), (9,), 1), Row(1, 2, 3, (5, 6, 7), (11, 12, 13), 0), Row(2, 0, 2, (8, 9), (4, 5), 2))
    )
    found = packed(plan)
    assert found.ids.tolist() == [-3, 5, 6, 7, 8, 9], "below zero: from the token pool"
    assert found.positions.tolist() == [7, 2, 3, 4, 0, 1]
    assert found.slots.tolist() == found.pages.tolist() == [9, 11, 12, 13, 4, 5]
    assert found.places.tolist() == [157, 52, 53, 54, 100, 101]
    assert found.starts.tolist() == [0, 1, 4, 6]
    assert found.lengths.tolist() == [8, 5, 2]
    assert found.keep.tolist() == [0, 4, 5]
    assert (found.last.tolist(), found.owners.tolist()) == ([0, 2], [3, 2])
    assert found.temperature.tolist() == pytest.approx([0.7, 0, 0])
    assert found.top_k.tolist() == [5, 40, 40]
    assert found.uniform.tolist()[0] != found.uniform.tolist()[1]


def test_padding_is_sequences_of_one_token_on_line_0() -> None:
    rows = tuple(Row(line, 4, 1, (), (line,), 1) for line in (5, 2, 3))
    found = packed(BatchPlan(1, rows), Shape(4, 4, 4, 4))
    assert found.ids.tolist() == [-5, -2, -3, 0]
    assert (found.rows[3], found.slots[3], found.places[3], found.pages[3], found.owners[3]) == (0, 0, 0, 0, 0)
    assert found.starts.tolist() == [0, 1, 2, 3, 4]
    assert found.lengths.tolist() == [5, 5, 5, 1]
    assert found.keep.tolist() == found.last.tolist() == [0, 1, 2, 3]


def test_fields_do_not_overlap() -> None:
    shape = Shape(5, 3, 4, 2)
    buffer = torch.zeros(size_of(shape), dtype=torch.uint8)
    found = views(buffer, shape)
    names = list(Fields.__dataclass_fields__)
    random.Random(1).shuffle(names)
    for number, name in enumerate(names):
        getattr(found, name).fill_(number)
    assert all((getattr(found, name) == number).all() for number, name in enumerate(names))


def test_a_step_of_single_tokens_that_are_sampled_is_plain() -> None:
    one = Row(1, 4, 1, (), (3,), 1)
    assert Layout(BatchPlan(1, (one,)), WIDTH).plain
    assert not Layout(BatchPlan(1, (one._replace(sample=0),)), WIDTH).plain
    assert not Layout(BatchPlan(1, (one, Row(2, 0, 2, (1, 2), (4, 5), 1))), WIDTH).plain


def test_whatever_sampling_takes_can_be_told() -> None:
    widest = Sampling(
        max_tokens=2**31 - 1, temperature=10.0, top_k=2**31 - 1, top_p=1e-300, min_p=1.0, repetition_penalty=10.0,
        presence_penalty=-2.0, frequency_penalty=2.0, stop_ids=(2**31 - 1,), seed=2**63 - 1, logprobs=MOST_LOGPROBS,
    )  # fmt: skip
    lines = Lines(2, MOST_LOGPROBS - 5)
    lines.tell(1, SamplingCode.of(widest))
    assert (lines.top_k[1], lines.logprobs[1], lines.seed[1]) == (MOST_LOGPROBS - 5, MOST_LOGPROBS - 5, 2**63 - 1)
    numbers = (lines.temperature, lines.top_p, lines.min_p, lines.repetition, lines.presence, lines.frequency)
    assert all(np.isfinite(row[1]) for row in numbers) and lines.top_p[1] > 0
