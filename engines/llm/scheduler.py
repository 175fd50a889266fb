"""Which sequence computes what in the next step. Pure: no clock, no device, integers in and out.

One step is `plan = schedule()`, the device's work, `commit(plan, sampled)`. With overlap the next plan may be made
while one is uncommitted. Decodes come first, then prompts in chunks, all under one token budget. When pages run out
the least deserving sequence (batch before interactive, latest first) is preempted: its computed tokens go to the
radix tree, and it waits to be computed again from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Many
from dataclasses import dataclass, fields
from typing import NamedTuple

from engines.llm.batch import BatchPlan, Row
from engines.llm.errors import Refused, SettingInvalid
from engines.llm.residents import Residents
from engines.llm.sequence import End, Event, Reason, Request, Sequence, Token
from engines.llm.speculative import Lookup
from engines.llm.waiting import Waiting


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`slots` of the cache (padding slot 0 included), `context` in positions, budget and chunk in tokens a step.

    `max_waiting` bounds the waiting requests of one tenant, so that a flood does not fill the others' queue,
    `max_waiting_all` those of all, since a caller may go by many names. `guesses` is how many tokens are guessed for a
    greedy sequence a step (never with overlap). `headroom` pages are left to each running sequence when another is
    admitted: more of them, fewer preemptions and fewer sequences at once.
    """

    slots: int
    max_running: int
    token_budget: int
    prefill_chunk: int
    max_waiting: int
    context: int
    overlap: bool = False
    guesses: int = 0
    headroom: int = 32
    max_waiting_all: int = 1024

    def __post_init__(self) -> None:
        for one in fields(self):
            least = {"slots": 2, "overlap": 0, "guesses": 0, "headroom": 0}.get(one.name, 1)
            if getattr(self, one.name) < least:
                found = getattr(self, one.name)
                raise SettingInvalid(f"{one.name} is {found!r}", mend=f"write a whole number of at least {least}")
        if self.token_budget < self.max_running:
            raise SettingInvalid(
                f"token_budget is {self.token_budget} and max_running {self.max_running}",
                mend="allow each running sequence a token a step: token_budget of at least max_running",
            )


class Stats(NamedTuple):
    """Requests and pages now; tokens and preemptions since the start. `held` pages belong to running requests alone,
    `cached` ones lie in the radix tree. `prompt` counts admitted prompts, `hit` what of them was found computed."""

    running: int
    waiting: int
    free: int
    cached: int
    held: int
    prompt: int
    hit: int
    output: int
    preemptions: int


class _Flight(NamedTuple):
    plan: BatchPlan
    sequences: list[Sequence]


class _Draft:
    """The rows of the step that is being made: the plain decodes come first."""

    __slots__ = ("decoding", "others", "plain", "rest")

    def __init__(self) -> None:
        self.plain: list[Row] = []
        self.others: list[Row] = []
        self.decoding: list[Sequence] = []
        self.rest: list[Sequence] = []


