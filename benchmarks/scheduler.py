"""CPU time that the scheduler and its radix cache take of a step: schedule() and commit(), all rows decoding.

Each request has a prompt of 500 tokens that nobody shares; every reply ends after a while and its request is followed
by another with the same prompt (a prefix hit, its tail to be computed), as under steady load. Sampling costs nothing.
And what a prompt of 2,000 tokens costs the radix cache, from the match to the release, in a cache that is full.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

from benchmarks.report import Row, arguments, compare, report
from engines.llm.batch import BatchPlan
from engines.llm.kvcache import RadixCache
from engines.llm.scheduler import Scheduler, SchedulerSettings
from engines.llm.sequence import End, Request

PROMPT, LEAST, MOST = 500, 100, 400
GOAL_US, AT = 200.0, 64


class Load:
    """`running` requests at any time, each followed by another when it ends."""

    def __init__(self, running: int, overlap: bool, seed: int) -> None:
        self.chance = random.Random(seed)
        self.running, self.depth = running, 1 + overlap
        slots = 1 + running * (PROMPT + MOST) * 2
        self.scheduler = Scheduler(
            SchedulerSettings(slots, running, max(2048, 2 * running), 1024, running, 4096, overlap)
        )
        self.prompts = [tuple(self.chance.randrange(50_000) for _ in range(PROMPT)) for _ in range(running)]
        self.flying: list[BatchPlan] = []
        for number in range(running):
            self.add(number)

    def add(self, id: int) -> None:
        most = self.chance.randint(LEAST, MOST)
        self.scheduler.add(Request(id, self.prompts[id % self.running], most, frozenset((1,))))

    def step(self) -> tuple[float, bool]:
        """CPU seconds of one step, and whether every row was a plain decode."""
        started = time.thread_time()
        plan = self.scheduler.schedule()
        spent = time.thread_time() - started
        if plan is not None:
            self.flying.append(plan)
        due = self.flying[0]
        sampled = [(7,) * row.sample for row in due.rows if row.sample]
        if plan is None or len(self.flying) >= self.depth:
            started = time.thread_time()
            events = self.scheduler.commit(self.flying.pop(0), sampled)
            spent += time.thread_time() - started
            for event in events:
                if isinstance(event, End):
                    self.add(event.id + self.running)
        return spent, plan is not None and len(plan.rows) == plan.decodes == self.running


def measure(running: int, overlap: bool, steps: int, seed: int) -> list[Row]:
    load = Load(running, overlap, seed)
    for _ in range(MOST):
        load.step()
    gc.collect()
    samples = [load.step() for _ in range(steps)]
    every = [spent for spent, _ in samples]
    plain = [spent for spent, decodes in samples if decodes] or every
    goal = GOAL_US if running <= AT else None
    name = f"{running} running, overlap {'on' if overlap else 'off'}"
    return [
        compare(f"{name}: decodes, us", plain, goal=goal, scale=1e6),
        compare(f"{name}: every step, admissions and ends too, us", every, goal=goal, scale=1e6),
    ]


def prompts(count: int, seed: int) -> list[Row]:
    """A prompt that is new (another is evicted for it), and one that is known but for its end."""
    chance, size = random.Random(seed), 2_000
    cache = RadixCache(1 + 20 * size)
    new: list[float] = []
    known: list[float] = []
    for _ in range(20 + count):
        tokens = [chance.randrange(50_000) for _ in range(size)]
        for spent in (new, known):
            started = time.thread_time()
            lease = cache.open("", tokens, size - 1)
            cache.grow(lease, size - len(lease.pages))
            cache.share(lease, tokens, size)
            cache.release(lease, tokens, size)
            spent.append(time.thread_time() - started)
    return [
        compare("a new prompt of 2,000 tokens in a full cache, us", new[20:], scale=1e6),
        compare("a known prompt of 2,000 tokens, us", known[20:], scale=1e6),
    ]


def main() -> None:
    options = arguments("CPU time of the scheduler a step")
    steps = 200 if options.quick else 5_000
    rows = [
        row
        for running in (1, 8, 64, 256)
        for overlap in (False, True)
        for row in measure(running, overlap, steps, options.seed)
    ]
    rows += prompts(steps, options.seed)
    report(rows, options.json, f"Scheduler and radix cache, a step: {steps:,} steps each")


if __name__ == "__main__":
    main()
