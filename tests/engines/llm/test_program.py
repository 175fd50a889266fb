"""Programs around a model: what is said, written and chosen adds up to one conversation; forks share its beginning."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from chains import chainlet, depends
from chains.dsl import graph
from chains.runtime.inprocess import InProcess
from engines.llm.chainlet import LLM
from engines.llm.config import Sampling
from engines.llm.engine import LLMEngine
from engines.llm.errors import RequestFailed, ResultInvalid, SettingInvalid
from engines.llm.messages import Abort
from engines.llm.program import ChainletModel, EngineModel, Talk, join
from engines.llm.seam import FinishEvent, Prompt


def written(engine: LLMEngine, prompt: Prompt, **sampling: object) -> str:
    events = engine.generate(prompt, Sampling.read(sampling))
    return "".join(event.text for event in events if not isinstance(event, FinishEvent))


async def test_each_call_sees_what_was_said_written_and_chosen_before(cold: LLMEngine) -> None:
    talk = Talk(EngineModel(cold), "Caller: Hi.\nName:")
    first = await talk.gen(max_tokens=6)
    assert first == written(cold, "Caller: Hi.\nName:", max_tokens=6)
    talk.say("\nDay:")
    day = await talk.gen(Literal["Monday", "Friday"])  # type: ignore[arg-type]
    scores = cold.score(f"Caller: Hi.\nName:{first}\nDay:", ["Monday", "Friday"])
    assert day == max(scores, key=lambda choice: scores[choice])
    assert talk.prompt == f"Caller: Hi.\nName:{first}\nDay:{day}"
    assert await talk.gen(max_tokens=4) == written(cold, f"Caller: Hi.\nName:{first}\nDay:{day}", max_tokens=4)


async def test_messages_take_turns(cold: LLMEngine) -> None:
    talk = Talk(EngineModel(cold), [{"role": "system", "content": "Be short."}], Sampling(max_tokens=5))
    talk.ask("Where?")
    said = await talk.gen()
    talk.ask("When?")
    assert talk.prompt == (
        {"role": "system", "content": "Be short."}, {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": said}, {"role": "user", "content": "When?"},
    )  # fmt: skip
    with pytest.raises(SettingInvalid, match="messages"):
        talk.say("x")
    with pytest.raises(SettingInvalid, match="one text"):
        Talk(EngineModel(cold), "x").ask("y")


async def test_forks_compute_their_beginning_once_and_go_their_own_ways(cold: LLMEngine) -> None:
    beginning = "A long beginning that both of them share, word for word. "
    talk = Talk(EngineModel(cold), beginning)
    ahead, aside = await talk.fork()
    ahead.say("One:")
    aside.say("Two:")
    events = list(cold.generate(ahead.prompt, Sampling(max_tokens=1)))
    assert isinstance(events[-1], FinishEvent) and events[-1].usage.cached >= len(beginning) - 1
    one, two = await join(ahead.gen(max_tokens=5), aside.choose(["a", "b"]))
    assert ahead.prompt == f"{beginning}One:{one}" and aside.prompt == f"{beginning}Two:{two}"
    assert talk.prompt == beginning


async def test_one_call_that_fails_ends_those_beside_it(cold: LLMEngine) -> None:
    ended = asyncio.Event()

    async def waiting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(SettingInvalid, match="choices"):
        await join(waiting(), Talk(EngineModel(cold), "x").choose(["a", "a"]))
    assert ended.is_set()


async def test_a_stream_belongs_to_the_conversation_once_it_was_read(cold: LLMEngine) -> None:
    talk = Talk(EngineModel(cold), "Go on: ")
    pieces = [piece async for piece in talk.stream(max_tokens=12)]
    assert talk.prompt == "Go on: " + "".join(pieces) and len(pieces) > 1
    async for _ in talk.stream(max_tokens=12):
        break
    assert talk.prompt == "Go on: " + "".join(pieces)


async def test_what_is_not_of_the_type_is_said(cold: LLMEngine) -> None:
    with pytest.raises(ResultInvalid, match="int"):
        await Talk(EngineModel(cold), "A number: ").gen(int, max_tokens=3)
    with pytest.raises(SettingInvalid, match="max_token;"):
        await Talk(EngineModel(cold), "x").gen(max_token=3)


async def test_a_reply_that_is_cut_short_is_no_reply(cold: LLMEngine) -> None:
    for model in (EngineModel(cold), EngineModel(Stepped(cold))):  # type: ignore[arg-type]
        talk = Talk(model, "Go on: ")
        pieces = talk.stream(max_tokens=400, ignore_end=True)
        await anext(pieces)
        if isinstance(model.engine, Stepped):
            await asyncio.to_thread(cold.close)
        else:
            cold._link._core.put(Abort(next(cold._ids) - 1))  # type: ignore[attr-defined]
        with pytest.raises(RequestFailed, match="cut short"):
            async for _ in pieces:
                pass
        assert talk.prompt == "Go on: "


class Stepped:
    """The engine for threads alone."""

    def __init__(self, engine: LLMEngine) -> None:
        self.generate = engine.generate


async def test_a_conversation_goes_on_in_one_way(cold: LLMEngine) -> None:
    with pytest.raises(SettingInvalid, match="n is 2"):
        await Talk(EngineModel(cold), "x").gen(n=2)
    with pytest.raises(SettingInvalid, match="n is 2"):
        await Talk(EngineModel(cold), "x", Sampling(n=2)).gen()


async def test_a_literal_refuses_wrong_settings_and_takes_a_single_value(cold: LLMEngine) -> None:
    talk = Talk(EngineModel(cold), "x")
    for wrong in ({"maxtokens": 5}, {"max_tokens": 0}, {"stop": 5}):
        with pytest.raises(SettingInvalid, match=next(iter(wrong))):
            await talk.gen(Literal["a", "b"], **wrong)  # type: ignore[call-overload]
    assert await talk.gen(Literal["only"], max_tokens=5) == "only"  # type: ignore[call-overload]
    assert talk.prompt == "xonly"
    with pytest.raises(SettingInvalid, match="choices"):
        await talk.choose([])


@dataclass
class Booked:
    service: Literal["filling", "cleaning"]
    sure: bool


async def test_a_type_is_held_to_by_a_grammar_where_the_model_takes_one(cold: LLMEngine) -> None:
    pytest.importorskip("xgrammar")
    talk = Talk(EngineModel(cold, constrained=True), "The booking: ")
    booked = await talk.gen(Booked, max_tokens=100)
    assert booked.service in ("filling", "cleaning") and isinstance(booked.sure, bool)
    assert str(talk.prompt).startswith("The booking: {")


async def test_a_chainlet_is_a_model_like_any_other(tiny_directory: Path) -> None:
    pytest.importorskip("xgrammar")

    @chainlet(entry=True)
    class Chat:
        llm: LLM = depends(LLM, model=str(tiny_directory), precision="fp32", process=False)

        async def typed(self) -> Booked:
            return await Talk(ChainletModel(self.llm, constrained=True), "The booking: ").gen(Booked, max_tokens=100)

        async def ask(self, text: str) -> list[str]:
            talk = Talk(ChainletModel(self.llm), text)
            first = await talk.gen(max_tokens=4)
            return [first, await talk.choose(["a", "b"]), str(talk.prompt)]

    async with InProcess(graph.build(Chat)) as runtime, runtime.open_call():
        first, chosen, prompt = await runtime.entry.ask("Hi ")
        assert isinstance((await runtime.entry.typed()).sure, bool)
    assert prompt == f"Hi {first}{chosen}"
