"""The process that serves a model: it loads beside an open port, answers, and lets replies finish when it is ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from benchmarks import gsm8k
from chains.cli.main import main
from engines.llm.commands import served_name
from engines.llm.config import EngineSettings, ModelSource
from engines.llm.engine import LLMEngine
from engines.llm.errors import ModelMissing
from engines.llm.serving import is_loopback, listen
from tests.engines.llm.served import Site, serving, until

HELLO = [{"role": "user", "content": "hello there"}]


@contextlib.contextmanager
def command(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`chains serve-llm` on a free port, and the URL it listens on."""
    started = subprocess.Popen(
        [sys.executable, "-m", "chains.cli.main", "serve-llm", *options, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert started.stdout is not None
    try:
        line = started.stdout.readline()
        yield started, next((word.removesuffix("/health") for word in line.split() if word.endswith("/health")), line)
    finally:
        started.kill()
        started.wait()
        started.stdout.close()


def wait_for(url: str, seconds: float = 90.0) -> None:
    """Until the model is loaded; before that /health says so."""
    deadline = time.monotonic() + seconds
    with httpx.Client() as client:
        while (answer := client.get(f"{url}/health")).status_code != 200:
            assert answer.json()["status"] == "loading" and time.monotonic() < deadline


@pytest.mark.slow
def test_the_command_serves_and_lets_replies_finish(tiny_directory: Path) -> None:
    with command(str(tiny_directory), "--name", "tiny", "--precision", "fp32", "--threads", "1") as (started, url):
        wait_for(url)
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 200, "extra_body": {"ignore_eos": True}}
        stream = client.chat.completions.create(stream=True, **body)  # type: ignore[call-overload]
        assert next(iter(stream)).choices[0].delta.role == "assistant"
        started.send_signal(signal.SIGTERM)
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length", "it was let finish"
        assert started.wait(30) == 0
        assert started.stdout is not None
        told = started.stdout.read()
        assert f"serving {url}/v1" in told and "curl" in told and "cache" in told
        assert "hello there" not in told, "no prompt is shown or logged"
        client.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_end_while_the_model_loads_is_told_in_one_line(tiny_directory: Path, number: signal.Signals) -> None:
    with command(str(tiny_directory), "--name", "tiny") as (started, url):
        assert httpx.get(f"{url}/health").json()["status"] == "loading"
        started.send_signal(number)
        told, _ = started.communicate(timeout=60)
        assert started.returncode == 0
        assert "Traceback" not in told and told.strip().splitlines()[-1] == "stopped before the model was loaded"


@pytest.mark.parametrize(
    ("options", "found", "mend"),
    [
        (["/nowhere"], "there is no model '/nowhere'", "a directory"),
        (["default", "--host", "0.0.0.0"], "0.0.0.0 is reached from other machines", "--api-key-env"),
        (["default", "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY is empty", "export"),
        (["default", "--precision", "fp3"], "there is no precision 'fp3'", "bf16"),
    ],
)
def test_what_cannot_be_served_is_told(
    options: list[str], found: str, mend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve-llm", *options, "--port", "0"]) == 2
    told = capsys.readouterr().err
    assert found in told and mend in told


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as taken:
        assert main(["serve-llm", "default", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("default", "default"),
        ("default-moe", "default-moe"),
        ("./Llama-3.1-8B-Instruct", "Llama-3.1-8B-Instruct"),
        ("models/Qwen2.5-0.5B/", "Qwen2.5-0.5B"),
        ("/models/small-v1.5.gguf", "small-v1.5"),
        (".", "here.v2"),
    ],
)
def test_a_model_is_named_as_its_files_are(
    model: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here.v2").mkdir()
    monkeypatch.chdir(tmp_path / "here.v2")
    assert served_name(model) == name


def test_what_is_reached_from_this_machine_alone() -> None:
    assert is_loopback("127.0.0.1") and is_loopback("localhost") and is_loopback("::1")
    assert not is_loopback("0.0.0.0") and not is_loopback("example.org") and not is_loopback("::")


@pytest.fixture
async def real(tiny_directory: Path) -> AsyncIterator[tuple[Site, LLMEngine]]:
    """The engine itself behind the server, with a tiny random model."""
    settings = EngineSettings(precision="fp32", threads=1, max_running=4, process=False)
    engine = await asyncio.to_thread(LLMEngine.load, tiny_directory, settings)
    try:
        async with serving(engine) as site:
            yield site, engine
    finally:
        engine.close()


async def test_the_engine_behind_the_server(real: tuple[Site, LLMEngine]) -> None:
    site, _ = real
    body = {"messages": HELLO, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    first, again = [(await site.ask(**body)).json() for _ in range(2)]
    assert first["choices"][0]["message"]["content"] == again["choices"][0]["message"]["content"]
    assert first["choices"][0]["finish_reason"] == "length" and first["usage"]["completion_tokens"] == 12
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == again["usage"]["prompt_tokens"] - 1
    scored = (await site.ask(**body, logprobs=True, top_logprobs=3, n=2)).json()["choices"]
    assert [len(choice["logprobs"]["content"]) for choice in scored] == [12, 12]
    assert all(one["logprob"] == one["top_logprobs"][0]["logprob"] for one in scored[0]["logprobs"]["content"])
    many = await asyncio.gather(*(site.ask(**body, seed=seed, stream=True) for seed in range(8)))
    assert {answer.text.count("[DONE]") for answer in many} == {1}
    long = await site.ask(messages=[{"role": "user", "content": "x" * 600}])
    assert long.status_code == 400 and "512 tokens" in long.json()["error"]["message"]
    assert "chains_llm_engine_running 0" in (await site.http.get("/metrics")).text
    assert (await site.http.get("/health")).json()["status"] == "ok"


async def test_a_client_that_leaves_frees_its_pages(real: tuple[Site, LLMEngine]) -> None:
    site, engine = real
    for stream in (True, False):
        body = json.dumps(
            {"model": "tiny", "messages": HELLO, "max_tokens": 400, "ignore_eos": True, "stream": stream}
        ).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await until(lambda: engine.stats().running == 1)
        writer.close()
        await until(lambda: site.served.running == 0)
        steps = engine._beat.step
        await until(lambda: engine.stats().running == 0)
        assert engine._beat.step <= steps + 2, "within a step of hearing of it"


async def test_replies_held_to_a_grammar_on_the_engine(real: tuple[Site, LLMEngine]) -> None:
    pytest.importorskip("xgrammar", reason="constrained output is the extra `grammar`")
    site, _ = real
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    answer = (await site.ask(response_format=wanted, max_tokens=100)).json()
    assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"name", "age"}
    assert answer["choices"][0]["finish_reason"] == "stop"
    bad = await site.ask(response_format={"type": "json_schema", "json_schema": {"schema": {"type": "frob"}}})
    assert bad.status_code == 400 and bad.json()["error"]["code"] == "invalid_grammar"
    assert 'Unsupported type "frob"' in bad.json()["error"]["message"]
    choice = (await site.ask(structured_outputs={"choice": ["yes", "no"]}, n=3)).json()
    assert {one["message"]["content"] for one in choice["choices"]} <= {"yes", "no"}


@pytest.mark.parametrize(
    "structured",
    [
        {"grammar": "root ::= root"},
        {"grammar": 'root ::= "a" root'},
        {"grammar": 'root ::= ("y" | "n") dead | dead "x"\ndead ::= dead | [a-z] dead'},
        {"json": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}},
        {"json": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}},
        {
            "grammar": 'root ::= [^a] dead | "a"\ndead ::= dead',
            "sure": False,
        },  # the way that leads nowhere may be taken
    ],
)
async def test_a_grammar_that_never_ends_is_a_fault_of_its_own_request(
    real: tuple[Site, LLMEngine], structured: dict[str, Any]
) -> None:
    pytest.importorskip("xgrammar", reason="constrained output is the extra `grammar`")
    site, _ = real
    structured = dict(structured)
    sure = structured.pop("sure", True)
    beside, answer = await asyncio.gather(
        site.ask(max_tokens=20, ignore_eos=True), site.ask(structured_outputs=structured, max_tokens=20, temperature=0)
    )
    assert answer.status_code == 400 or not sure
    if answer.status_code != 200:
        assert answer.json()["error"]["code"] == "invalid_grammar"
    assert beside.status_code == 200 and beside.json()["usage"]["completion_tokens"] == 20
    assert (await site.http.get("/health")).json()["status"] == "ok"


@pytest.mark.slow
async def test_jumping_forward_gives_the_same_reply(tiny_directory: Path) -> None:
    pytest.importorskip("xgrammar", reason="constrained output is the extra `grammar`")
    schema = json.dumps({"properties": {"first_name": {"enum": ["Ada", "Bob"]}, "is_known": {"type": "boolean"}},
                         "required": ["first_name", "is_known"], "type": "object"})  # fmt: skip
    told = []
    for jump in (False, True):
        settings = EngineSettings(precision="fp32", threads=1, max_running=2, process=False, jump_forward=jump)
        engine = await asyncio.to_thread(LLMEngine.load, tiny_directory, settings)
        try:
            async with serving(engine) as site:
                body = {"temperature": 0, "max_tokens": 100, "structured_outputs": {"json": json.loads(schema)}}
                told.append([(await site.ask(messages=[{"role": "user", "content": text}], **body)).json()["choices"]
                             for text in ("a", "hello", "who is it")])  # fmt: skip
        finally:
            engine.close()
    assert told[0] == told[1]
    assert set(json.loads(told[0][0][0]["message"]["content"])) == {"first_name", "is_known"}


@pytest.mark.slow
async def test_the_packaged_model_is_served_and_asked_problems(tmp_path: Path) -> None:
    try:
        ModelSource.resolve("default")
    except ModelMissing as missing:
        pytest.skip(str(missing))
    engine = await asyncio.to_thread(LLMEngine.load, "default", EngineSettings(threads=2))
    try:
        async with serving(engine) as site:
            answer = await site.client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "What is the capital of France?"}], temperature=0,
                max_tokens=20,
            )  # fmt: skip
            assert "Paris" in (answer.choices[0].message.content or "")
            argv = ["--quick", "--url", f"{site.url}/v1", "--model", "tiny", "--shots", "2", "--max-tokens", "60"]
            rows = tmp_path / "rows.json"
            assert await asyncio.to_thread(gsm8k.main, [*argv, "--json", str(rows)]) == 0
            found = {row["name"]: row["ours"] for row in json.loads(rows.read_text())}
            assert found["no number share"] < 0.5 and found["all together tokens/s"] > 0
            assert "chains_llm_engine_up 1" in (await site.http.get("/metrics")).text
    finally:
        engine.close()
