"""A device that does with a plan what a GPU would, with tokens for keys and values, and a loop that drives it.

The model is a pure function of the whole text that the page table names: a page that is lost, freed too early or
written twice changes what it says, or is noticed as it is read.
"""

from __future__ import annotations

import random
import zlib
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from engines.llm.batch import BatchPlan
from engines.llm.scheduler import Scheduler, SchedulerSettings
from engines.llm.sequence import End, Event, Request, SamplingCode, Token

STOP = 0
VOCABULARY = 12


def model(tokens: Sequence[int]) -> int:
    """The next token. Mostly what its last token says, so that guesses are sometimes right; all others count too."""
    mark = zlib.crc32(array("q", tokens).tobytes())
    if mark % 23 == 0:
        return STOP
    return 1 + (tokens[-1] * 7 + (mark % 5 == 0)) % (VOCABULARY - 1)


def alone(request: Request) -> tuple[list[int], str]:
    """What the request gives when nothing else runs: its tokens and how it ends."""
    tokens = list(request.tokens)
    for _ in range(request.max_tokens):
        tokens.append(model(tokens))
        if tokens[-1] in request.ends:
            return tokens[len(request.tokens) :], "stop"
    return tokens[len(request.tokens) :], "length"


class Device:
    """Page tables by row, a token and its position by slot, a pool with each row's last token."""

    def __init__(self, slots: int) -> None:
        self.memory: list[tuple[int, int] | None] = [None] * slots
        self.tables: dict[int, list[int]] = {}
        self.pool: dict[int, int] = {}
        self.histories: dict[int, list[int]] = {}

    def run(self, data: bytes) -> list[tuple[int, ...]]:
        plan = BatchPlan.decode(data)
        written = [slot for row in plan.rows for slot in row.slots]
        assert len(written) == len(set(written)), "two inputs of a step go to one slot"
        assert len({row.row for row in plan.rows}) == len(plan.rows)
        for row in plan.rows:
            if row.fresh:
                self.tables[row.row] = list(row.prefix)
                self.histories.pop(row.row, None)
                assert len(row.settings) == len(SamplingCode())
                if SamplingCode(*row.settings).penalised:
                    self.histories[row.row] = list(row.history)
            table = self.tables[row.row]
            del table[row.start :]
            assert len(table) == row.start, "a row begins where the table does not end"
            table += row.slots
            for at, token in enumerate(row.tokens or (self.pool[row.row],)):
                self.memory[row.slots[at]] = (token, row.start + at)
        return [self._sample(row.row, row.start + row.count, row.sample) for row in plan.rows if row.sample]

    def _sample(self, row: int, stop: int, sample: int) -> tuple[int, ...]:
        held = [self.memory[slot] for slot in self.tables[row][:stop]]
        assert all(one is not None and one[1] == at for at, one in enumerate(held)), "a page holds another position"
        text = [one[0] for one in held if one is not None]
        tokens = tuple(model(text[: stop - sample + 1 + at]) for at in range(sample))
        self.pool[row] = tokens[-1]
        if row in self.histories:
            assert self.histories[row] == text, "the penalties' history is not the text"
            self.histories[row].append(tokens[-1])
        return tokens


@dataclass
class Record:
    """What came back of a request, and in which step its first token and its end."""

    request: Request
    added: int
    tokens: list[int] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    first: int = -1
    done: int = -1


