"""Runs plans: integer tables on the device, one copy in a step, the model's forward, sampling, one copy out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.layers.inputs import Inputs
from engines.llm.batch import BatchPlan
from engines.llm.errors import PlanInvalid
from engines.llm.graphs import DecodeGraphs, sizes_up_to
from engines.llm.packing import Fields, Layout, Lines, Shape, size_of, views
from engines.llm.sampler import Penalised, SamplingTensors, log_probabilities, sample
from engines.llm.sequence import SamplingCode

RING = 3  # steps under way at most, and one: a host buffer is written again when its step was collected

Probes = Mapping[int, Sequence[int]]
Logprob = tuple[float, tuple[tuple[int, float], ...]]


class Model(Protocol):
    """What the runner asks of a decoder."""

    @property
    def architecture(self) -> Any: ...

    def new_cache(self, slots: int) -> Any: ...

    def forward(self, inputs: Inputs, cache: Any) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """`slots` pages of the cache, the padding page 0 included; `max_running` sequences of up to `context` tokens."""

    slots: int
    max_running: int
    context: int
    device: str = "cpu"


@dataclass(slots=True)
class Forwarded:
    """A step whose logits [S, V] are on their way. `graph` is the size of the graph that was replayed, or 0."""

    layout: Layout
    fields: Fields
    logits: Tensor
    graph: int


class Pending:
    """A sampled step on its way to the host. The first question waits for the device."""

    def __init__(self, layout: Layout, parts: dict[str, Tensor], probes: Probes, ready: Any) -> None:
        self._layout, self._parts, self._probes, self._ready = layout, parts, probes, ready

    def _wait(self) -> None:
        if self._ready is not None:
            self._ready.synchronize()
            self._ready = None

    def tokens(self) -> list[tuple[int, ...]]:
        """For each row of the plan that is sampled, in order, the tokens at its sampled positions."""
        self._wait()
        flat, at, result = self._parts["tokens"].tolist(), 0, []
        for row in self._layout.plan.rows:
            if row.sample:
                result.append(tuple(flat[at : at + row.sample]))
                at += row.sample
        return result

    def logprobs(self, asked: Mapping[int, int]) -> dict[int, list[Logprob]]:
        """For each table row of `asked` (the number of alternatives), one entry for each sampled position."""
        self._wait()
        if "chosen" not in self._parts:
            return {}
        chosen, values, likeliest = (self._parts[name].tolist() for name in ("chosen", "values", "likeliest"))
        result: dict[int, list[Logprob]] = {}
        for place, line in enumerate(self._layout.owners.tolist()):
            if line in asked:
                top = tuple(zip(likeliest[place][: asked[line]], values[place][: asked[line]], strict=True))
                result.setdefault(line, []).append((chosen[place], top))
        return result

    def probed(self) -> dict[int, tuple[float, ...]]:
        """For each row with a probe, the log-probabilities of its tokens behind the row's last input."""
        self._wait()
        flat, at, result = self._parts["probed"].tolist() if self._probes else [], 0, {}
        for line, tokens in self._probes.items():
            result[line] = tuple(flat[at : at + len(tokens)])
            at += len(tokens)
        return result


