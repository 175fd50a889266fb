"""The model as a chainlet: streamed, chosen and remembered over a hop; errors are those of chains."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from chains import Text, chainlet, depends
from chains.dsl import graph
from chains.errors import ChainsError, InvalidValue, ModelError, Overloaded, SettingError, StartError, Unavailable
from chains.runtime.inprocess import InProcess
from engines.llm import errors
from engines.llm.chainlet import LLM, translated
from engines.llm.config import EMBEDDING_NAME, ModelSource, Sampling
from engines.llm.engine import LLMEngine
from engines.llm.errors import EngineError, ModelMissing
from engines.llm.seam import FinishEvent, Message, TokenEvent


def chat_of(directory: Path, **settings: Any) -> type:
    @chainlet(entry=True)
    class Chat:
        llm: LLM = depends(LLM, model=str(directory), precision="fp32", **settings)

        async def ask(self, text: str, limit: int, n: int = 1) -> AsyncIterator[Text]:
            async for piece in self.llm.reply([{"role": "user", "content": text}], {"max_tokens": limit, "n": n}):
                yield piece

        async def pick(self, text: str) -> str:
            return str(await self.llm.choose(text, ["a", "b"]))  # type: ignore[misc]

        async def learn(self, text: str) -> int:
            return await self.llm.prepare([text]) + await self.llm.remember(text)  # type: ignore[misc]

    return Chat


@pytest.mark.parametrize("process", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_reply_streams_and_ends_with_a_final_piece(tiny_directory: Path, process: bool) -> None:
    chain = graph.build(chat_of(tiny_directory, process=process))
    async with InProcess(chain) as runtime, runtime.open_call():
        pieces = [piece async for piece in runtime.entry.ask("Hi", 8)]
        assert [piece.final for piece in pieces[:-1]] == [False] * (len(pieces) - 1)
        assert (pieces[-1].final, pieces[-1].text) == (True, "")
        assert await runtime.entry.pick("a or b?") in ("a", "b")
        assert await runtime.entry.learn("a beginning") == 1 + len("a beginning")


async def test_a_hop_bears_what_it_asked_the_model_and_what_it_took(tiny_directory: Path) -> None:
    async with InProcess(graph.build(chat_of(tiny_directory, process=False))) as runtime, runtime.open_call() as call:
        _ = [piece async for piece in runtime.entry.ask("a secret", 8)]
        async for _ in runtime.entry.ask("another secret", 400):
            break
    record = runtime.recorder.find(call.id)
    assert record is not None
    whole, left = [hop.notes for hop in record.hops if hop.label == "LLM.reply"]
    assert whole["gen_ai.operation.name"] == "chat" and whole["gen_ai.provider.name"] == "chains"
    assert whole["gen_ai.request.model"] == whole["gen_ai.response.model"] == tiny_directory.name
    assert (whole["gen_ai.request.max_tokens"], whole["gen_ai.request.temperature"]) == (8, 0.0)
    assert int(whole["gen_ai.usage.input_tokens"]) > 8 >= int(whole["gen_ai.usage.output_tokens"]) > 0  # type: ignore[arg-type]
    assert whole["gen_ai.response.finish_reasons"] in (("stop",), ("length",))
    assert 0 < float(whole["chains.ttft_ms"]) < 60_000  # type: ignore[arg-type]
    assert "chains.cached_tokens" in whole
    assert int(left["gen_ai.usage.output_tokens"]) > 0, "as far as it got"  # type: ignore[arg-type]
    assert "secret" not in str([whole, left])


async def test_a_consumer_that_leaves_frees_the_model(tiny_directory: Path) -> None:
    async with InProcess(graph.build(chat_of(tiny_directory, process=False))) as runtime, runtime.open_call():
        async for _ in runtime.entry.ask("Go on", 400):
            break
        assert [piece async for piece in runtime.entry.ask("Hi", 2)][-1].final


async def test_errors_are_those_of_chains(tiny_directory: Path) -> None:
    async with InProcess(graph.build(chat_of(tiny_directory, process=False))) as runtime, runtime.open_call():
        with pytest.raises(SettingError, match="max_tokens"):
            _ = [piece async for piece in runtime.entry.ask("Hi", 0)]
        with pytest.raises(SettingError, match="n is 2"):
            _ = [piece async for piece in runtime.entry.ask("Hi", 3, 2)]
        with pytest.raises(InvalidValue, match="context"):
            _ = [piece async for piece in runtime.entry.ask("x" * 600, 5)]


def test_every_error_of_the_engine_has_one_of_chains() -> None:
    kinds = {
        errors.ModelMissing: ModelError, errors.ModelBroken: ModelError, errors.SettingInvalid: SettingError,
        errors.PromptTooLong: InvalidValue, errors.QueueFull: Overloaded, errors.RequestFailed: Unavailable,
    }  # fmt: skip
    for theirs, ours in kinds.items():
        found = translated(theirs("what", mend="do"))
        assert type(found) is ours and str(found) == "what; do"
    assert type(translated(EngineError("what"))) is ChainsError


async def test_a_missing_model_stops_the_start_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises((StartError, ModelError), match="there is no model"):
        async with InProcess(graph.build(chat_of(tmp_path / "nowhere"))):
            pass


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(SettingError, match="precision"):
        LLM(precison="int8")


SERVING = """
import asyncio, sys
from pathlib import Path
from chains import chainlet, depends, remote
from chains.dsl import graph
from chains.runtime.inprocess import InProcess
from engines.llm.chainlet import LLM, Embeddings

