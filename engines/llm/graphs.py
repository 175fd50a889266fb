"""CUDA graphs of steps in which each sequence has one token: one launch instead of some hundred."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from engines.llm.packing import Fields, Shape, size_of, views
from engines.llm.sampler import SamplingTensors

log = logging.getLogger(__name__)

Forward = Callable[[Fields, Tensor], Tensor]
"""Logits of a packed step, with room for its page table."""
Pick = Callable[[Tensor, Fields, SamplingTensors, Tensor | None], Tensor]


def sizes_up_to(most: int) -> list[int]:
    """Numbers of sequences to capture: 1, 2, 4, ... and `most` itself."""
    powers = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    return powers if not most or powers[-1] == most else [*powers, most]


class DecodeGraphs:
    """Forward and sampling of decode steps, captured apart: masks are filled while the forward runs.

    The sampling of one size is captured six times: greedy, drawn, drawn from what top_k, top_p and min_p leave, each
    with a mask and without. All share one pool of memory, and one buffer of inputs: a step reads it before the next
    one is written, since both are on one stream.
    """

    def __init__(self, sizes: Sequence[int], forward: Forward, pick: Pick, pages: Tensor, vocabulary: int) -> None:
        self._sizes = sorted(sizes)
        self._pages = pages
        most, device = self._sizes[-1], pages.device
        self._buffer = torch.zeros(size_of(_square(most)), dtype=torch.uint8, device=device)
        self._masks = torch.full((most, -(-vocabulary // 32)), -1, dtype=torch.int32, device=device)
        self._forwards: dict[int, tuple[Any, Tensor]] = {}
        self._samples: dict[tuple[int, bool, bool, bool], tuple[Any, Tensor]] = {}
        self._pool: Any = None
        for size in reversed(self._sizes):  # the largest first: the smaller ones fit into its memory
            self._capture(size, forward, pick)

    @classmethod
    def attempt(cls, sizes: Sequence[int], forward: Forward, pick: Pick, pages: Tensor, vocabulary: int) -> Any:
        """The graphs, or None where they cannot be captured: steps then run without, and the log says why."""
        try:
            return cls(sizes, forward, pick, pages, vocabulary)
        except (RuntimeError, ValueError) as error:
            log.warning("CUDA graphs could not be captured, steps run without them: %s", error)
            return None

    def size(self, rows: int) -> int:
        return next((size for size in self._sizes if size >= rows), 0)

    def buffer(self, size: int) -> Tensor:
        return self._buffer

    def forward(self, size: int) -> Tensor:
        """Logits [size, V], until the next step's forward."""
        graph, logits = self._forwards[size]
        graph.replay()
        return logits

    def sample(self, size: int, params: SamplingTensors, masks: Tensor | None) -> Tensor | None:
        """Tokens [size], until the next step's sampling; None where this kind of sampling could not be captured."""
        graph, tokens = self._samples.get((size, params.greedy, params.filtered, masks is not None), (None, None))
        if graph is None:
            return None
        if masks is not None:
            self._masks[: len(masks)].copy_(masks)
        graph.replay()
        return tokens

    def _capture(self, size: int, forward: Forward, pick: Pick) -> None:
        fields = views(self._buffer, _square(size))
        self._pretend(fields)
        pages = self._pages[:size]
        self._forwards[size] = self._captured(lambda: forward(fields, pages))
        logits = self._forwards[size][1]
        for greedy, filtered in ((True, False), (False, False), (False, True)):
            params = SamplingTensors(
                greedy, filtered, fields.temperature, fields.top_p, fields.min_p, fields.top_k, fields.uniform
            )
            for masked in (False, True):
                masks = self._masks[:size] if masked else None
                try:
                    captured = self._captured(lambda p=params, m=masks: pick(logits, fields, p, m))  # type: ignore[misc]
                except RuntimeError as error:
                    log.warning("sampling of %d sequences runs without its CUDA graph: %s", size, error)
                    continue
                self._samples[size, greedy, filtered, masked] = captured

    def _captured(self, run: Callable[[], Tensor]) -> tuple[Any, Tensor]:
        """Run it twice (kernels are compiled, libraries make their handles), then capture it."""
        stream = torch.cuda.Stream(self._buffer.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
            run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = run()
        self._pool = self._pool or graph.pool()
        return graph, result

    def _pretend(self, fields: Fields) -> None:
        """A step of padding: each sequence has one token on line 0, whose page is page 0."""
        self._buffer.zero_()
        fields.starts.copy_(torch.arange(len(fields.starts)))
        fields.lengths.fill_(1)
        fields.keep.copy_(torch.arange(len(fields.keep)))
        fields.last.copy_(torch.arange(len(fields.last)))


def _square(size: int) -> Shape:
    return Shape(size, size, size, size)
