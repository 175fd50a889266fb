"""The front on a tiny real model: text, stops, several replies, choices, callers that leave, engines that die."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engines.llm.batch import BatchPlan, Row
from engines.llm.config import EngineSettings, Sampling
from engines.llm.engine import LLMEngine
from engines.llm.errors import EngineError, PromptTooLong, SettingInvalid
from engines.llm.runner import Runner, RunnerSettings
from engines.llm.seam import Event, FinishEvent, Prompt, TokenEvent
from engines.llm.sequence import GREEDY
from tests.chains.wire.hosted import eventually

SETTINGS = EngineSettings(
    device="cpu", precision="fp32", cache_tokens=2000, max_running=8, token_budget=64, prefill_chunk=32, process=False
)
CHAT: Prompt = [{"role": "user", "content": "What is the weather like in Lisbon?"}]
TURNS: Prompt = [{"role": "user", "content": "yes?"}, {"role": "assistant", "content": "yes"}]


@pytest.fixture(scope="module")
def engine(tiny_directory: Path) -> Iterator[LLMEngine]:
    loaded = LLMEngine.load(tiny_directory, SETTINGS)
    yield loaded
    loaded.close()


@pytest.fixture
def fresh(tiny_directory: Path) -> Iterator[LLMEngine]:
    loaded = LLMEngine.load(tiny_directory, SETTINGS)
    yield loaded
    loaded.close()


def read(events: Sequence[Event], index: int = 0) -> tuple[str, list[int], FinishEvent]:
    """Text, tokens and end of one reply."""
    theirs = [event for event in events if event.index == index]
    pieces = [event for event in theirs if isinstance(event, TokenEvent)]
    (end,) = [event for event in theirs if isinstance(event, FinishEvent)]
    assert theirs[-1] is end
    return "".join(piece.text for piece in pieces), [token for piece in pieces for token in piece.tokens], end


def reply(engine: LLMEngine, prompt: Prompt, **settings: object) -> tuple[str, list[int], FinishEvent]:
    return read(list(engine.generate(prompt, Sampling.read(settings))))


def test_text_is_the_tokens_decoded_and_usage_counts_them(engine: LLMEngine) -> None:
    text, tokens, end = reply(engine, CHAT, max_tokens=30, ignore_end=True)
    assert text == engine.tokenizer.decode(tokens)
    assert (end.reason, end.usage.completion, len(tokens)) == ("length", 30, 30)
    assert end.usage.prompt == len(engine.tokens(CHAT))


def test_a_prefix_that_was_remembered_changes_nothing(fresh: LLMEngine) -> None:
    cold = reply(fresh, CHAT, max_tokens=40)
    warm = reply(fresh, CHAT, max_tokens=40)
    assert warm[:2] == cold[:2]
    assert cold[2].usage.cached == 0
    assert warm[2].usage.cached == warm[2].usage.prompt - 1


def test_a_stop_string_ends_the_text_before_it(engine: LLMEngine) -> None:
    whole, _, _ = reply(engine, CHAT, max_tokens=60, ignore_end=True)
    middle = len(whole) // 2
    stop = whole[middle : middle + 3]
    text, _, end = reply(engine, CHAT, max_tokens=60, ignore_end=True, stop=(stop,))
    assert text == whole[: whole.index(stop)]
    assert end.reason == "stop"
    assert end.usage.completion < 60
    told, _, _ = reply(engine, CHAT, max_tokens=60, ignore_end=True, stop=(stop,), include_stop=True)
    assert told == text + stop


def test_a_stop_token_ends_the_reply_unseen(engine: LLMEngine) -> None:
    _, tokens, _ = reply(engine, CHAT, max_tokens=20, ignore_end=True)
    cut = tokens.index(tokens[7])
    _, said, end = reply(engine, CHAT, max_tokens=20, ignore_end=True, stop_ids=(tokens[7],))
    assert (said, end.reason) == (tokens[:cut], "stop")


def test_several_replies_share_the_prompt_and_are_each_reproducible(fresh: LLMEngine) -> None:
    settings = {"max_tokens": 12, "temperature": 1.0, "seed": 9, "ignore_end": True}
    events = list(fresh.generate(CHAT, Sampling(n=3, **settings)))  # type: ignore[arg-type]
    replies = [read(events, index) for index in range(3)]
    assert len({tuple(tokens) for _, tokens, _ in replies}) == 3, "each draws for itself"
    assert [end.usage.cached for *_, end in replies[1:]] == [replies[0][2].usage.prompt - 1] * 2
    assert read(list(fresh.generate(CHAT, Sampling(**settings))))[1] == replies[0][1]  # type: ignore[arg-type]


def test_logprobs_come_with_their_tokens(engine: LLMEngine) -> None:
    events = list(engine.generate(CHAT, Sampling(max_tokens=6, logprobs=2, ignore_end=True)))
    told = [one for event in events if isinstance(event, TokenEvent) for one in event.logprobs]
    assert [one.token for one in told] == read(events)[1]
    assert all(one.top[0] == (one.token, one.logprob) and len(one.top) == 2 for one in told), "greedy: the likeliest"


def test_what_is_the_callers_fault_is_raised(engine: LLMEngine) -> None:
    with pytest.raises(PromptTooLong, match="context of 512"):
        next(engine.generate("x" * 600))
    with pytest.raises(PromptTooLong):
        next(engine.generate("x", Sampling(max_tokens=2000)))
    with pytest.raises(SettingInvalid, match="empty"):
        next(engine.generate(""))
    with pytest.raises(SettingInvalid, match="no token 9999"):
        next(engine.generate([1, 9999]))
    assert reply(engine, CHAT, max_tokens=2)[2].reason in ("length", "stop"), "and the engine goes on"


def test_more_replies_than_may_ever_wait_are_the_callers_fault(tiny_directory: Path) -> None:
    engine = LLMEngine.load(tiny_directory, replace(SETTINGS, max_waiting=3, max_waiting_all=2))
    try:
        with pytest.raises(SettingInvalid, match="3 replies at once are more than the 2 requests that may wait"):
            next(engine.generate(CHAT, Sampling(n=3, max_tokens=1)))
        with pytest.raises(SettingInvalid, match="places where choices part"):
            engine.score(CHAT, ["a", "ab", "abc", "abcd", "abcde"])
        assert len(list(engine.generate(CHAT, Sampling(n=2, max_tokens=1)))) >= 2
    finally:
        engine.close()


def test_a_cancel_and_a_closed_iterator_free_their_pages(fresh: LLMEngine) -> None:
    leave = threading.Event()
    said = []
    for event in fresh.generate(CHAT, Sampling(max_tokens=400, ignore_end=True), leave.is_set):
        said.append(event)
        leave.set()
    assert isinstance(said[-1], FinishEvent) and said[-1].reason == "abort"
    going = fresh.generate(CHAT, Sampling(max_tokens=400, ignore_end=True))
    next(going)
    going.close()
    reply(fresh, "something else", max_tokens=1)  # a step behind the abort
    stats = fresh.stats()
    assert (stats.running, stats.waiting, stats.held) == (0, 0, 0)


def test_many_threads_are_served_as_one(engine: LLMEngine) -> None:
    prompts = [f"{'the same beginning ' * (number % 3)}and number {number}" for number in range(12)]
    alone = [reply(engine, prompt, max_tokens=15, ignore_end=True)[1] for prompt in prompts]
    found: dict[int, list[int]] = {}

    def ask(number: int) -> None:
        found[number] = reply(engine, prompts[number], max_tokens=15, ignore_end=True)[1]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(12)] == alone


async def test_streams_of_an_event_loop(engine: LLMEngine) -> None:
    async def collect(prompt: str) -> list[int]:
        sampling = Sampling(max_tokens=10, ignore_end=True)
        return read([event async for event in engine.stream(prompt, sampling)])[1]

    replies = await asyncio.gather(*(collect(f"prompt {number}") for number in range(8)))
    assert replies[3] == reply(engine, "prompt 3", max_tokens=10, ignore_end=True)[1]


async def test_a_cancelled_task_ends_its_request(engine: LLMEngine) -> None:
    begun = asyncio.Event()

    async def listen() -> None:
        async for _ in engine.stream(CHAT, Sampling(max_tokens=400, ignore_end=True)):
            begun.set()

    task = asyncio.create_task(listen())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: engine.stats().running == 0)
    assert engine.stats().held == 0


def test_choices_are_what_the_model_says_of_each(engine: LLMEngine) -> None:
    """One answer begins another, some share a beginning: only where they part does the model decide."""
    choices = ["yes", "yes please", "no", "never"]
    scores = engine.score(CHAT, choices)
    assert sum(scores.values()) == pytest.approx(1)
    prompt = engine.tokens(CHAT)
    end = next(token for token in reversed(engine.tokens(TURNS, reply=False)) if token in engine._ends)
    paths = {choice: [*engine.tokenizer.encode(choice, special=False), end] for choice in choices}
    for choice, path in paths.items():
        expected = 1.0
        for depth in range(len(path)):
            following = sorted({other[depth] for other in paths.values() if other[:depth] == path[:depth]})
            if len(following) > 1:
                shares = torch.log_softmax(logits(engine, [*prompt, *path[:depth]]), -1)[following].softmax(-1)
                expected *= float(shares[following.index(path[depth])])
        assert scores[choice] == pytest.approx(expected, rel=1e-3)
    same = engine.score(CHAT, choices, prior=CHAT)
    assert list(same.values()) == pytest.approx([0.25] * 4), "what it says anyway is divided out"
    with pytest.raises(SettingInvalid):
        engine.score(CHAT, ["one"])


def logits(engine: LLMEngine, tokens: list[int]) -> torch.Tensor:
    """By the engine's model, beside the engine."""
    model = engine._link._core._runner.model  # type: ignore[attr-defined]
    runner = Runner(model, RunnerSettings(len(tokens) + 1, 1, len(tokens)))
    row = Row(1, 0, len(tokens), tuple(tokens), tuple(range(1, len(tokens) + 1)), 1, True, (), tuple(GREEDY))
    return runner.forward(BatchPlan(1, (row,))).logits[0]


