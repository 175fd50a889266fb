"""The step loop: requests in, token events out, one model. It runs in a process of its own, or in a thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

import torch

from engines.llm.batch import BatchPlan
from engines.llm.errors import EngineError, GrammarMissing, GrammarStuck, SettingInvalid
from engines.llm.messages import Abort, Beat, Failure, Message, Pin, Probed, Report, Submit
from engines.llm.runner import Forwarded, Pending, Runner
from engines.llm.scheduler import Scheduler
from engines.llm.sequence import End, Event, Reason, Request, Token

log = logging.getLogger(__name__)

COMPILERS = 2
SPEAKS_EVERY = 5.0  # seconds between lines of the log
BEATS_EVERY = 0.5  # seconds between reports while there are but grammars that compile


class Matcher(Protocol):
    """Where a reply stands in its grammar."""

    def fill(self, row: torch.Tensor) -> None: ...

    def accept(self, token: int) -> bool: ...

    def forced(self) -> Sequence[int]: ...


class Compiled(Protocol):
    def matcher(self) -> Matcher: ...


class Grammars(Protocol):
    """Compiles grammars, in any thread. Raises an EngineError that says what is wrong with one."""

    def compile(self, kind: Any, source: str) -> Any: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Open:
    """A request that has not ended."""

    request: Request
    matcher: Matcher | None = None
    logprobs: int = -1


class _Ready(NamedTuple):
    """A grammar was compiled, or not."""

    submit: Submit
    compiled: Future[Any]


class _Compiling(NamedTuple):
    submit: Submit
    compiled: Future[Any]


class _Flight(NamedTuple):
    plan: BatchPlan
    pending: Pending
    asked: dict[int, int]
    """Table rows of which log-probabilities are told, with the number of alternatives."""


@dataclass(slots=True)
class _Since:
    """What the log says of the steps since it spoke last."""

    at: float
    steps: int = 0
    tokens: int = 0
    rows: int = 0
    graphs: int = 0
    seconds: float = 0.0
    prompt: int = 0
    hit: int = 0


@dataclass(slots=True)
class _Said:
    tokens: list[Token] = field(default_factory=list)
    probed: list[Probed] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def any(self) -> bool:
        return bool(self.tokens or self.probed or self.ends or self.failures)


class Core:
    """Scheduler and runner of one model. `put` is safe from any thread, `run` is the loop; `emit` is called in it.

    Each submitted request ends in one End or one Failure, whatever happens. `overlap`: a step is planned and
    launched while the device is busy with the one before.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        emit: Callable[[Report], None],
        *,
        grammars: Grammars | None = None,
        jump_forward: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler, self._runner, self._emit, self._clock = scheduler, runner, emit, clock
        self._overlap, self._jumps = scheduler.settings.overlap, jump_forward
        self._grammars, self._compilers = grammars, ThreadPoolExecutor(COMPILERS, "grammar") if grammars else None
        self._inbox: SimpleQueue[Message | _Ready] = SimpleQueue()
        self._open: dict[int, _Open] = {}
        self._compiling: dict[int, _Compiling] = {}
        self._flying: list[_Flight] = []
        self._said = _Said()
        self._step = self._failures = 0
        self._dead, self._closed = "", False
        self._since = _Since(clock())

    def put(self, message: Message) -> None:
        """Hand a message over; it is taken in between two steps."""
        self._inbox.put(message)

    def run(self) -> None:
        """Steps until Close comes or the device is lost; open requests then end."""
        try:
            while not self._closed and not self._dead:
                self.turn(wait=True)
        except BaseException as error:
            self._dead = f"the step loop broke: {_words(error)}"
            log.exception("the step loop broke")
        finally:
            if self._compilers is not None and self._grammars is not None:
                self._compilers.shutdown(wait=False, cancel_futures=True)
                self._grammars.close()
            self._end_all()

    def turn(self, *, wait: bool = False) -> None:
        """One turn: plan and launch a step, take in what the step before gave, pick this one's tokens."""
        beats = self._take_messages(wait)
        started = self._clock()
        plan = self._scheduler.schedule()
        forwarded, broken = self._launch(plan)
        while self._flying:
            self._collect(self._flying.pop(0))
        if forwarded is not None and not self._dead:
            broken = self._pick(forwarded)
        if plan is not None and broken is not None:
            self._fail(plan, broken)
        if not self._overlap and self._flying:
            self._collect(self._flying.pop(0))
        if plan is not None:
            self._step += 1
            self._log(plan, forwarded, self._clock() - started)
        if plan is not None or beats or self._said.any():
            self._report()

    # ---- the phases of a turn

    def _take_messages(self, wait: bool) -> bool:
        """All that came since the last turn; with nothing to do, wait for it. True when there are but grammars that
        compile: no step tells then that the loop lives."""
        idle = wait and self._scheduler.idle and not self._said.any()
        try:
            message = self._inbox.get(idle, BEATS_EVERY if self._compiling else None)
            while True:
                self._take(message)
                message = self._inbox.get_nowait()
        except Empty:
            return idle and bool(self._compiling)

    def _take(self, message: Message | _Ready) -> None:
        if isinstance(message, Submit):
            self._submit(message)
        elif isinstance(message, _Ready):
            self._compiled(message)
        elif isinstance(message, Abort):
            self._abort(message.id, message.reason)
        elif isinstance(message, Pin):
            self._scheduler.pin(message.tokens, message.namespace)
        else:
            self._closed = True

    def _launch(self, plan: BatchPlan | None) -> tuple[Forwarded | None, BaseException | None]:
        if plan is None:
            return None, None
        try:
            return self._runner.forward(plan), None
        except Exception as error:
            return None, error

    def _pick(self, forwarded: Forwarded) -> BaseException | None:
        plan = forwarded.layout.plan
        try:
            probes, asked = {}, {}
            for row in plan.rows:
                opened = self._open.get(self._scheduler.owner(row.row)) if row.sample else None
                if opened is not None and opened.request.probe:
                    probes[row.row] = opened.request.probe
                if opened is not None and opened.logprobs >= 0:
                    asked[row.row] = opened.logprobs
            masks = self._masks(plan, forwarded.layout.shape.sampled)
            self._flying.append(_Flight(plan, self._runner.sample(forwarded, masks, probes), asked))
            return None
        except Exception as error:
            return error

    def _masks(self, plan: BatchPlan, sampled: int) -> torch.Tensor | None:
        """What grammars allow at each sampled position, filled while the device works; None when none is asked."""
        masks, place = None, 0
        for row in plan.rows:
            opened = self._open.get(self._scheduler.owner(row.row)) if row.sample else None
            if opened is not None and opened.matcher is not None:
                if masks is None:
                    masks = torch.full((sampled, -(-self._runner.vocabulary // 32)), -1, dtype=torch.int32)
                try:
                    opened.matcher.fill(masks[place])
                except Exception as error:
                    self._drop(opened.request, error)
            place += row.sample
        return masks

    def _collect(self, flight: _Flight) -> None:
        """Wait for a step's tokens and take them in."""
        plan, pending, asked = flight
        try:
            sampled, logprobs, probed = pending.tokens(), pending.logprobs(asked), pending.probed()
        except Exception as error:
            self._fail(plan, error)
            return
        owners = {row.row: self._scheduler.owner(row.row) for row in plan.rows if row.sample}
        told = {owners[row]: iter(entries) for row, entries in logprobs.items()}
        for row, shares in probed.items():
            if owners[row] in self._open:
                self._said.probed.append(Probed(owners[row], shares))
        self._failures = 0
        grown: list[int] = []
        for event in self._scheduler.commit(plan, sampled):
            if isinstance(event, Token) and event.id in told:
                logprob, top = next(told[event.id])
                event = event._replace(logprob=logprob, top=top)
            self._say(event)
            if isinstance(event, Token):
                grown.append(event.id)
        for id in grown:
            self._jump(id)

    # ---- requests

    def _submit(self, submit: Submit) -> None:
        request = submit.request
        try:
            self._check_room(request)
            if submit.grammar is None:
                self._add(request, None)
            elif self._compilers is None or self._grammars is None:
                raise GrammarMissing(
                    "this engine holds no reply to a grammar",
                    mend="install the extra that brings grammars: pip install 'chains-serve[grammar]'",
                )
            else:
                future = self._compilers.submit(self._grammars.compile, *submit.grammar)
                self._compiling[request.id] = _Compiling(submit, future)
                future.add_done_callback(lambda done: self._inbox.put(_Ready(submit, done)))
        except EngineError as error:
            self._refuse(request.id, error)

    def _check_room(self, request: Request) -> None:
        """Raises QueueFull when too many of the tenant wait, those whose grammars compile among them."""
        if self._compiling:
            tenants = (one.submit.request.tenant for one in self._compiling.values())
            self._scheduler.check_room(request.tenant, sum(tenant == request.tenant for tenant in tenants))

    def _compiled(self, ready: _Ready) -> None:
        request = ready.submit.request
        if self._compiling.pop(request.id, None) is None:
            return  # aborted meanwhile
        try:
            self._add(request, ready.compiled.result().matcher())
        except Exception as error:
            self._refuse(request.id, error)

    def _add(self, request: Request, matcher: Matcher | None) -> None:
        self._check_tokens(request)
        self._scheduler.add(request)
        self._open[request.id] = _Open(request, matcher, request.sampling.logprobs)

    def _check_tokens(self, request: Request) -> None:
        tokens = (*request.tokens, *request.probe)
        if tokens and not 0 <= min(tokens) <= max(tokens) < self._runner.vocabulary:
            found = min(tokens) if min(tokens) < 0 else max(tokens)
            raise SettingInvalid(
                f"there is no token {found}", mend=f"this model's token ids are 0 to {self._runner.vocabulary - 1}"
            )

    def _refuse(self, id: int, error: Exception) -> None:
        if isinstance(error, EngineError):
            self._said.failures.append(Failure(id, type(error).__name__, error.message, error.mend))
        else:
            log.error("the grammar of request %d could not be used: %s", id, type(error).__name__)  # no caller's text
            self._said.failures.append(Failure(id, "EngineError", f"the grammar could not be used: {_words(error)}"))

    def _drop(self, request: Request, error: Exception) -> None:
        """Its grammar raised: the request fails by that, whatever it has said, and no other does."""
        self._scheduler.abort(request.id, "error")
        if self._open.pop(request.id, None) is not None:
            self._refuse(request.id, error)

    def _abort(self, id: int, reason: Reason, message: str = "") -> None:
        waiting = self._compiling.pop(id, None)
        if waiting is not None:
            waiting.compiled.cancel()  # if its turn has not come; else it goes on, to its limits
            self._said.ends.append(End(id, reason, len(waiting.submit.request.tokens), 0, 0, message))
        for end in self._scheduler.abort(id, reason, message):
            self._say(end)

    def _say(self, event: Event) -> None:
        """Tell an event, and let the request's grammar know."""
        if isinstance(event, End):
            if self._open.pop(event.id, None) is not None:
                self._said.ends.append(event)
            return
        opened = self._open.get(event.id)
        if opened is None:
            return  # its grammar raised at a token before
        self._said.tokens.append(event)
        if opened.matcher is None or event.token in opened.request.ends:
            return
        try:
            if not opened.matcher.accept(event.token):
                raise GrammarStuck(f"token {event.token} is not what the grammar allows", mend="mend the grammar")
        except Exception as error:
            self._drop(opened.request, error)

    def _jump(self, id: int) -> None:
        """Append what the grammar forces, without asking the model."""
        opened = self._open.get(id)
        if not self._jumps or opened is None or opened.matcher is None or opened.logprobs >= 0:
            return
        try:
            forced = tuple(opened.matcher.forced())
        except Exception as error:
            self._drop(opened.request, error)
            return
        for event in self._scheduler.extend(id, forced):
            self._say(event)

    # ---- faults, reports, log

    def _fail(self, plan: BatchPlan, error: BaseException) -> None:
        """A step raised: its requests end with what it said. A device that is lost ends everything."""
        self._failures += 1
        log.error("step %d of %d requests failed", plan.step, len(plan.rows), exc_info=error)
        message = f"the step failed: {_words(error)}"
        for end in self._scheduler.fail(plan, message):
            self._say(end)
        if self._runner.lost(error):
            self._dead = message

    def _end_all(self) -> None:
        reason: Reason = "error" if self._dead else "abort"
        for id in [*self._open, *self._compiling]:
            self._abort(id, reason, self._dead)
        self._take_left(reason)
        self._report()

    def _take_left(self, reason: Reason) -> None:
        """Requests that came after the last turn end as the others do."""
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, Submit):
                end = End(message.request.id, reason, len(message.request.tokens), 0, 0, self._dead)
                self._said.ends.append(end)

    def _report(self) -> None:
        said, self._said = self._said, _Said()
        beat = Beat(self._step, self._scheduler.stats(), self._failures, self._dead)
        self._emit(Report(said.tokens, said.probed, said.ends, said.failures, beat))

    def _log(self, plan: BatchPlan, forwarded: Forwarded | None, seconds: float) -> None:
        graph = forwarded.graph if forwarded is not None else 0
        log.debug(
            "step %d: %d sequences, %d tokens, graph %s, %.2f ms", plan.step, len(plan.rows), plan.tokens,
            graph or "no", seconds * 1e3,
        )  # fmt: skip
        since, now = self._since, self._clock()
        since.steps += 1
        since.tokens += plan.tokens
        since.rows += len(plan.rows)
        since.graphs += graph > 0
        since.seconds += seconds
        if now - since.at < SPEAKS_EVERY:
            return
        stats = self._scheduler.stats()
        prompt, hit = stats.prompt - since.prompt, stats.hit - since.hit
        log.info(
            "%d steps of %.1f sequences and %.1f tokens, %.2f ms each; %d%% by graphs; %d of %d prompt tokens were "
            "cached; running %d, waiting %d, pages free %d, cached %d",
            since.steps, since.rows / since.steps, since.tokens / since.steps, since.seconds / since.steps * 1e3,
            100 * since.graphs // since.steps, hit, prompt, stats.running, stats.waiting, stats.free, stats.cached,
        )  # fmt: skip
        self._since = _Since(now, prompt=stats.prompt, hit=stats.hit)


def _words(error: BaseException) -> str:
    """An error in one line: what it is, and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
