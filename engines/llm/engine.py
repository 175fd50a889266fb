"""The engine's front: prompts and settings in, text out, for threads and for event loops; the model runs elsewhere."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from engines.llm import errors
from engines.llm.assembly import assemble, grammars_of
from engines.llm.card import card_of
from engines.llm.choice import ChoiceTree, calibrate, end_of_turn
from engines.llm.config import EngineSettings, ModelSource, Sampling
from engines.llm.errors import EngineError, PromptTooLong, RequestFailed, SettingInvalid
from engines.llm.link import Deliver, Gone, Link, ThreadLink
from engines.llm.mailbox import Item, LoopMailbox, Mailbox, Mailboxes, ThreadMailbox
from engines.llm.messages import Abort, Beat, Failure, Pin, Probed, Report, Submit
from engines.llm.reply import Reply
from engines.llm.scheduler import Stats
from engines.llm.seam import Event, Grammar, Prompt
from engines.llm.sequence import GREEDY, End, Request, SamplingCode, Token
from engines.llm.tokenizer import Tokenizer

LOOKS = 0.02  # seconds between two looks at `cancelled`
PRIORS = 64
FAILING = 3  # steps in a row that raise make an engine unhealthy
SEEDS = 2**63 - 1
SPREAD = 0x9E3779B97F4A7C15  # between the seeds of the replies of one request

Start = Callable[[Deliver, Gone], Link]


def never() -> bool:
    """A request that nobody cancels."""
    return False


class _Asked(NamedTuple):
    """The requests of one caller, by id, and the reply that each of them writes."""

    replies: dict[int, Reply]
    submits: list[Submit]


class LLMEngine:
    """A loaded model that serves many callers at once. `generate` blocks, `stream` serves an event loop.

    What is the caller's fault is raised before the first event: PromptTooLong, SettingInvalid, a bad grammar, a full
    queue. Whatever else happens, each reply ends in exactly one FinishEvent. A caller that goes away (closes the
    iterator, is cancelled) frees its pages within one step.
    """

    def __init__(self, tokenizer: Tokenizer, start: Start, card: Mapping[str, Any]) -> None:
        self.tokenizer, self.card = tokenizer, card
        self._mailboxes = Mailboxes()
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._heard, self._gone = time.monotonic(), ""
        self._closed = False
        self._beat = Beat(0, Stats(*[0] * len(Stats._fields)))
        self._priors: dict[tuple[tuple[int, ...], ChoiceTree], list[float]] = {}
        self._link = start(self._hear, self._lost)
        self.facts = self._link.facts
        self._ends = frozenset({*self.facts.ends, *tokenizer.ends})

    @classmethod
    def load(
        cls,
        model: str | Path = "default",
        settings: EngineSettings | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> LLMEngine:
        """Load from local files. `progress` is told bytes read and bytes in all.

        Raises ModelMissing, ModelBroken, ModelTooLarge, SettingInvalid.
        """
        settings = settings or EngineSettings()
        source = ModelSource.resolve(model)
        tokenizer = Tokenizer.load(source)

        def start(deliver: Deliver, gone: Gone) -> Link:
            if settings.process:
                from engines.llm.process import ProcessLink  # it needs msgspec, a loop in a thread does not

                return ProcessLink(source, settings, deliver, gone, progress)

            def make(emit: Deliver) -> Any:
                return assemble(
                    source, settings, emit, grammars=lambda width: grammars_of(source, width), progress=progress
                )

            return ThreadLink(make, deliver, gone)

        card = card_of(source.directory / source.gguf if source.gguf else source.directory).json()
        engine = cls(tokenizer, start, card)
        try:
            engine._run_once()
        except BaseException:
            engine.close()
            raise
        return engine

    # ---- what is served

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        cancelled: Callable[[], bool] = never,
        *,
        tenant: str = "",
        namespace: str = "",
        batch: bool = False,
        grammar: Grammar | None = None,
    ) -> Iterator[Event]:
        """Token events as the text grows, then one FinishEvent a reply. A cancel ends it within 20 ms."""
        asked = self._ask(prompt, sampling or Sampling(), tenant, namespace, batch, grammar)
        return self._generate(asked, cancelled)

    def _generate(self, asked: _Asked, cancelled: Callable[[], bool]) -> Iterator[Event]:
        mailbox = ThreadMailbox()
        try:
            self._submit(asked, mailbox)
            while not all(reply.done for reply in asked.replies.values()):
                items = mailbox.get(None if cancelled is never else LOOKS)
                if cancelled():
                    yield from (reply.aborted() for reply in asked.replies.values() if not reply.done)
                    return
                yield from self._events(asked, items)
        finally:
            self._leave(asked)

    async def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        tenant: str = "",
        namespace: str = "",
        batch: bool = False,
        grammar: Grammar | None = None,
    ) -> AsyncIterator[Event]:
        """As `generate`. Closing the iterator, or cancelling its task, ends the request within one step."""
        asked = self._ask(prompt, sampling or Sampling(), tenant, namespace, batch, grammar)
        mailbox = LoopMailbox()
        try:
            self._submit(asked, mailbox)
            while not all(reply.done for reply in asked.replies.values()):
                for event in self._events(asked, await mailbox.get()):
                    yield event
        finally:
            self._leave(asked)

    def warm(self, prefix: Prompt) -> int:
        """Compute a static prefix (system message, examples) once, and keep it. The number of its tokens."""
        ids = self._ids_of(prefix, 1, reply=False)
        self._keep(ids, batch=False).result()
        return len(ids)

    def prepare(self, prefixes: Sequence[Prompt]) -> Future[None]:
        """`warm` for many, behind whatever somebody waits for; done when all are computed. Raises at once for a
        prefix that is too long. What is prepared and not computed yet is merely slower.
        """
        waiting = [self._keep(ids, batch=True) for ids in [self._ids_of(one, 1, reply=False) for one in prefixes]]
        done: Future[None] = Future()
        left = itertools.count(len(waiting) - 1, -1)
        for one in waiting:
            one.add_done_callback(lambda _: done.set_result(None) if next(left) == 0 else None)
        if not waiting:
            done.set_result(None)
        return done

    def score(self, prompt: Prompt, choices: Sequence[str], prior: Prompt | None = None) -> dict[str, float]:
        """Probability of each of `choices` as the reply to `prompt`; they sum to 1.

        With `prior`, the same prompt without content, what the model prefers anyway is divided out.
        """
        if len(set(choices)) != len(choices) or len(choices) < 2 or "" in choices:
            raise SettingInvalid(f"choices are {list(choices)!r}", mend="write two or more different, non-empty texts")
        tree = ChoiceTree.of([self.tokenizer.encode(text, special=False) for text in choices], self._turn_end)
        self._check_number(len(tree.forks()), "places where choices part")
        longest = max(len(begin) for begin in tree.forks())
        shares = self._score(self._ids_of(prompt, longest + 1), tree)
        if prior is not None:
            before = self._ids_of(prior, longest + 1)
            key = (tuple(before), tree)
            if key not in self._priors:
                if len(self._priors) >= PRIORS:
                    self._priors.clear()
                self._priors[key] = self._score(before, tree)
            shares = calibrate(shares, self._priors[key])
        return dict(zip(choices, shares, strict=True))

    def tokens(self, prompt: Prompt, *, reply: bool = True) -> list[int]:
        """Token ids of a prompt; `reply` opens the assistant's turn behind messages."""
        return self.tokenizer.tokens(prompt, reply=reply)

    @cached_property
    def _turn_end(self) -> int | None:
        return end_of_turn(self.tokenizer, self._ends)

    # ---- how it is

    @property
    def context(self) -> int:
        """The most tokens of a prompt and its reply together."""
        return self.facts.context

    @property
    def alive(self) -> bool:
        """Whether requests can be served: the loop runs, and its last steps did not all raise."""
        return not self._gone and not self._closed and not self._beat.dead and self._beat.failures < FAILING

    @property
    def age(self) -> float:
        """Seconds since the last step, or the last word that grammars compile, while there is work; 0 without."""
        return time.monotonic() - self._heard if len(self._mailboxes) else 0.0

    @property
    def steps(self) -> int:
        """Steps of the model so far."""
        return self._beat.step

    def stats(self) -> Stats:
        """As of the last step."""
        return self._beat.stats

    def close(self) -> None:
        """End the loop and free the model; open replies end with "abort"."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._link.close()
        self._mailboxes.end_all("the engine was closed")

    # ---- requests

    def _ask(
        self, prompt: Prompt, sampling: Sampling, tenant: str, namespace: str, batch: bool, grammar: Grammar | None
    ) -> _Asked:
        """The requests of a prompt, one a reply; all but the first wait for the first's prompt to be computed."""
        self._check_number(sampling.n, "replies")
        ids = tuple(self._ids_of(prompt, sampling.max_tokens))
        ends = frozenset(sampling.stop_ids) if sampling.ignore_end else self._ends | frozenset(sampling.stop_ids)
        code = SamplingCode.of(sampling, unseeded=secrets.randbelow(SEEDS))
        replies, submits, leader = dict[int, Reply](), list[Submit](), None
        for index in range(sampling.n):
            id = next(self._ids)
            request = Request(
                id, ids, sampling.max_tokens, ends, code._replace(seed=(code.seed + index * SPREAD) % SEEDS),
                tenant, namespace, batch, leader, grammar is not None,
            )  # fmt: skip
            leader = leader or id
            replies[id] = Reply(self._decode, sampling, ends, len(ids), index)
            submits.append(Submit(request, None if grammar is None else (str(grammar[0]), grammar[1])))
        return _Asked(replies, submits)

    def _ids_of(self, prompt: Prompt, room: int, *, reply: bool = True) -> list[int]:
        """Tokens of a prompt with `room` to write behind them. Raises for none, and for too many."""
        ids = self.tokens(prompt, reply=reply)
        if not ids:
            raise SettingInvalid("the prompt is empty", mend="write at least one message")
        if len(ids) + room > self.context:
            raise PromptTooLong(
                f"{len(ids)} tokens of prompt and {room} to write exceed the context of {self.context}",
                mend="shorten the prompt, ask for fewer tokens, or use a model (or a cache_tokens) with more room",
            )
        return ids

    def _check_number(self, count: int, what: str) -> None:
        """Raises for more requests at once than may wait: they would be refused for ever."""
        if count > self.facts.max_waiting:
            raise SettingInvalid(
                f"{count} {what} at once are more than the {self.facts.max_waiting} requests that may wait",
                mend="ask for fewer at once, or raise max_waiting",
            )

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    def _submit(self, asked: _Asked, mailbox: Mailbox) -> None:
        for submit in asked.submits:
            self._send(submit, mailbox)

    def _send(self, submit: Submit, mailbox: Mailbox) -> None:
        self._check_gone()
        if not len(self._mailboxes):
            self._heard = time.monotonic()
        self._mailboxes.open(submit.request.id, mailbox, len(submit.request.tokens))
        try:
            self._link.send(submit)
        except EngineError:
            self._mailboxes.forget(submit.request.id)
            raise
        self._check_gone(submit.request.id)  # it may have gone between the look and the sending

    def _check_gone(self, id: int = 0) -> None:
        """Raises when nothing serves requests any more; one that is open already then ends by itself, or here."""
        gone = self._gone or ("it was closed" if self._closed else "")
        if gone and (not id or self._mailboxes.forget(id)):
            raise RequestFailed(f"the engine is gone: {gone}", mend="load the model again")

    def _events(self, asked: _Asked, items: list[Item]) -> Iterator[Event]:
        """What a caller sees of these items. Raises for a request that was refused."""
        touched: dict[int, Reply] = {}
        for item in items:
            reply = asked.replies[item.id]
            if isinstance(item, Failure):
                raise _raised(item)
            if isinstance(item, Token):
                stopped = reply.stopped
                reply.push(item)
                touched[item.id] = reply
                if reply.stopped and not stopped:
                    self._abort(item.id, Abort(item.id, "stop"))
            elif isinstance(item, End):
                touched.pop(item.id, None)
                yield from reply.finish(item)
        for reply in touched.values():
            event = reply.take()
            if event is not None:
                yield event

    def _leave(self, asked: _Asked) -> None:
        """The caller wants no more: what has not ended is aborted."""
        for id in asked.replies:
            if self._mailboxes.forget(id):
                self._abort(id, Abort(id))

    def _abort(self, id: int, abort: Abort) -> None:
        try:
            self._link.send(abort)
        except EngineError:
            pass  # the engine is gone, and every request has ended

    # ---- prefixes and choices

    def _keep(self, ids: Sequence[int], *, batch: bool) -> Future[None]:
        """Compute a prefix and pin it."""
        done: Future[None] = Future()
        request = Request(next(self._ids), tuple(ids), 1, batch=batch)

        def ended(items: list[Item]) -> None:
            for item in items:
                if isinstance(item, End) and item.reason in ("stop", "length"):
                    try:
                        self._link.send(Pin(request.tokens))
                    except EngineError:
                        pass  # the engine is gone
                if isinstance(item, End) and item.reason == "error":
                    done.set_exception(RequestFailed(item.message, mend="look at the engine's log"))
                elif isinstance(item, End):
                    done.set_result(None)
                elif isinstance(item, Failure):
                    done.set_exception(_raised(item))

        self._send(Submit(request), _Called(ended))
        return done

    def _score(self, ids: Sequence[int], tree: ChoiceTree) -> list[float]:
        """One request for each place where answers part; all but the first find the prompt computed."""
        mailbox, probes, leader = ThreadMailbox(), dict[int, tuple[int, ...]](), None
        forks = sorted(tree.forks().items(), key=lambda fork: (len(fork[0]), fork[0]))
        found: dict[tuple[int, ...], tuple[float, ...]] = {}
        try:
            for begin, following in forks:
                request = Request(
                    next(self._ids), (*ids, *begin), 1, sampling=GREEDY, leader=leader, probe=tuple(following)
                )
                leader = leader or request.id
                probes[request.id] = begin
                self._send(Submit(request), mailbox)
            while len(found) < len(forks):
                for item in mailbox.get():
                    if isinstance(item, Probed):
                        found[probes[item.id]] = item.logprobs
                    elif isinstance(item, Failure):
                        raise _raised(item)
                    elif isinstance(item, End) and probes[item.id] not in found:
                        raise RequestFailed(f"the choice ended with {item.reason}: {item.message}", mend="try again")
        finally:
            for id in probes:
                if self._mailboxes.forget(id):
                    self._abort(id, Abort(id))
        return tree.shares(found)

    def _run_once(self) -> None:
        """A reply of two tokens: what is compiled or allocated at the first step is, before anybody waits."""
        request = Request(next(self._ids), (min(self._ends, default=0),) * 4, 2)
        mailbox = ThreadMailbox()
        self._send(Submit(request), mailbox)
        while True:
            for item in mailbox.get():
                if isinstance(item, Failure):
                    raise _raised(item)
                if isinstance(item, End):
                    if item.reason == "error":
                        raise RequestFailed(f"the first step of the model failed: {item.message}", mend="see the log")
                    return

    # ---- from the loop

    def _hear(self, report: Report) -> None:
        self._heard, self._beat = time.monotonic(), report.beat
        self._mailboxes.deliver([*report.tokens, *report.probed, *report.ends, *report.failures])

    def _lost(self, why: str) -> None:
        """The loop has ended; `why` is "" when it was told to."""
        if why:
            self._gone = self._beat.dead or why
            self._mailboxes.end_all(self._gone)


AsyncEngine = LLMEngine
"""One engine serves both: `generate` for threads, `stream` for event loops."""


class _Called:
    """A mailbox that is a function, called in the engine's thread."""

    def __init__(self, call: Callable[[list[Item]], None]) -> None:
        self.put = call


def _raised(failure: Failure) -> EngineError:
    """The error of a request that was refused, by the name that the loop gave."""
    if failure.kind == "Refused":
        return PromptTooLong(failure.message, mend=failure.mend)
    kind = getattr(errors, failure.kind, EngineError)
    error: EngineError = kind(failure.message, mend=failure.mend)
    return error
