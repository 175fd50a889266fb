"""The step loop with the real scheduler and runner, over a model that any wrong page would show."""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engines.llm.config import Sampling
from engines.llm.core import COMPILERS
from engines.llm.errors import EngineError, GrammarStuck
from engines.llm.messages import Abort, Close, Failure, Pin, Report
from engines.llm.sequence import GREEDY, End, SamplingCode
from tests.engines.llm.rig import END, Rig


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlap"])
def test_a_reply_is_what_the_model_says(overlap: bool) -> None:
    rig = Rig(overlap=overlap)
    for id in range(20):
        rig.submit(id, [id, 3, 5, *range(id)], 4 + id)
    rig.finish()
    for id in range(20):
        assert rig.replies[id] == rig.alone([id, 3, 5, *range(id)], 4 + id)
        assert rig.reason(id) == ("stop" if END in rig.replies[id] else "length")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", [{"overlap": True}, {"guesses": 3}, {"overlap": True, "slots": 110}], ids=str)
def test_200_requests_say_what_each_says_alone(mode: dict[str, Any], seed: int) -> None:
    """Random arrivals, lengths, shared prefixes, priorities and aborts; seeds and guesses among them."""
    chance, rig = random.Random(seed), Rig(**mode)
    prefixes = [[chance.randrange(1, 40) for _ in range(chance.randrange(3, 30))] for _ in range(6)]
    prompts, most, warm = {}, {}, dict[int, SamplingCode]()
    waiting, aborted = list(range(200)), set[int]()
    while waiting or not rig.scheduler.idle:
        for _ in range(chance.choice([0, 0, 1, 2, 5])):
            if waiting:
                id = waiting.pop(0)
                prompts[id] = [
                    *chance.choice(prefixes),
                    *(chance.randrange(1, 40) for _ in range(chance.randrange(1, 20))),
                ]
                most[id] = chance.randrange(1, 30)
                if id % 5 == 4:
                    warm[id] = SamplingCode.of(Sampling(temperature=1.1, top_p=0.95, seed=id))
                rig.submit(
                    id, prompts[id], most[id], batch=chance.random() < 0.3, tenant=chance.choice("ab"),
                    sampling=warm.get(id, GREEDY),
                )  # fmt: skip
        if chance.random() < 0.1 and prompts:
            victim = chance.choice(list(prompts))
            aborted.add(victim)
            rig.core.put(Abort(victim))
        rig.core.turn()
    rig.scheduler.check()
    assert len(rig.ends) == 200
    for id, prompt in prompts.items():
        said = rig.replies.get(id, [])
        whole = drawn_alone(prompt, most[id], warm[id]) if id in warm else rig.alone(prompt, most[id])
        assert said == whole[: len(said)], id
        assert rig.reason(id) == "abort" or said == whole
        assert rig.reason(id) != "abort" or id in aborted
    stats = rig.scheduler.stats()
    assert stats.held == stats.running == stats.waiting == 0, "no page is lost"
    assert stats.hit > 500
    if mode.get("slots"):
        assert stats.preemptions > 0


def drawn_alone(prompt: Sequence[int], most: int, code: SamplingCode) -> list[int]:
    rig = Rig()
    rig.submit(0, prompt, most, sampling=code)
    rig.finish()
    return rig.replies[0]


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlap"])
def test_an_abort_frees_its_pages_within_one_step(overlap: bool) -> None:
    rig = Rig(overlap=overlap)
    rig.submit(1, [*range(1, 40)] * 2, 12)
    for _ in range(5):
        rig.core.turn()
    assert rig.scheduler.stats().held
    rig.core.put(Abort(1))
    rig.core.turn()
    assert rig.reason(1) == "abort"
    assert not rig.scheduler.stats().held
    rig.core.put(Abort(1))
    rig.core.put(Abort(99))
    rig.finish()