@chainlet(entry=True)
class Chat:
    llm: LLM = depends(LLM, model=sys.argv[1], process=sys.argv[3] == "process")
    embeddings: Embeddings = depends(Embeddings, model=sys.argv[2])

    async def run(self) -> list[str]:
        pieces = self.llm.reply([{"role": "user", "content": "Hi"}], {"max_tokens": 4})
        text = "".join([piece.text async for piece in pieces])
        picked = await remote(self.llm.choose("a or b?", ["a", "b"]))
        vectors = await remote(self.embeddings.embed(["Hello."]))
        return [text, picked, str(vectors.shape)]

async def main() -> None:
    async with InProcess(graph.build(Chat)) as runtime, runtime.open_call():
        print(await runtime.entry.run())

if __name__ == "__main__":
    asyncio.run(main())
    assert "engines.llm.embedding" in sys.modules and "transformers" not in sys.modules
"""


def test_the_packaged_mixture_repeats_the_fact_it_was_given(packaged: LLMEngine) -> None:
    say = "A dental cleaning costs 80 dollars."
    prompt: list[Message] = [
        {"role": "system", "content": "You are the receptionist. Answer the caller with the fact."},
        {"role": "user", "content": f"Caller: What is the price of a cleaning?\nFact: {say}"},
        {"role": "assistant", "content": say},
        {"role": "user", "content": f"Caller: How much to get my teeth cleaned?\nFact: {say}"},
    ]
    events = list(packaged.generate(prompt, Sampling(max_tokens=30)))
    assert "80" in "".join(event.text for event in events if isinstance(event, TokenEvent))
    assert isinstance(events[-1], FinishEvent) and events[-1].reason == "stop"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["thread", "process"])
def test_serving_never_imports_transformers(tiny_directory: Path, tmp_path: Path, where: str) -> None:
    try:
        encoder = ModelSource.resolve("default", packaged=EMBEDDING_NAME).directory
    except ModelMissing as missing:
        pytest.skip(str(missing))
    trap = tmp_path / "trap" / "transformers"  # whichever process imports it leaves a note and fails
    trap.mkdir(parents=True)
    (trap / "__init__.py").write_text(
        f"open({str(tmp_path / 'imported')!r}, 'w').close()\nraise ImportError('a trap')\n"
    )
    script = tmp_path / "serving.py"
    script.write_text(SERVING)
    path = os.pathsep.join([str(trap.parent), str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(script), str(tiny_directory), str(encoder), where],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "(1, 384)" in done.stdout
    assert not (tmp_path / "imported").exists()