class Scheduler:
    """The requests under way, their pages and their order. Not thread-safe."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self._waiting = Waiting(settings.max_waiting, settings.max_waiting_all)
        self._residents = Residents(settings.slots, settings.max_running, settings.headroom, self._waiting)
        self._sequences: dict[int, Sequence] = {}
        self._flights: deque[_Flight] = deque()
        self._draft = _Draft()
        self._step = self._arrivals = 0
        self._prompt = self._hit = self._output = 0

    @property
    def idle(self) -> bool:
        """True when no request is under way and no plan uncommitted."""
        return not self._sequences and not self._flights

    def stats(self) -> Stats:
        cache = self._residents.cache
        return Stats(
            len(self._residents.running), self._waiting.count, cache.free, cache.cached, cache.held,
            self._prompt, self._hit, self._output, self._residents.preemptions,
        )  # fmt: skip

    def owner(self, row: int) -> int:
        """The id of the request that has this row of an uncommitted plan, be it ended."""
        return self._residents.owner(row)

    def add(self, request: Request) -> None:
        """Take a request, which from now on ends in exactly one End. Raises Refused, or QueueFull for now."""
        settings, size = self.settings, len(request.tokens)
        if request.id in self._sequences:
            raise ValueError(f"there is a request {request.id} already")
        if not size or request.max_tokens < 1:
            raise Refused(
                f"a prompt of {size} tokens with max_tokens={request.max_tokens}",
                mend="send at least one token and ask for at least one",
            )
        whole = size + request.max_tokens
        for room, what, how in (
            (settings.context, "context", "shorten the prompt or lower max_tokens"),
            (settings.slots, "cache", "shorten the prompt, lower max_tokens, or raise cache_tokens"),
        ):
            if whole > room:
                raise Refused(
                    f"a prompt of {size} tokens with max_tokens={request.max_tokens} exceeds the {what} of {room}",
                    mend=how,
                )
        tenant = self._waiting.enter(request.tenant)
        sequence = Sequence(request, self._arrivals, tenant)
        self._arrivals += 1
        self._sequences[request.id] = sequence
        if settings.guesses and not settings.overlap and request.guessable:
            sequence.guesses = Lookup()
        leader = None if request.leader is None else self._sequences.get(request.leader)
        if leader is None or leader is sequence or leader.prefilled:
            self._waiting.put(sequence)
        else:
            leader.followers.append(sequence)
            self._waiting.hold(sequence)

    def check_room(self, tenant: str, others: int) -> None:
        """Raises QueueFull when with `others` of the tenant, that are yet to be added, too many wait."""
        self._waiting.check_room(tenant, others)

    def abort(self, id: int, reason: Reason = "abort", message: str = "") -> list[End]:
        """End a request at any moment; [] when there is none. What the device may still write to is freed later."""
        sequence = self._sequences.get(id)
        return [] if sequence is None else [self._finish(sequence, reason, message)]

    def pin(self, tokens: Many[int], namespace: str = "") -> None:
        """Keep what is known of this prefix from eviction, until a request cannot go on without its pages.

        Pins take at most half of the cache: beyond that the earliest goes.
        """
        self._residents.pin(tuple(tokens), namespace)

    def unpin_all(self) -> None:
        self._residents.unpin_all()

    # ---- the next step

    def schedule(self) -> BatchPlan | None:
        """The next step, None when there is nothing to compute (now: a plan in flight may have to be committed)."""
        if len(self._flights) > self.settings.overlap:
            raise ValueError("commit the plan in flight before the next one is made")
        draft = self._draft = _Draft()
        budget, behind = self._decode(draft)
        blocked = False
        for batch in (False, True):
            for sequence in behind:
                if budget and sequence.batch == batch and sequence.lease is not None and not sequence.yielding:
                    budget -= self._chunk(sequence, budget)
            while budget and not blocked and (first := self._waiting.first(batch)) is not None:
                blocked = not self._residents.admit(first)
                if not blocked:
                    self._count(first)
                    budget -= self._chunk(first, budget)
        if not draft.plain and not draft.others:
            return None
        self._step += 1
        plan = BatchPlan(self._step, (*draft.plain, *draft.others))
        self._flights.append(_Flight(plan, draft.decoding + draft.rest))
        return plan

    def _decode(self, draft: _Draft) -> tuple[int, list[Sequence]]:
        """One token (and guesses) for each sequence that has but one to compute; what is left of the budget, and
        the sequences that have more."""
        budget = self.settings.token_budget
        guessing = (budget - len(self._residents.running)) // 2  # the other half is for prompts
        residents, rows, planned = self._residents, draft.plain, draft.decoding
        grow, behind = residents.cache.grow, []
        for sequence in residents.running:  # a preemption takes from its end, behind this one
            start, tokens = sequence.scheduled, sequence.tokens
            known = len(tokens)
            if sequence.yielding or start >= sequence.limit:
                continue
            if known - start > 1:
                behind.append(sequence)
                continue
            lease = sequence.lease
            assert lease is not None
            if guessing > 0 and sequence.guesses is not None and (count := self._guess(sequence, guessing)):
                guessing -= count
                budget -= 1 + count
                continue
            if len(lease.pages) == start and not grow(lease, 1) and not residents.take(sequence):
                continue
            if sequence.fresh:
                budget -= self._chunk(sequence, 1)
                continue
            inputs = (tokens[start],) if start < known else ()
            rows.append(Row(sequence.row, start, 1, inputs, (lease.pages[start],), 1))
            planned.append(sequence)
            sequence.scheduled = start + 1
            sequence.flights += 1
            budget -= 1
        return budget, behind

    def _count(self, sequence: Sequence) -> None:
        """It was admitted: its prompt counts for its tenant and for the hit rate, once, be it preempted later."""
        if sequence.cached < 0:
            assert sequence.lease is not None
            sequence.cached = sequence.lease.shared
            sequence.tenant.served += sequence.prompt - sequence.cached
            self._prompt += sequence.prompt
            self._hit += sequence.cached

    def _guess(self, sequence: Sequence, most: int) -> int:
        """Plan the next token with guesses for what follows, if there are any and pages for them; how many."""
        tokens, start, lease, lookup = sequence.tokens, sequence.scheduled, sequence.lease, sequence.guesses
        assert lease is not None and lookup is not None
        count = min(self.settings.guesses, most, sequence.limit - start - 1)
        guesses = lookup.guess(tokens, count)
        if not guesses or not self._residents.cache.grow(lease, start + 1 + len(guesses) - len(lease.pages)):
            return 0
        self._plan(sequence, (tokens[start], *guesses), 1 + len(guesses))
        return len(guesses)

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        """Plan what is known and not computed, as far as chunk, budget and pages allow; how many tokens."""
        start, known, lease = sequence.scheduled, len(sequence.tokens), sequence.lease
        assert lease is not None
        count = min(known - start, self.settings.prefill_chunk, budget)
        short = start + count - len(lease.pages)
        if short > 0 and not self._residents.cache.grow(lease, short):  # `extend` did it: a prompt has its pages
            count = 1
            if len(lease.pages) == start and not self._residents.take(sequence):
                return 0
        inputs = tuple(sequence.tokens[start : start + count])
        self._plan(sequence, inputs, 1 if start + count == known else 0)
        return count

    def _plan(self, sequence: Sequence, inputs: tuple[int, ...], sample: int) -> None:
        """Write the row of these inputs; a fresh one says all that the device does not know."""
        lease, start, stop = sequence.lease, sequence.scheduled, sequence.scheduled + len(inputs)
        assert lease is not None
        slots = tuple(lease.pages[start:stop])
        if sequence.fresh:
            code = sequence.request.sampling
            history = tuple(sequence.tokens) if code.penalised else ()
            prompt = sequence.prompt if code.penalised else 0
            prefix = tuple(lease.pages[:start])
            row = Row(
                sequence.row, start, len(inputs), inputs, slots, sample, True, prefix, tuple(code), history, prompt
            )
            sequence.fresh = False
        else:
            row = Row(sequence.row, start, len(inputs), inputs, slots, sample)
        plain = len(inputs) == 1 and sample == 1
        (self._draft.plain if plain else self._draft.others).append(row)
        (self._draft.decoding if plain else self._draft.rest).append(sequence)
        sequence.scheduled = stop
        sequence.flights += 1

    # ---- what came of it

    def commit(self, plan: BatchPlan, sampled: Many[Many[int]]) -> list[Event]:
        """Take what the sampler gave for each row with sample > 0, in order; those of ended requests do not count."""
        rows = self._land(plan, sum(1 for row in plan.rows if row.sample), len(sampled))
        events: list[Event] = []
        answers = iter(sampled)
        for sequence, row in zip(rows, plan.rows, strict=True):
            tokens = next(answers) if row.sample else ()
            sequence.flights -= 1
            if sequence.ended:
                if not sequence.flights:
                    self._residents.let_go(sequence)
                continue
            if len(tokens) != row.sample:
                raise ValueError(f"row {row.row} samples {row.sample} positions, and {len(tokens)} tokens came")
            if row.sample > 1:
                tokens = self._agreed(sequence, row, tokens)
            else:
                sequence.committed += row.count
            if not sequence.prefilled and sequence.committed >= sequence.prompt:
                self._prefilled(sequence)
            first = row.start + row.count - row.sample + 1  # position of the first sampled token
            if row.sample and first == len(sequence.tokens):  # else `extend` knew better
                self._append(sequence, tokens, events)
            if sequence.yielding and not sequence.flights and not sequence.ended:
                self._residents.preempt(sequence)
        return events

    def fail(self, plan: BatchPlan, message: str) -> list[End]:
        """The step broke: each of its requests ends with an error, and nothing of theirs enters the cache any more."""
        ends = []
        for sequence in self._land(plan, 0, 0):
            sequence.flights -= 1
            if not sequence.ended:
                ends.append(self._finish(sequence, "error", message, keep=False))
            elif not sequence.flights:
                self._residents.let_go(sequence)
        return ends

    def extend(self, id: int, tokens: Many[int]) -> list[Event]:
        """Append tokens that are certain to follow, after a commit; they are computed together in the next step.

        What is in flight for their place is dropped. [] when the request has ended.
        """
        sequence = self._sequences.get(id)
        if sequence is None or not tokens:
            return []
        if sequence.scheduled > len(sequence.tokens):
            raise ValueError(f"request {id} has an uncommitted token; extend it after the commit")
        events: list[Event] = []
        sequence.fresh = sequence.fresh or sequence.request.sampling.penalised
        self._append(sequence, tokens, events)
        return events

    def _land(self, plan: BatchPlan, expected: int, found: int) -> list[Sequence]:
        if not self._flights or self._flights[0].plan is not plan:
            raise ValueError(f"plan {plan.step} is not the earliest in flight")
        if expected != found:
            raise ValueError(f"plan {plan.step} samples {expected} rows, and {found} answers came")
        return self._flights.popleft().sequences

    def _append(self, sequence: Sequence, tokens: Many[int], events: list[Event]) -> None:
        """New tokens of a reply, up to the one that ends it."""
        known = sequence.tokens
        for token in tokens:
            events.append(Token(sequence.id, token, None, (), len(known) - sequence.prompt))
            known.append(token)
            self._output += 1
            sequence.tenant.served += 1
            if token in sequence.ends or len(known) > sequence.limit:
                events.append(self._finish(sequence, "stop" if token in sequence.ends else "length"))
                return

    def _agreed(self, sequence: Sequence, row: Row, sampled: Many[int]) -> Many[int]:
        """The sampled tokens that hold: those that were guessed, up to an end, and one more. The rest is undone."""
        count = 1
        while count < row.sample and (token := sampled[count - 1]) == row.tokens[count] and token not in sequence.ends:
            count += 1
        sequence.guessed += row.sample - 1
        sequence.right += count - 1
        sequence.committed = sequence.scheduled = row.start + count
        assert sequence.lease is not None
        self._residents.cache.trim(sequence.lease, sequence.committed)
        return sampled[:count]

    def _prefilled(self, sequence: Sequence) -> None:
        """The prompt is computed: others may use it, and those that waited for it stand in the queue."""
        sequence.prefilled = True
        assert sequence.lease is not None
        self._residents.cache.share(sequence.lease, sequence.tokens, sequence.prompt)
        self._lead(sequence)

    def _lead(self, sequence: Sequence) -> None:
        for follower in sequence.followers:
            if not follower.ended:
                self._waiting.put(follower)
        sequence.followers = []

    def _finish(self, sequence: Sequence, reason: Reason, message: str = "", *, keep: bool = True) -> End:
        """The one End of a request. Its pages go now, or when the device no longer writes to them."""
        sequence.ended = True
        del self._sequences[sequence.id]
        self._waiting.leave(sequence.tenant)
        self._lead(sequence)
        if not keep:
            sequence.committed = 0
        if sequence.lease is None:
            self._waiting.remove(sequence)
        else:
            self._residents.running.remove(sequence)
            if not sequence.flights:
                self._residents.let_go(sequence)
        return sequence.end(reason, message)

    def check(self) -> None:
        """AssertionError unless pages, leases, rows and queues agree. For tests: it looks at everything."""
        flying = [one for flight in self._flights for one in flight.sequences]
        self._residents.check(flying, 1 + self.settings.guesses)
        running = self._residents.running
        assert all(one.flights == flying.count(one) for one in self._sequences.values())
        assert all(self._sequences[one.id] is one for one in running)
        assert self._waiting.count == len(self._sequences) - len(running)