def test_what_can_never_fit_is_refused_with_the_reason() -> None:
    rig = Rig()
    rig.submit(1, range(1, 39), 80)
    rig.submit(2, [1, 2], 3)
    rig.finish()
    refused = rig.ends[1]
    assert isinstance(refused, Failure)
    assert refused.kind == "Refused" and "context of 90" in refused.message
    assert rig.replies[2] == rig.alone([1, 2], 3)


def test_a_token_that_does_not_exist_is_refused_alone() -> None:
    rig = Rig()
    rig.submit(1, [1, 40], 3)
    rig.submit(2, [1, 39], 3)
    rig.finish()
    refused = rig.ends[1]
    assert isinstance(refused, Failure) and refused.kind == "SettingInvalid"
    assert rig.replies[2] == rig.alone([1, 39], 3)


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlap"])
def test_a_step_that_raises_ends_its_requests_and_the_next_ones_are_served(overlap: bool) -> None:
    rig = Rig(overlap=overlap)
    for id in (1, 2):
        rig.submit(id, [id, 2, 3], 20)
    for _ in range(3):
        rig.core.turn()
    rig.model.fails = True
    for _ in range(3):
        rig.core.turn()
    assert [rig.reason(1), rig.reason(2)] == ["error", "error"]
    end = rig.ends[1]
    assert isinstance(end, End) and "on fire" in end.message
    assert rig.reports[-1].beat.failures == 1
    rig.model.fails = False
    rig.submit(3, [1, 2, 3], 20)
    rig.finish()
    assert rig.replies[3] == rig.alone([1, 2, 3], 20), "nothing of the broken step is in the cache"
    assert rig.reports[-1].beat.failures == 0


def test_probes_and_logprobs_ride_beside() -> None:
    rig = Rig()
    rig.submit(1, [5, 6], 1, probe=(3, 9))
    rig.submit(2, [5, 6, 7], 4, sampling=SamplingCode.of(Sampling(logprobs=2)))
    rig.finish()
    shares = torch.log_softmax(rig.model.after([5, 6]), -1)
    assert rig.probed[1] == pytest.approx(shares[[3, 9]].tolist())
    tokens = [5, 6, 7]
    for token, (logprob, top) in zip(rig.replies[2], rig.logprobs[2], strict=True):
        shares = torch.log_softmax(rig.model.after(tokens), -1)
        assert logprob == pytest.approx(float(shares[token]))
        assert [one for one, _ in top] == shares.topk(2).indices.tolist()
        tokens.append(token)


def test_a_prefix_that_was_warmed_is_kept_and_found() -> None:
    rig, prefix = Rig(slots=120), tuple(range(1, 31))
    rig.submit(1, prefix, 1)
    rig.core.put(Pin(prefix))
    rig.finish()
    rig.core.put(Pin(prefix))
    for id in range(2, 10):
        rig.submit(id, [id, *range(10, 40)], 30)
    rig.finish()
    rig.submit(50, [*prefix, 7], 3)
    rig.finish()
    end = rig.ends[50]
    assert isinstance(end, End) and end.cached == len(prefix)


class Alternating:
    """A grammar of odd and even tokens in turn; where `forces` it also forces an 8 behind each 7."""

    def __init__(self, forces: bool = False) -> None:
        self.said: list[int] = []
        self.forces, self.closed = forces, False

    def compile(self, kind: str, source: str) -> Any:
        if source == "bad":
            raise EngineError("there is no such grammar", mend="write another")
        return self

    def close(self) -> None:
        self.closed = True

    def matcher(self) -> Alternating:
        return Alternating(self.forces)

    def fill(self, row: torch.Tensor) -> None:
        if self.forces and self.said and self.said[-1] == 7:
            row[:] = 0
            row[0] = 1 << 8
        else:
            row[:] = 0x55555555 if len(self.said) % 2 else -0x55555556

    def accept(self, token: int) -> bool:
        right = token % 2 != len(self.said) % 2
        self.said.append(token)
        return right

    def forced(self) -> list[int]:
        return [8] if self.forces and self.said and self.said[-1] == 7 else []