class Runner:
    """One model, its page table and its key-value cache. Takes a plan a step and nothing else; one thread.

    A plan that the tables cannot hold raises PlanInvalid before anything is launched.
    """

    def __init__(self, model: Model, settings: RunnerSettings) -> None:
        self.model, self.settings = model, settings
        self.device = torch.device(settings.device)
        self.vocabulary = int(model.architecture.vocab)
        lines = settings.max_running + 1
        self.cache = model.new_cache(settings.slots)
        self.table = torch.zeros(lines, settings.context, dtype=torch.int32, device=self.device)
        self.pool = torch.zeros(lines, dtype=torch.int64, device=self.device)
        self.lines = Lines(lines, self.vocabulary)
        self.graphs: DecodeGraphs | None = None
        self._histories = Histories(lines, self.vocabulary, self.device)
        self._pinned = self.device.type == "cuda"
        self._ring = [torch.empty(0, dtype=torch.uint8) for _ in range(RING)]
        self._turn = 0

    def forward(self, plan: BatchPlan) -> Forwarded:
        """Launch a step up to its logits."""
        if not plan.rows:
            raise PlanInvalid(f"step {plan.step} has no rows")
        layout = Layout(plan, self.settings.context)
        layout.check(self.lines, self.settings.slots - 1)
        with torch.inference_mode():
            self._begin(layout)
            size = self.graphs.size(len(plan.rows)) if self.graphs is not None and layout.plain else 0
            if size and self.graphs is not None:
                shape = layout.pack(
                    self._host(Shape(size, size, size, size)), self.lines, Shape(size, size, size, size)
                )
                buffer = self.graphs.buffer(size)
                buffer[: size_of(shape)].copy_(self._ring[self._turn][: size_of(shape)], non_blocking=True)
                return Forwarded(layout, views(buffer, shape), self.graphs.forward(size), size)
            shape = layout.pack(self._host(layout.shape), self.lines)
            buffer = self._ring[self._turn][: size_of(shape)]
            if self._pinned:
                buffer = buffer.to(self.device, non_blocking=True)
            found = views(buffer, shape)
            longest = int(layout.lengths.max())
            self.table.view(-1)[found.places] = found.pages
            pages = self.table[:, :longest].index_select(0, found.rows)
            contexts = int(layout.lengths[layout.decodes :].sum())
            hidden = self._run(found, pages, layout.decodes, int(layout.counts.max()), contexts)
            return Forwarded(layout, found, self.model.logits(hidden), 0)

    def decode(self, found: Fields, pages: Tensor) -> Tensor:
        """Logits of a packed step of one token a sequence; what it launches never depends on the numbers in it.

        `pages` [B, W] is room for the page table of its sequences.
        """
        self.table.view(-1).index_copy_(0, found.places, found.pages)
        torch.index_select(self.table, 0, found.rows, out=pages)
        return self.model.logits(self._run(found, pages, len(found.rows), 1, 0))

    def _run(self, found: Fields, pages: Tensor, decodes: int, longest_query: int, contexts: int) -> Tensor:
        """The model's forward over a packed step: hidden states of `keep`."""
        ids = torch.where(found.ids < 0, self.pool[found.ids.neg().clamp_min_(0)], found.ids)
        inputs = Inputs(
            ids=ids, positions=found.positions, slots=found.slots, pages=pages, starts=found.starts,
            lengths=found.lengths, decodes=decodes, longest_query=longest_query, longest=pages.shape[1],
            keep=found.keep, contexts=contexts,
        )  # fmt: skip
        return self.model.forward(inputs, self.cache)

    def capture(self, most: int) -> None:
        """Capture graphs of steps of up to `most` sequences, where the device has them; else steps run without."""
        sizes = sizes_up_to(min(most, self.settings.max_running))
        if self.device.type == "cuda" and sizes:
            pages = torch.zeros(sizes[-1], self.settings.context, dtype=torch.int32, device=self.device)
            with torch.inference_mode():
                self.graphs = DecodeGraphs.attempt(sizes, self.decode, self.pick, pages, self.vocabulary)

    def sample(self, forwarded: Forwarded, masks: Tensor | None = None, probes: Probes | None = None) -> Pending:
        """Launch the picking of tokens, and the copy of what was picked.

        `masks` i32 [S, ceil(V/32)] on the host holds a row for each sampled position; `probes` says for table rows
        the token ids whose log-probabilities are wanted.
        """
        layout, count = forwarded.layout, forwarded.layout.shape.sampled
        with torch.inference_mode():
            if masks is not None:
                masks = masks.to(self.device, non_blocking=True)
            params = self.params(forwarded)
            logits = forwarded.logits[:count]
            if count == 0:
                tokens = torch.empty(0, dtype=torch.int64, device=self.device)
            else:
                replayed = self._replayed(forwarded, params, masks)
                tokens = (
                    replayed
                    if replayed is not None
                    else self.pick(logits, forwarded.fields, _cut(params, count), masks)
                )
            self._histories.add(layout, self.lines, tokens)
            return self._collect(layout, logits, tokens, probes or {})

    def _replayed(self, forwarded: Forwarded, params: SamplingTensors, masks: Tensor | None) -> Tensor | None:
        """Tokens by the graph of this sampling; None where there is none."""
        if not forwarded.graph or self.graphs is None or params.penalised is not None:
            return None
        tokens = self.graphs.sample(forwarded.graph, params, masks)
        return None if tokens is None else tokens[: forwarded.layout.shape.sampled]

    def pick(self, logits: Tensor, found: Fields, params: SamplingTensors, masks: Tensor | None) -> Tensor:
        """Sampled tokens, which go to the token pool as well."""
        tokens = sample(logits, params, masks)
        count = len(tokens)
        if len(found.keep) == len(found.last):
            self.pool.index_copy_(0, found.owners[:count], tokens)
        else:
            self.pool.index_copy_(0, found.owners, tokens[found.last])
        return tokens

    def params(self, forwarded: Forwarded) -> SamplingTensors:
        """How the step's rows are sampled; what its settings do not need is left out."""
        layout, found, lines = forwarded.layout, forwarded.fields, self.lines
        owners = layout.owners
        limited = (lines.top_k[owners] < self.vocabulary) | (lines.top_p[owners] < 1) | (lines.min_p[owners] > 0)
        warm = lines.temperature[owners] > 0
        penalised = self._histories.of(layout, lines) if lines.penalised[owners].any() else None
        return SamplingTensors(
            greedy=not warm.any(), filtered=bool((limited & warm).any()), temperature=found.temperature,
            top_p=found.top_p, min_p=found.min_p, top_k=found.top_k, uniform=found.uniform, penalised=penalised,
        )  # fmt: skip

    def lost(self, error: BaseException) -> bool:
        """Whether the device is of no use any more after this error. Too little memory is no such error."""
        if self.device.type != "cuda" or isinstance(error, torch.cuda.OutOfMemoryError | PlanInvalid):
            return False
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return True
        return False

    def _begin(self, layout: Layout) -> None:
        """Lines of new sequences: their settings, and the pages that were computed before."""
        for row in layout.fresh:
            self.lines.tell(row.row, SamplingCode(*row.settings))
        prefixed = [row for row in layout.fresh if row.prefix]
        if prefixed:
            pages = np.array([page for row in prefixed for page in row.prefix], np.int32)
            places = np.concatenate([np.arange(row.start) + row.row * self.settings.context for row in prefixed])
            self.table.view(-1)[self._sent(places)] = self._sent(pages)
        self._histories.begin(layout, self.lines)

    def _sent(self, array: NDArray[Any]) -> Tensor:
        """On the device, without waiting for what it does now."""
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self.device, non_blocking=True) if self._pinned else tensor

    def _host(self, shape: Shape) -> Tensor:
        """The next host buffer, large enough."""
        self._turn = (self._turn + 1) % RING
        size = size_of(shape)
        if len(self._ring[self._turn]) < size:
            self._ring[self._turn] = torch.empty(2 * size, dtype=torch.uint8, pin_memory=self._pinned)
        return self._ring[self._turn]

    def _collect(self, layout: Layout, logits: Tensor, tokens: Tensor, probes: Probes) -> Pending:
        parts = {"tokens": tokens}
        top = int(self.lines.logprobs[layout.owners].max(initial=-1))
        if top >= 0:
            parts |= zip(("chosen", "values", "likeliest"), log_probabilities(logits, tokens, top), strict=True)
        if probes:
            parts["probed"] = self._probed(layout, logits, probes)
        if not self._pinned:
            return Pending(layout, parts, probes, None)
        host = {name: torch.empty_like(part, device="cpu", pin_memory=True) for name, part in parts.items()}
        for name, part in parts.items():
            host[name].copy_(part, non_blocking=True)
        ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        return Pending(layout, host, probes, ready)

    def _probed(self, layout: Layout, logits: Tensor, probes: Probes) -> Tensor:
        """Log-probabilities of all probed tokens, one after the other."""
        last = {line: place for place, line in enumerate(layout.owners.tolist())}
        places = torch.tensor([last[line] for line in probes], device=self.device)
        shares = torch.log_softmax(logits[places], dim=-1)
        rows = [place for place, tokens in enumerate(probes.values()) for _ in tokens]
        flat = [token for tokens in probes.values() for token in tokens]
        return shares[torch.tensor(rows, device=self.device), torch.tensor(flat, device=self.device)]


