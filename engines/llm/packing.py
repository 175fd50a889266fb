"""A step's numbers in one buffer: one copy takes them to the device, where views of it are the model's inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.llm.batch import BatchPlan, Row
from engines.llm.errors import PlanInvalid
from engines.llm.sampler import uniforms
from engines.llm.sequence import MILLION, SamplingCode

ALIGNED = 16
_NUMPY = {torch.int64: np.int64, torch.int32: np.int32, torch.float64: np.float64, torch.float32: np.float32}


class Shape(NamedTuple):
    """How many tokens, sequences and sampled positions a step has, and how many of its sequences are sampled."""

    tokens: int
    rows: int
    sampled: int
    updated: int


@dataclass(slots=True)
class Fields:
    """Views of a step's buffer on the device. `ids` below zero are taken from the token pool's line of that number.

    `places` and `pages` say which page goes where in the flat page table; `last` and `owners` which sampled token
    goes to which line of the token pool. What is behind them belongs to the sampled positions.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    places: Tensor
    pages: Tensor
    rows: Tensor
    starts: Tensor
    lengths: Tensor
    keep: Tensor
    last: Tensor
    owners: Tensor
    uniform: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor


_LAYOUT: dict[str, tuple[torch.dtype, Callable[[Shape], int]]] = {
    "ids": (torch.int64, lambda shape: shape.tokens),
    "positions": (torch.int64, lambda shape: shape.tokens),
    "slots": (torch.int64, lambda shape: shape.tokens),
    "places": (torch.int64, lambda shape: shape.tokens),
    "pages": (torch.int32, lambda shape: shape.tokens),
    "rows": (torch.int64, lambda shape: shape.rows),
    "starts": (torch.int32, lambda shape: shape.rows + 1),
    "lengths": (torch.int32, lambda shape: shape.rows),
    "keep": (torch.int64, lambda shape: shape.sampled),
    "last": (torch.int64, lambda shape: shape.updated),
    "owners": (torch.int64, lambda shape: shape.updated),
    "uniform": (torch.float64, lambda shape: shape.sampled),
    "temperature": (torch.float32, lambda shape: shape.sampled),
    "top_p": (torch.float32, lambda shape: shape.sampled),
    "min_p": (torch.float32, lambda shape: shape.sampled),
    "top_k": (torch.int32, lambda shape: shape.sampled),
}