class Loop:
    """schedule, run, commit, as the core does; every event is checked as it comes."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.scheduler = Scheduler(settings)
        self.device = Device(settings.slots)
        self.overlap = settings.overlap
        self.flying: deque[tuple[BatchPlan, list[tuple[int, ...]]]] = deque()
        self.records: dict[int, Record] = {}
        self.steps = 0
        self.plans: list[BatchPlan] = []

    def add(self, request: Request) -> None:
        self.scheduler.add(request)
        self.records[request.id] = Record(request, self.steps)

    def abort(self, id: int) -> None:
        self.take(self.scheduler.abort(id))
        self.check()

    def extend(self, id: int, tokens: Sequence[int]) -> None:
        self.take(self.scheduler.extend(id, tokens))

    def plan(self) -> BatchPlan | None:
        plan = self.scheduler.schedule()
        if plan is not None:
            settings = self.scheduler.settings
            assert plan.tokens <= settings.token_budget
            assert all(row.count <= max(settings.prefill_chunk, 1 + settings.guesses) for row in plan.rows)
            self.steps += 1
            self.plans.append(plan)
            self.flying.append((plan, self.device.run(plan.encode())))
        return plan

    def commit(self) -> None:
        plan, sampled = self.flying.popleft()
        self.take(self.scheduler.commit(plan, sampled))

    def fail(self) -> None:
        """The device breaks: what is in flight is lost, and so is what it had written."""
        while self.flying:
            self.take(self.scheduler.fail(self.flying.popleft()[0], "out of memory"))
            self.check()

    def turn(self) -> None:
        plan = self.plan()
        assert plan is not None or self.flying or self.scheduler.idle, "work waits, and no step is made"
        if self.flying and (plan is None or len(self.flying) > self.overlap):
            self.commit()

    def finish(self, turns: int = 20_000) -> None:
        """Until nothing is under way; then no page is lost."""
        while not self.scheduler.idle:
            turns -= 1
            assert turns, "it does not come to an end"
            self.turn()
        self.check()
        stats = self.scheduler.stats()
        assert (stats.running, stats.waiting, stats.held) == (0, 0, 0)

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            record = self.records[event.id]
            assert not record.ends, "an event after the end"
            if isinstance(event, Token):
                assert event.index == len(record.tokens)
                record.first = self.steps if record.first < 0 else record.first
                record.tokens.append(event.token)
            else:
                record.ends.append(event)
                record.done = self.steps
                assert event.completion == len(record.tokens) and event.prompt == len(record.request.tokens)

    def check(self) -> None:
        """All invariants, and: what a plan in flight writes to is neither free nor anybody else's."""
        self.scheduler.check()
        cache = self.scheduler._residents.cache
        writes = {slot for plan, _ in self.flying for row in plan.rows for slot in row.slots}
        assert not writes & set(cache._pages.free), "the device may still write to a free page"

    def compare(self, aborted: Sequence[int] = ()) -> None:
        """Each request had exactly one End and gave what it gives alone; an aborted one, a beginning of that."""
        for id, record in self.records.items():
            tokens, reason = alone(record.request)
            (end,) = record.ends
            if end.reason in ("abort", "error"):
                assert id in aborted if end.reason == "abort" else end.message
                assert record.tokens == tokens[: len(record.tokens)]
            else:
                assert (record.tokens, end.reason) == (tokens, reason), f"request {id}"


def settings(**changes: int) -> SchedulerSettings:
    """Small ones, so that everything happens soon."""
    usual = {"slots": 400, "max_running": 8, "token_budget": 32, "prefill_chunk": 16, "max_waiting": 500, "headroom": 4}
    return SchedulerSettings(**{"context": 200, **usual, **changes})  # type: ignore[arg-type]


def requests(count: int, seed: int, context: int) -> list[Request]:
    """Random ones: shared beginnings, every kind of request, ids from 0."""
    chance = random.Random(seed)
    beginnings = [[chance.randrange(1, VOCABULARY) for _ in range(chance.randint(5, 40))] for _ in range(5)]
    made: list[Request] = []
    for id in range(count):
        beginning = chance.choice(beginnings)[: chance.randint(0, 40)]
        tokens = beginning + [chance.randrange(1, VOCABULARY) for _ in range(chance.randint(1, 20))]
        leader = None
        if made and chance.random() < 0.2:  # another reply to the same prompt
            leader = chance.randrange(max(0, id - 10), id)
            tokens = list(made[leader].tokens)
        penalised = SamplingCode(presence_penalty=1) if chance.random() < 0.2 else SamplingCode()
        made.append(
            Request(
                id,
                tuple(tokens),
                max_tokens=min(chance.choice((1, 2, 5, 20, 40)), context - len(tokens)),
                ends=frozenset([STOP]) if chance.random() < 0.8 else frozenset(),
                sampling=penalised,
                tenant=chance.choice(("", "one", "two")),
                namespace="" if leader is None else made[leader].namespace,
                batch=chance.random() < 0.3,
                leader=leader,
                constrained=chance.random() < 0.2,
            )
        )
    return made
