"""The model as a chainlet: streamed, chosen and remembered over a hop; errors are those of chains."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chains import Text, chainlet, depends
from chains.dsl import graph
from chains.errors import InvalidValue, ModelError, SettingError, StartError
from chains.runtime.inprocess import InProcess
from engines.llm.chainlet import LLM


def chat_of(directory: Path) -> type:
    @chainlet(entry=True)
    class Chat:
        llm: LLM = depends(LLM, model=str(directory), precision="fp32")

        async def ask(self, text: str, limit: int) -> AsyncIterator[Text]:
            async for piece in self.llm.reply([{"role": "user", "content": text}], {"max_tokens": limit}):  # type: ignore[attr-defined]
                yield piece

        async def pick(self, text: str) -> str:
            return str(await self.llm.choose(text, ["a", "b"]))  # type: ignore[misc]

    return Chat


async def test_a_reply_streams_and_ends_with_a_final_piece(tiny_directory: Path) -> None:
    async with InProcess(graph.build(chat_of(tiny_directory))) as runtime, runtime.open_call():
        pieces = [piece async for piece in runtime.entry.ask("Hi", 8)]
        assert [piece.final for piece in pieces[:-1]] == [False] * (len(pieces) - 1)
        assert (pieces[-1].final, pieces[-1].text) == (True, "")
        assert await runtime.entry.pick("a or b?") in ("a", "b")


async def test_a_consumer_that_leaves_frees_the_model(tiny_directory: Path) -> None:
    async with InProcess(graph.build(chat_of(tiny_directory))) as runtime, runtime.open_call():
        async for _ in runtime.entry.ask("Go on", 400):
            break
        assert [piece async for piece in runtime.entry.ask("Hi", 2)][-1].final


async def test_errors_are_those_of_chains(tiny_directory: Path) -> None:
    async with InProcess(graph.build(chat_of(tiny_directory))) as runtime, runtime.open_call():
        with pytest.raises(SettingError, match="max_tokens"):
            _ = [piece async for piece in runtime.entry.ask("Hi", 0)]
        with pytest.raises(InvalidValue, match="context"):
            _ = [piece async for piece in runtime.entry.ask("x" * 600, 5)]


async def test_a_missing_model_stops_the_start_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises((StartError, ModelError), match="there is no model"):
        async with InProcess(graph.build(chat_of(tmp_path / "nowhere"))):
            pass


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(SettingError, match="precision"):
        LLM(precison="int8")