@lru_cache(maxsize=4096)
def _sections(shape: Shape) -> tuple[tuple[tuple[str, torch.dtype, int, int], ...], int]:
    """(name, kind, first byte, bytes) of each field, and the bytes of all."""
    found, at = [], 0
    for name, (kind, count) in _LAYOUT.items():
        size = count(shape) * kind.itemsize
        found.append((name, kind, at, size))
        at += -(-size // ALIGNED) * ALIGNED
    return tuple(found), at


def size_of(shape: Shape) -> int:
    """Bytes of a step of this shape."""
    return _sections(shape)[1]


def views(buffer: Tensor, shape: Shape) -> Fields:
    """The fields of a step that lies at the beginning of `buffer` (bytes, on any device)."""
    sections, _ = _sections(shape)
    return Fields(**{name: buffer[at : at + size].view(kind) for name, kind, at, size in sections})


class Lines:
    """What the runner knows of each line of its page table: how its sequence is sampled, as it was told last."""

    def __init__(self, lines: int, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.known = np.zeros(lines, bool)
        self.penalised = np.zeros(lines, bool)
        self.seed = np.zeros(lines, np.uint64)
        self.temperature = np.zeros(lines, np.float32)
        self.top_p = np.ones(lines, np.float32)
        self.min_p = np.zeros(lines, np.float32)
        self.top_k = np.full(lines, vocabulary, np.int32)
        self.logprobs = np.full(lines, -1, np.int32)
        self.repetition = np.ones(lines, np.float32)
        self.presence = np.zeros(lines, np.float32)
        self.frequency = np.zeros(lines, np.float32)

    def tell(self, line: int, code: SamplingCode) -> None:
        """A new sequence on this line. A limit beyond the vocabulary is the vocabulary: one caller's number must not
        fail the step of the others.
        """
        self.known[line], self.penalised[line] = True, code.penalised
        self.seed[line], self.logprobs[line] = code.seed, min(code.logprobs, self.vocabulary)
        self.temperature[line] = code.temperature / MILLION
        self.top_k[line] = min(code.top_k or self.vocabulary, self.vocabulary)
        self.top_p[line], self.min_p[line] = code.top_p / MILLION, code.min_p / MILLION
        self.repetition[line] = code.repetition_penalty / MILLION
        self.presence[line], self.frequency[line] = code.presence_penalty / MILLION, code.frequency_penalty / MILLION


class Layout:
    """A plan as flat arrays, one entry a token, a sequence, or a sampled position."""

    def __init__(self, plan: BatchPlan, width: int) -> None:
        rows = plan.rows
        self.plan, self.width = plan, width
        self.counts = np.array([row.count for row in rows], np.int64)
        self.rows = np.array([row.row for row in rows], np.int64)
        self.begins = np.array([row.start for row in rows], np.int64)
        self.samples = np.array([row.sample for row in rows], np.int64)
        self.starts = np.concatenate(([0], self.counts.cumsum()))
        self.ids = np.array([token for row in rows for token in (row.tokens or (-row.row,))], np.int64)
        self.slots = np.array([slot for row in rows for slot in row.slots], np.int64)
        self.fresh = [row for row in rows if row.fresh]
        total, sampled = int(self.starts[-1]), int(self.samples.sum())
        self.shape = Shape(total, len(rows), sampled, int((self.samples > 0).sum()))

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return self.begins + self.counts

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        return np.arange(self.shape.tokens) + np.repeat(self.begins - self.starts[:-1], self.counts)

    @cached_property
    def keep(self) -> NDArray[np.int64]:
        """Tokens whose logits are sampled: the last `sample` of each row."""
        if self.shape.sampled == self.shape.tokens:
            return np.arange(self.shape.tokens)
        before = self.samples.cumsum() - self.samples
        return np.arange(self.shape.sampled) + np.repeat(self.starts[1:] - self.samples - before, self.samples)

    @cached_property
    def owners(self) -> NDArray[np.int64]:
        """The line of each sampled position."""
        return np.repeat(self.rows, self.samples)

    @property
    def plain(self) -> bool:
        """Each sequence has one token, and it is sampled: what a CUDA graph can replay."""
        return self.shape.tokens == self.shape.rows == self.shape.sampled

    @property
    def decodes(self) -> int:
        """Sequences at the beginning with exactly one token."""
        longer = np.flatnonzero(self.counts != 1)
        return int(longer[0]) if len(longer) else len(self.counts)

    def check(self, lines: Lines, slots: int) -> None:
        """Raises PlanInvalid, naming the row, for what the tables cannot hold."""
        for row in self.plan.rows:
            _check_row(row, slots, self.width)
        if (
            not self.rows.min() >= 1
            or self.rows.max() >= len(lines.known)
            or len(set(self.rows.tolist())) < len(self.rows)
        ):
            raise PlanInvalid(f"rows {self.rows.tolist()} are not different lines of 1 to {len(lines.known) - 1}")
        if self.slots.min() < 1 or self.slots.max() > slots:
            raise PlanInvalid(f"slots {self.slots.min()} to {self.slots.max()} are not all within 1 to {slots}")
        if self.ids.max() >= lines.vocabulary:
            raise PlanInvalid(f"token {self.ids.max()} is not among the vocabulary's {lines.vocabulary}")
        unknown = [row.row for row in self.plan.rows if not row.fresh and not lines.known[row.row]]
        if unknown:
            raise PlanInvalid(f"rows {unknown} go on, and never began")

    def pack(self, buffer: Tensor, lines: Lines, shape: Shape | None = None) -> Shape:
        """Write the step into `buffer` (bytes, on the CPU) as `shape`, with padding behind, and say its shape.

        Padding is a sequence of one token on line 0, whose page is page 0.
        """
        shape = shape or self.shape
        told = {name: part.numpy() for name, part in _named(views(buffer, shape))}
        owners, tokens = self.owners, self.shape.tokens
        for name, values in (
            ("ids", self.ids), ("positions", self.positions), ("slots", self.slots), ("pages", self.slots),
            ("places", np.repeat(self.rows, self.counts) * self.width + self.positions), ("rows", self.rows),
            ("keep", self.keep), ("last", self.samples.cumsum()[self.samples > 0] - 1),
            ("owners", self.rows[self.samples > 0]), ("temperature", lines.temperature[owners]),
            ("top_p", lines.top_p[owners]), ("min_p", lines.min_p[owners]), ("top_k", lines.top_k[owners]),
            ("uniform", uniforms(lines.seed[owners], (self.positions[self.keep] + 1).astype(np.uint64))),
        ):  # fmt: skip
            told[name][: len(values)] = values
            told[name][len(values) :] = 0
        told["starts"][: len(self.starts)] = self.starts
        told["lengths"][: len(self.rows)] = self.lengths
        if shape != self.shape:
            padding = shape.rows - self.shape.rows
            told["starts"][len(self.starts) :] = tokens + 1 + np.arange(padding)
            told["lengths"][len(self.rows) :] = 1
            told["keep"][tokens:] = told["last"][tokens:] = tokens + np.arange(padding)
        return shape


def _named(found: Fields) -> list[tuple[str, Tensor]]:
    return [(field.name, getattr(found, field.name)) for field in fields(found)]


def _check_row(row: Row, slots: int, width: int) -> None:
    if row.count != len(row.slots) or row.count < 1 or not 0 <= row.sample <= row.count:
        raise PlanInvalid(f"row {row.row} has {row.count} tokens, {len(row.slots)} slots and {row.sample} to sample")
    if len(row.tokens) != row.count and not (row.count == 1 and not row.tokens):
        raise PlanInvalid(f"row {row.row} has {len(row.tokens)} of its {row.count} tokens")
    if row.start < 0 or row.start + row.count > width:
        raise PlanInvalid(f"row {row.row} ends at position {row.start + row.count}, the table has {width}")
    if row.fresh and (len(row.prefix) != row.start or max(row.prefix, default=0) > slots):
        raise PlanInvalid(f"row {row.row} begins at {row.start} behind {len(row.prefix)} pages")
    if row.tokens and min(row.tokens) < 0:
        raise PlanInvalid(f"row {row.row} has the token {min(row.tokens)}")
