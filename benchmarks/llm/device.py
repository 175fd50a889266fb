"""The engine on one GPU, random weights: decoding, prefill, many requests at once, and what batching changes."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from benchmarks.llm.configs import CONFIGS
from engines.llm.assembly import put_together
from engines.llm.config import EngineSettings
from engines.llm.core import Core
from engines.llm.messages import Report, Submit
from engines.llm.models import architecture_of, build
from engines.llm.sequence import End, Request
from engines.weights.inventory import inventory
from engines.weights.random import random_tensors

READ = 4.56e12  # bytes a second, measured on an H200
BATCHES, PROMPT, REPLY = (1, 8, 32, 128), 128, 256
PROMPTS = (2048, 8192)


@dataclass(frozen=True, slots=True)
class Measured:
    """`ms` of a step or a prompt, `rate` in tokens a second, `share` of what reading the weights once would allow."""

    name: str
    ms: float
    rate: float
    share: float | None = None


class Bench:
    """One model, its step loop turned by hand, and when each step's tokens came."""

    def __init__(self, config: str, device: str) -> None:
        self.architecture = architecture_of(CONFIGS[config])
        cuda = device.startswith("cuda")
        free = torch.cuda.mem_get_info()[0] if cuda else 0
        started = time.perf_counter()
        tensors = random_tensors(self.architecture, seed=0, device=device)
        decoder = build(self.architecture, tensors, precision="fp8", device=device)
        settings = EngineSettings(
            device=device, precision="fp8", max_running=128, token_budget=8192, prefill_chunk=8192,
            cuda_graph_max_bs=128, cache_tokens=0 if cuda else 40_000, max_waiting=1024, overlap=cuda,
        ).on("cuda" if cuda else "cpu", "fp8")  # fmt: skip
        built = time.perf_counter()
        self.core, self.facts = put_together(decoder, settings, self._hear, free=free)
        print(
            f"{config}: weights made in {built - started:.1f} s, put together in {time.perf_counter() - built:.1f} s; "
            f"{self.facts.slots:,} pages, graphs: {self.facts.graphs}"
        )
        self.graphs = self.facts.graphs
        self._chance, self._ids = random.Random(0), 0
        self.replies: dict[int, list[int]] = {}
        self.ends: dict[int, End] = {}
        self.times: list[tuple[float, int]] = []

    def _hear(self, report: Report) -> None:
        if report.tokens:
            self.times.append((time.perf_counter(), len(report.tokens)))
        for token in report.tokens:
            self.replies[token.id].append(token.token)
        for end in report.ends:
            self.ends[end.id] = end

    def prompt(self, length: int) -> tuple[int, ...]:
        return tuple(self._chance.randrange(2, self.architecture.vocab) for _ in range(length))

    def submit(self, prompt: Sequence[int], most: int, namespace: str = "") -> int:
        self._ids += 1
        self.replies[self._ids] = []
        self.core.put(Submit(Request(self._ids, tuple(prompt), most, namespace=namespace)))
        return self._ids

    def run(self, ids: Sequence[int]) -> float:
        """Turn until all have ended; the seconds."""
        started = time.perf_counter()
        while not all(id in self.ends for id in ids):
            self.core.turn()
        failed = [self.ends[id].message for id in ids if self.ends[id].reason == "error"]
        if failed:
            raise RuntimeError(failed[0])
        return time.perf_counter() - started

    def decode(self, batch: int, reply: int) -> Measured:
        """Steps while all decode: the median distance between two."""
        ids = [self.submit(self.prompt(PROMPT), reply) for _ in range(batch)]
        self.times.clear()
        self.run(ids)
        full = [at for at, count in self.times if count == batch]
        steps = [later - earlier for earlier, later in pairwise(full)][reply // 8 :]
        ms = statistics.median(steps) * 1e3
        floor = step_bytes(self.architecture, batch, PROMPT + reply // 2) / READ * 1e3
        return Measured(f"decode, batch {batch}, {PROMPT} in {reply} out", ms, batch / ms * 1e3, floor / ms)

    def prefill(self, length: int, times: int) -> Measured:
        found = [self.run([self.submit(self.prompt(length), 1)]) for _ in range(times + 1)][1:]
        ms = statistics.median(found) * 1e3
        return Measured(f"prefill of {length}", ms, length / ms * 1e3)

    def together(self, count: int, reply: int) -> Measured:
        """`count` requests of mixed lengths at once."""
        ids = [self.submit(self.prompt(self._chance.randrange(20, 300)), reply) for _ in range(count)]
        seconds = self.run(ids)
        return Measured(f"{count} requests at once, {reply} out", seconds * 1e3, count * reply / seconds)

    def equality(self, longest: int, count: int, reply: int) -> str:
        """Replies of `count` requests at once against each alone, with nothing of a prompt known beforehand."""
        prompts = [self.prompt(self._chance.randrange(2, longest + 1)) for _ in range(count)]
        ids = [self.submit(prompt, reply) for prompt in prompts]
        self.run(ids)
        whole = first = tokens = 0
        for prompt, id in zip(prompts, ids, strict=True):
            alone = self.submit(prompt, reply, namespace=f"alone {id}")
            self.run([alone])
            pairs = enumerate(zip(self.replies[id], self.replies[alone], strict=True))
            same = next((at for at, (a, b) in pairs if a != b), reply)
            whole, first, tokens = whole + (same == reply), first + (same > 0), tokens + same
        return (
            f"{count} at once against each alone, prompts of up to {longest}: equal are {first / count:.0%} of first "
            f"tokens, {tokens / count / reply:.0%} of tokens up to the first other one, {whole / count:.0%} of replies"
        )


def step_bytes(architecture: object, batch: int, length: int) -> float:
    """Bytes that a decode step cannot do without: weights once, of the experts those that are hit on average, and the
    cache of each sequence; of the embedding only the rows of the batch."""
    routed = others = 0
    for spec in inventory(architecture):  # type: ignore[arg-type]
        if ".mlp.experts." in spec.name:
            routed += spec.bytes
        elif spec.part != "embedding":
            others += spec.bytes
    experts = getattr(architecture, "experts", None)
    hit = 1.0 if experts is None else 1 - (1 - experts.active / experts.count) ** batch
    return others + routed * hit + batch * length * float(getattr(architecture, "kv_bytes_per_token", 0))


def measure(config: str, device: str, quick: bool) -> list[Measured]:
    bench = Bench(config, device)
    rows: list[Measured] = []
    reply = 32 if quick else REPLY
    bench.decode(2, 8)  # what is compiled at first use is
    for batch in BATCHES[:2] if quick else BATCHES:
        rows.append(bench.decode(batch, reply))
        print(shown(rows[-1]), flush=True)
    for length in PROMPTS[:1] if quick else PROMPTS:
        rows.append(bench.prefill(length - 8, 1 if quick else 5))
        print(shown(rows[-1]), flush=True)
    rows.append(bench.together(8 if quick else 64, 16 if quick else 64))
    print(shown(rows[-1]))
    # Random weights make near-tied logits and routers, and FP8 makes of the smallest difference one of some percent:
    # replies can only be equal where every kernel gives a row the same numbers whatever else is in the step.
    for longest in (12, 300):
        print(bench.equality(longest, 8, 16 if quick else 64))
    if bench.graphs:
        eager(bench.core)
        rows.append(bench.decode(1, 32))
        print(f"without graphs: {shown(rows[-1])}")
    return rows


def eager(core: Core) -> None:
    """Steps without graphs from now on."""
    core._runner.graphs = None


def shown(row: Measured) -> str:
    share = "" if row.share is None else f"{row.share:7.1%} of the roofline"
    return f"{row.name:<40}{row.ms:10.3f} ms{row.rate:12,.0f} tokens/s{share}"