def test_warm_prefixes_are_cached_and_kept(fresh: LLMEngine) -> None:
    system: Prompt = [{"role": "system", "content": "You answer the phone of a clinic. " * 3}]
    warmed = fresh.warm(system)
    fresh.prepare([f"another prefix, number {number}" for number in range(5)]).result(30)
    for number in range(30):
        reply(fresh, f"{number} " * 40, max_tokens=2)
    messages: Prompt = [*system, {"role": "user", "content": "Hi"}]  # type: ignore[list-item,misc]
    assert reply(fresh, messages, max_tokens=2)[2].usage.cached >= warmed


class Silent:
    """A step loop that never says anything."""

    def __init__(self, engine: LLMEngine) -> None:
        self.facts = engine.facts

    def send(self, message: object) -> None:
        pass

    def close(self) -> None:
        pass


async def test_a_loop_that_hangs_shows_in_the_age_of_its_last_step(engine: LLMEngine) -> None:
    silent = LLMEngine(engine.tokenizer, lambda deliver, gone: Silent(engine), {})
    assert silent.age == 0
    waiting = asyncio.create_task(collected(silent))
    await eventually(lambda: silent.age > 0.05)
    silent.close()
    end = (await waiting)[-1]
    assert isinstance(end, FinishEvent) and (end.reason, end.message) == ("error", "the engine was closed")
    assert silent.age == 0 and not silent.alive
    assert engine.age == 0 and engine.alive