def held(rig: Rig, prompt: list[int], most: int, forces: bool) -> list[int]:
    said: list[int] = []
    while len(said) < most:
        scores = rig.model.after([*prompt, *said]).clone()
        scores[(torch.arange(40) % 2) == len(said) % 2] = -torch.inf
        said.append(8 if forces and said and said[-1] == 7 else int(scores.argmax()))
        if said[-1] == END:
            break
    return said


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlap"])
@pytest.mark.parametrize("jump", [False, True], ids=["asks", "jumps"])
def test_a_grammar_holds_its_own_reply(overlap: bool, jump: bool) -> None:
    rig = Rig(overlap=overlap, jump=jump, grammars=Alternating(forces=True))
    for id in range(1, 12):
        rig.submit(id, [id, 4], 25, grammar=("any", "alternating"), constrained=True)
        rig.submit(100 + id, [id, 4], 25)
    rig.submit(99, [1], 5, grammar=("any", "bad"), constrained=True)
    wait_for_compiled(rig)
    rig.finish()
    for id in range(1, 12):
        assert rig.replies[id] == held(rig, [id, 4], 25, True)
        assert rig.replies[100 + id] == rig.alone([id, 4], 25)
    assert any(7 in rig.replies[id] for id in range(1, 12)), "something was forced"
    refused = rig.ends[99]
    assert isinstance(refused, Failure) and refused.message == "there is no such grammar"


def wait_for_compiled(rig: Rig) -> None:
    rig.core.turn()
    while rig.core._compiling:
        rig.core.turn()


class Breaking(Alternating):
    """A grammar that raises at one of its calls, after some tokens."""

    def __init__(self, call: str, error: Exception, after: int) -> None:
        super().__init__()
        self.call, self.error, self.after = call, error, after

    def matcher(self) -> Breaking:
        return Breaking(self.call, self.error, self.after)

    def _perhaps(self, call: str) -> None:
        if call == self.call and len(self.said) >= self.after:
            raise self.error

    def fill(self, row: torch.Tensor) -> None:
        self._perhaps("fill")
        super().fill(row)

    def accept(self, token: int) -> bool:
        self._perhaps("accept")
        return super().accept(token)

    def forced(self) -> list[int]:
        self._perhaps("forced")
        return []


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlap"])
@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("call", ["fill", "accept", "forced"])
@pytest.mark.parametrize("error", [GrammarStuck("no way on"), RuntimeError("std::bad_alloc")], ids=["stuck", "breaks"])
def test_a_grammar_that_raises_ends_its_own_request_alone(
    call: str, error: Exception, after: int, overlap: bool
) -> None:
    rig = Rig(overlap=overlap, jump=True, grammars=Breaking(call, error, after))
    for id in range(1, 5):
        rig.submit(id, [id, 4], 25, grammar=("any", "breaking"), constrained=True, ends=frozenset())
        rig.submit(100 + id, [id, 4], 25)
    wait_for_compiled(rig)
    rig.finish()
    for id in range(1, 5):
        failure = rig.ends[id]
        assert isinstance(failure, Failure)
        assert failure.kind == ("GrammarStuck" if isinstance(error, GrammarStuck) else "EngineError")
        assert rig.replies[100 + id] == rig.alone([id, 4], 25)
    assert rig.reports[-1].beat.failures == 0
    assert rig.scheduler.stats().held == 0