class Histories:
    """What penalised sequences hold: counts of reply tokens and which tokens their prompts hold, by table row.

    Made when the first penalised sequence arrives: three bytes for each line and token of the vocabulary.
    """

    def __init__(self, lines: int, vocabulary: int, device: torch.device) -> None:
        self._size, self._device = (lines, vocabulary), device
        self._counts = self._prompts = torch.empty(0)
        self._counted = np.zeros(lines, np.int64)
        """Tokens of each line, from its prompt's first, that are in the counts."""

    def begin(self, layout: Layout, lines: Lines) -> None:
        """Count what new sequences hold, and what others were given that was not sampled."""
        for row in layout.plan.rows:
            if not lines.penalised[row.row]:
                continue
            if row.fresh:
                self._fill(row.row, row.history, row.prompt)
            elif row.tokens:
                self._extend(row.row, row.start, row.tokens)

    def _fill(self, line: int, history: Sequence[int], prompt: int) -> None:
        if not len(self._counts):
            self._counts = torch.zeros(self._size, dtype=torch.int16, device=self._device)
            self._prompts = torch.zeros(self._size, dtype=torch.bool, device=self._device)
        counts = np.bincount(np.array(history[prompt:], np.int64), minlength=self._size[1]).astype(np.int16)
        held = np.bincount(np.array(history[:prompt], np.int64), minlength=self._size[1]) > 0
        self._counts[line] = torch.from_numpy(counts).to(self._device)
        self._prompts[line] = torch.from_numpy(held).to(self._device)
        self._counted[line] = len(history)

    def _extend(self, line: int, start: int, tokens: Sequence[int]) -> None:
        for token in tokens[max(int(self._counted[line]) - start, 0) :]:
            self._counts[line, token] += 1
        self._counted[line] = max(int(self._counted[line]), start + len(tokens))

    def of(self, layout: Layout, lines: Lines) -> Penalised:
        owners = layout.owners
        rows = np.flatnonzero(lines.penalised[owners])
        if len(set(owners[rows].tolist())) < len(rows):
            raise PlanInvalid("a penalised sequence is sampled at two positions in one step")
        held = torch.from_numpy(owners[rows]).to(self._device)
        repetition, presence, frequency = (
            torch.from_numpy(how[owners[rows]]).to(self._device)
            for how in (lines.repetition, lines.presence, lines.frequency)
        )
        return Penalised(
            torch.from_numpy(rows).to(self._device), repetition, presence, frequency,
            self._counts.index_select(0, held), self._prompts.index_select(0, held),
        )  # fmt: skip

    def add(self, layout: Layout, lines: Lines, tokens: Tensor) -> None:
        """Count what was sampled."""
        owners = layout.owners
        rows = np.flatnonzero(lines.penalised[owners])
        if not len(rows):
            return
        held, picked = torch.from_numpy(owners[rows]).to(self._device), tokens[torch.from_numpy(rows).to(self._device)]
        self._counts[held, picked] = self._counts[held, picked] + 1
        self._counted[owners[rows]] = layout.positions[layout.keep][rows] + 2


def _cut(params: SamplingTensors, count: int) -> SamplingTensors:
    """Without the padding of a graph."""
    if len(params.uniform) == count:
        return params
    return SamplingTensors(
        params.greedy, params.filtered, params.temperature[:count], params.top_p[:count], params.min_p[:count],
        params.top_k[:count], params.uniform[:count], params.penalised,
    )  # fmt: skip