async def collected(engine: LLMEngine) -> list[Event]:
    return [event async for event in engine.stream(CHAT)]


def test_a_grammar_holds_its_reply_and_a_bad_one_fails_alone(engine: LLMEngine) -> None:
    pytest.importorskip("xgrammar")
    asked = Sampling(max_tokens=60)
    held, _, end = read(list(engine.generate(CHAT, asked, grammar=("choice", '["yes", "no", "maybe"]'))))
    assert held in ("yes", "no", "maybe")
    assert end.reason == "stop"
    digits, _, _ = read(
        list(engine.generate(CHAT, Sampling(max_tokens=9, temperature=1, seed=2), grammar=("regex", "[0-9]+")))
    )
    assert digits.isdigit()
    with pytest.raises(EngineError) as found:
        next(engine.generate(CHAT, asked, grammar=("json", "{not a schema")))
    assert type(found.value).__name__ == "GrammarInvalid"
    assert reply(engine, CHAT, max_tokens=2)[2].usage.completion


SCHEMA = (
    '{"type": "object", "properties": {"appointment_confirmed": {"enum": ["yes", "no"]}, "telephone": {"type": '
    '"string", "pattern": "^[0-9]{4}$"}}, "required": ["appointment_confirmed", "telephone"], '
    '"additionalProperties": false}'
)


def test_jumping_over_what_is_forced_changes_no_token(engine: LLMEngine, tiny_directory: Path) -> None:
    pytest.importorskip("xgrammar")
    jumping = LLMEngine.load(tiny_directory, replace(SETTINGS, jump_forward=True))
    try:
        asked, before = Sampling(max_tokens=120), jumping.steps
        asking = engine.steps
        one = read(list(engine.generate(CHAT, asked, grammar=("json", SCHEMA))))
        other = read(list(jumping.generate(CHAT, asked, grammar=("json", SCHEMA))))
        assert other[:2] == one[:2]
        assert set(json.loads(other[0])) == {"appointment_confirmed", "telephone"}
        assert jumping.steps - before < (engine.steps - asking) / 2, "most of it is forced"
    finally:
        jumping.close()