class Slow(Alternating):
    """Compiles when it is let; what it was asked for, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.begun, self.let = threading.Semaphore(0), threading.Event()

    def compile(self, kind: str, source: str) -> Any:
        self.asked.append(source)
        self.begun.release()
        assert self.let.wait(10)
        return self


def test_who_leaves_while_grammars_compile_leaves_their_queue() -> None:
    grammars = Slow()
    rig = Rig(grammars=grammars)
    for id in range(1, 11):
        rig.submit(id, [id], 5, grammar=("any", f"grammar {id}"), constrained=True)
    rig.core.turn()
    for _ in range(COMPILERS):
        assert grammars.begun.acquire(timeout=10)
    for id in range(1, 11):
        rig.core.put(Abort(id))
    rig.submit(11, [11], 5, grammar=("any", "innocent"), constrained=True)
    rig.core.turn()
    grammars.let.set()
    wait_for_compiled(rig)
    rig.finish()
    assert grammars.asked[COMPILERS:] == ["innocent"]
    assert {rig.reason(id) for id in range(1, 11)} == {"abort"} and rig.replies[11] == held(rig, [11], 5, False)


def test_requests_whose_grammars_compile_count_as_waiting() -> None:
    grammars = Slow()
    rig = Rig(grammars=grammars, max_waiting=4)
    for id in range(1, 7):
        rig.submit(id, [id], 5, grammar=("any", f"grammar {id}"), constrained=True)
    rig.submit(7, [7], 5)
    rig.submit(8, [8], 5, tenant="another")
    rig.core.turn()
    assert {id: end.kind for id, end in rig.ends.items() if isinstance(end, Failure)} == dict.fromkeys(
        (5, 6, 7), "QueueFull"
    )
    grammars.let.set()
    wait_for_compiled(rig)
    rig.finish()
    assert {1, 2, 3, 4, 8} <= rig.replies.keys()


def test_a_loop_that_waits_for_grammars_alone_says_that_it_lives() -> None:
    grammars, heard = Slow(), threading.Semaphore(0)
    rig = Rig(grammars=grammars)
    rig.core._emit = lambda report: heard.release()
    thread = threading.Thread(target=rig.core.run)
    thread.start()
    try:
        rig.submit(1, [1], 5, grammar=("any", "slow"), constrained=True)
        for _ in range(3):
            assert heard.acquire(timeout=10)
    finally:
        grammars.let.set()
        rig.core.put(Close())
        thread.join(10)
    assert not thread.is_alive()


def test_the_end_of_the_loop_closes_what_compiles() -> None:
    grammars = Alternating()
    rig = Rig(grammars=grammars)
    rig.core.put(Close())
    rig.core.run()
    assert grammars.closed


def test_without_grammars_a_grammar_is_refused() -> None:
    rig = Rig()
    rig.submit(1, [1], 5, grammar=("regex", "a+"), constrained=True)
    rig.core.turn()
    refused = rig.ends[1]
    assert isinstance(refused, Failure) and refused.kind == "GrammarMissing"


def test_the_loop_waits_without_work_and_close_ends_what_is_open() -> None:
    rig = Rig()
    heard = threading.Event()
    hear = rig.hear

    def listen(report: Report) -> None:
        hear(report)
        heard.set()

    rig.core._emit = listen
    thread = threading.Thread(target=rig.core.run)
    thread.start()
    rig.submit(1, [1, 2], 5)
    assert heard.wait(10)
    rig.submit(2, [1, 2], 80, ends=frozenset())
    rig.core.put(Close())
    thread.join(10)
    assert not thread.is_alive()
    assert set(rig.ends) == {1, 2}


def test_the_log_tells_each_step_and_every_five_seconds_what_they_were(caplog: pytest.LogCaptureFixture) -> None:
    seconds = itertools.count()
    with caplog.at_level(logging.DEBUG, "engines.llm.core"):
        rig = Rig(clock=lambda: float(next(seconds)))
        rig.submit(1, range(1, 16), 4)
        rig.finish()
    steps = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert steps[0] == "step 1: 1 sequences, 10 tokens, graph no, 1000.00 ms"
    assert len(steps) == 5
    (summary, *_) = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert "of 1.0 sequences" in summary and "0 of 15 prompt tokens were cached; running 1" in summary


def test_a_loop_that_breaks_says_so_and_ends_all(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.submit(1, [1, 2], 5)

    def breaks() -> None:
        raise ValueError("no plan today")

    rig.scheduler.schedule = breaks  # type: ignore[method-assign,assignment]
    rig.core.run()
    assert rig.reason(1) == "error"
    assert "no plan today" in rig.reports[-1].beat.dead
