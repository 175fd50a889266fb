"""The served model, asked by the official client and by hand, over a real socket."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import openai
import pytest

from engines.llm.errors import EngineError, GrammarInvalid, PromptTooLong, QueueFull
from tests.engines.llm.scripted import ScriptedEngine
from tests.engines.llm.served import Site, serving, until

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = 'Let me see. <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
async def site(engine: ScriptedEngine) -> AsyncIterator[Site]:
    async with serving(engine) as site:
        yield site


async def test_a_chat_is_answered(site: Site, engine: ScriptedEngine) -> None:
    reply = await site.client.chat.completions.create(model="tiny", messages=HELLO)
    assert reply.choices[0].message.content == engine.text
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None and reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens == len(engine.asked[0][0])
    assert reply.usage.prompt_tokens_details.cached_tokens == engine.cached
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + len(engine.tokenizer.encode(engine.text))


async def test_a_chat_streams_with_its_usage_at_the_end(site: Site, engine: ScriptedEngine) -> None:
    stream = await site.client.chat.completions.create(
        model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == engine.text
    assert len(chunks) > 4 and chunks[-2].choices[0].finish_reason == "stop"
    assert not chunks[-1].choices and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(engine.tokenizer.encode(engine.text))
    assert len({chunk.id for chunk in chunks}) == 1


async def test_text_comes_while_the_rest_is_not_there(site: Site, engine: ScriptedEngine) -> None:
    engine.hold_after = 2
    stream = await site.client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    first = [await anext(stream) for _ in range(2)]
    assert (first[1].choices[0].delta.content or "") and engine.text.startswith(first[1].choices[0].delta.content or "")
    engine.released.set()
    assert [chunk async for chunk in stream][-1].choices[0].finish_reason == "stop"


async def test_several_replies_to_one_prompt(site: Site, engine: ScriptedEngine) -> None:
    reply = await site.client.chat.completions.create(model="tiny", messages=HELLO, n=3, max_tokens=2)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert {choice.finish_reason for choice in reply.choices} == {"length"}
    assert reply.usage is not None and reply.usage.completion_tokens == 6
    assert reply.usage.prompt_tokens == len(engine.asked[0][0])
    chunks = [
        chunk
        async for chunk in await site.client.chat.completions.create(model="tiny", messages=HELLO, n=2, stream=True)
    ]
    for index in range(2):
        of_it = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert "".join(choice.delta.content or "" for choice in of_it) == engine.text
        assert of_it[-1].finish_reason == "stop"


async def test_settings_reach_the_engine(site: Site, engine: ScriptedEngine) -> None:
    await site.client.chat.completions.create(
        model="tiny",
        messages=[{"role": "developer", "content": "be brief"}, *HELLO],
        temperature=0.5,
        top_p=0.9,
        seed=-1,
        stop=["\n", "END"],
        max_completion_tokens=7,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        user="clinic",
        service_tier="flex",
        extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True, "stop_token_ids": [9]},
    )
    prompt, sampling, grammar, tenant, batch = engine.asked[0]
    assert engine.tokenizer.decode(prompt).startswith("[system] be brief[user] hello[assistant]")
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 5, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, -0.5, 1.1)
    assert (sampling.max_tokens, sampling.stop, sampling.stop_ids) == (7, ("\n", "END"), (9,))
    assert sampling.ignore_end and sampling.seed == 2**63 - 1
    assert (grammar, tenant, batch) == (None, "clinic", True)


async def test_without_a_limit_the_reply_may_fill_the_context(site: Site, engine: ScriptedEngine) -> None:
    await site.client.chat.completions.create(model="tiny", messages=HELLO)
    prompt, sampling, *_ = engine.asked[0]
    assert len(prompt) + sampling.max_tokens == engine.context


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_of_a_chat(site: Site, engine: ScriptedEngine, stream: bool) -> None:
    engine.text = "héllo 🙂"
    reply: Any = await site.client.chat.completions.create(
        model="tiny", messages=HELLO, logprobs=True, top_logprobs=2, stream=stream
    )
    if stream:
        scored = [
            one async for chunk in reply if chunk.choices[0].logprobs for one in chunk.choices[0].logprobs.content
        ]
    else:
        scored = reply.choices[0].logprobs.content
    assert bytes(byte for one in scored for byte in one.bytes).decode() == engine.text
    assert all(one.logprob == -0.5 and len(one.top_logprobs) == 2 for one in scored)


async def test_completions_of_several_prompts(site: Site, engine: ScriptedEngine) -> None:
    reply = await site.client.completions.create(model="tiny", prompt=["one", "two three"], n=2, logprobs=1)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in reply.choices} == {engine.text[: len(reply.choices[0].text)]}
    assert {asked[0] for asked in engine.asked} == {
        tuple(engine.tokenizer.encode(text)) for text in ("one", "two three")
    }
    assert engine.asked[0][1].max_tokens == 16
    scored = reply.choices[3].logprobs
    assert scored is not None and scored.tokens is not None and scored.text_offset is not None
    assert "".join(scored.tokens) == reply.choices[3].text and scored.text_offset[1] == len(scored.tokens[0])
    tokens = engine.tokenizer.encode("by tokens")
    await site.client.completions.create(model="tiny", prompt=tokens, max_tokens=3)
    assert engine.asked[-1][0] == tuple(tokens)


async def test_completions_stream(site: Site, engine: ScriptedEngine) -> None:
    stream = await site.client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=50, stream=True)
    texts = ["", ""]
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [engine.text, engine.text]


async def test_calls_of_tools(site: Site, engine: ScriptedEngine) -> None:
    engine.text = CALL
    reply = await site.client.chat.completions.create(model="tiny", messages=HELLO, tools=[WEATHER])
    (choice,) = reply.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me see."
    call: Any = (choice.message.tool_calls or [])[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Rome"})
    again: list[Any] = [
        *HELLO,
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    engine.text = "It is sunny."
    reply = await site.client.chat.completions.create(model="tiny", messages=again, tools=[WEATHER])
    assert reply.choices[0].message.content == "It is sunny." and reply.choices[0].finish_reason == "stop"
    assert '"arguments": {"city": "Rome"}' in engine.tokenizer.decode(engine.asked[-1][0])
    assert 'fit="yes"} 1' in (await site.http.get("/metrics")).text


async def test_calls_of_tools_stream(site: Site, engine: ScriptedEngine) -> None:
    engine.text = CALL + CALL[len("Let me see. ") :]
    stream = await site.client.chat.completions.create(model="tiny", messages=HELLO, tools=[WEATHER], stream=True)
    said, calls, reasons = "", dict[int, list[str]](), list[str | None]()
    async for chunk in stream:
        delta = chunk.choices[0].delta
        said += delta.content or ""
        reasons.append(chunk.choices[0].finish_reason)
        for call in delta.tool_calls or []:
            function: Any = call.function
            calls.setdefault(call.index, [function.name, ""])[1] += function.arguments
    assert said == "Let me see." and reasons[-1] == "tool_calls"
    assert calls == {0: ["weather", '{"city": "Rome"}'], 1: ["weather", '{"city": "Rome"}']}
    reply = await site.client.chat.completions.create(
        model="tiny", messages=HELLO, tools=[WEATHER], parallel_tool_calls=False
    )
    assert len(reply.choices[0].message.tool_calls or []) == 1


async def test_a_choice_of_tools_holds_the_reply_to_them(site: Site, engine: ScriptedEngine) -> None:
    named: Any = {"type": "function", "function": {"name": "weather"}}
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    for tools, choice, held in [
        ([WEATHER], "required", "tags_with_separator"),
        ([WEATHER], named, '"stop_after_first": true'),
        ([strict], "auto", "triggered_tags"),
        ([WEATHER], "auto", None),
        ([WEATHER], "none", None),
    ]:
        await site.client.chat.completions.create(
            model="tiny",
            messages=HELLO,
            tools=tools,
            tool_choice=choice,  # type: ignore[arg-type]
        )
        grammar = engine.asked[-1][2]
        assert grammar is None if held is None else grammar is not None and held in grammar[1], choice
    assert "call" not in engine.tokenizer.decode(engine.asked[-1][0]), "with none the model is told of no tools"


async def test_a_format_of_the_reply_becomes_a_grammar(site: Site, engine: ScriptedEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    await site.client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}},
    )
    await site.client.chat.completions.create(model="tiny", messages=HELLO, response_format={"type": "json_object"})
    await site.client.chat.completions.create(
        model="tiny", messages=HELLO, extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
    )
    await site.client.completions.create(
        model="tiny", prompt="a", extra_body={"structured_outputs": {"regex": "[0-9]+"}}
    )
    assert [asked[2] for asked in engine.asked] == [
        ("json", json.dumps(schema)),
        ("json_object", ""),
        ("choice", '["yes", "no"]'),
        ("regex", "[0-9]+"),
    ]


BAD: list[tuple[dict[str, Any], str, str | None, str]] = [
    ({"messages": []}, "invalid_value", "messages", "at least 1 item"),
    ({"messages": [{"role": "nobody", "content": "x"}]}, "invalid_value", "messages", "no message"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "invalid_value", "messages", "no text"),
    ({"messages": [{"role": "function", "content": "x"}]}, "invalid_value", "messages", "use tool"),
    ({"temperature": 5}, "invalid_value", "temperature", "less than or equal to 2"),
    ({"temperature": "hot"}, "invalid_value", "temperature", "valid number"),
    ({"n": 100}, "invalid_value", "n", "less than or equal to 16"),
    ({"max_tokens": 0}, "invalid_value", "max_tokens", "greater than or equal to 1"),
    ({"stop": [""]}, "invalid_value", "stop", "1 to 256 characters"),
    ({"top_logprobs": 3}, "invalid_value", "top_logprobs", "needs logprobs"),
    ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options", "needs stream"),
    ({"logit_bias": {"1": 5}}, "unsupported_parameter", "logit_bias", "response_format"),
    ({"functions": []}, "unsupported_parameter", "functions", "use tools"),
    ({"tempreature": 1}, "unknown_parameter", "tempreature", "no parameter tempreature"),
    ({"stream_options": {"x": 1}, "stream": True}, "unknown_parameter", "stream_options.x", "leave it out"),
    ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type", "json_schema"),
    ({"response_format": {"type": "json_schema"}}, "missing_required_parameter", "response_format", "json_schema"),
    ({"structured_outputs": {}}, "invalid_value", "structured_outputs", "one of"),
    ({"tool_choice": "required"}, "invalid_value", "tool_choice", "needs tools"),
    ({"tools": [WEATHER, WEATHER]}, "invalid_value", "tools", "same name"),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "time"}}},
        "invalid_value", "tool_choice", "'time'",
    ),
    ({"tools": [WEATHER], "response_format": {"type": "json_object"}}, "invalid_value", "response_format", "exclude"),
    ({"model": None}, "missing_required_parameter", "model", "'tiny'"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "code", "param", "words"), BAD, ids=lambda value: str(value)[:40])
async def test_bad_requests_say_what_is_wrong(
    site: Site, change: dict[str, Any], code: str, param: str | None, words: str
) -> None:
    response = await site.ask(**change)
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")
    assert words in error["message"]


async def test_what_changes_nothing_is_accepted(site: Site) -> None:
    response = await site.ask(store=False, logit_bias=None, modalities=["text"], metadata={}, response_format=None)
    assert response.status_code == 200, response.text


async def test_a_model_without_tools_says_so() -> None:
    from tests.engines.llm.vocabularies import chat_tokenizer

    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    async with serving(ScriptedEngine(chat_tokenizer(template))) as site:
        response = await site.ask(tools=[WEATHER])
        assert response.status_code == 400 and "knows of no tools" in response.json()["error"]["message"]


async def test_a_prompt_that_is_too_long_is_told_with_numbers(site: Site, engine: ScriptedEngine) -> None:
    for change in ({"messages": [{"role": "user", "content": "word " * 600}]}, {"max_tokens": 1000}):
        response = await site.ask(**change)
        error = response.json()["error"]
        assert response.status_code == 400 and error["code"] == "context_length_exceeded"
        assert re.search(r"holds 512 tokens; the prompt has \d+.*\d+ too many", error["message"])
    assert not engine.asked


async def test_what_no_context_could_hold_is_refused_before_its_tokens_are_counted(
    site: Site, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(*_: object, **__: object) -> list[int]:
        raise AssertionError("the tokens were counted")

    monkeypatch.setattr(engine.tokenizer, "tokens", counted, raising=False)
    response = await site.ask(messages=[{"role": "user", "content": "<|im_end|>" * 40_000}])
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == "context_length_exceeded"
    assert "512 tokens" in error["message"] and not engine.asked


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (QueueFull("5 wait already", mend="try again"), 429, "rate_limit_exceeded"),
        (GrammarInvalid("Unsupported type 'frob'", mend="mend it"), 400, "invalid_grammar"),
        (PromptTooLong("too long", mend="shorten it"), 400, "context_length_exceeded"),
        (EngineError("the device is gone"), 500, "engine_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [["a"], ["a", "b"]])
async def test_what_the_engine_refuses_has_its_status(
    site: Site, engine: ScriptedEngine, error: EngineError, status: int, code: str, stream: bool, prompts: list[str]
) -> None:
    engine.refuse = error
    response = await site.ask("/v1/completions", model="tiny", prompt=prompts, stream=stream)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code and str(error) in response.json()["error"]["message"]
    assert (response.headers.get("retry-after") == "1") == (status == 429)


async def test_an_engine_that_fails_on_the_way_is_an_error_for_the_client(site: Site, engine: ScriptedEngine) -> None:
    engine.reason = "error"
    with pytest.raises(openai.InternalServerError, match="the device is gone"):
        await site.client.chat.completions.create(model="tiny", messages=HELLO)
    stream = await site.client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="the device is gone"):
        async for _ in stream:
            pass


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_what_was_made_for_it(
    site: Site, engine: ScriptedEngine, path: str, stream: bool
) -> None:
    engine.hold_after = 2
    chat = {"model": "tiny", "messages": HELLO, "stream": stream}
    body = json.dumps(chat if "chat" in path else {"model": "tiny", "prompt": ["a", "b", "c"], "stream": stream})
    port = int(site.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write((head + body).encode())
    await until(lambda: engine.open == (1 if "chat" in path else 3))
    writer.close()
    await until(lambda: engine.open == 0)
    assert engine.left == (1 if "chat" in path else 3)
    await until(lambda: site.served.running == 0)


async def test_a_key_is_asked_for_where_one_is_set(engine: ScriptedEngine) -> None:
    async with serving(engine, key="secret") as site:
        assert (await site.client.chat.completions.create(model="tiny", messages=HELLO)).choices
        for given in ({"Authorization": "Bearer wrong"}, {"Authorization": "secret"}, {"Authorization": ""}):
            for path in ("/v1/models", "/metrics", "/v1/models/tiny"):
                response = await site.http.get(path, headers=given)
                assert response.status_code == 401 and response.json()["error"]["code"] == "invalid_api_key"
        assert (await site.http.get("/health", headers={"Authorization": ""})).status_code == 200


async def test_bodies_have_limits(engine: ScriptedEngine) -> None:
    async with serving(engine, body_bytes=1000, body_seconds=0.05) as site:
        long = await site.ask(user="x" * 2000)
        assert long.status_code == 413 and "1000 bytes" in long.json()["error"]["message"]

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 100

        headers = {"Content-Type": "application/json"}
        assert (await site.http.post("/v1/completions", content=pieces(), headers=headers)).status_code == 413
        reader, writer = await asyncio.open_connection("127.0.0.1", int(site.url.rpartition(":")[2]))
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
        )
        assert b"408" in await reader.readline()
        writer.close()


async def test_other_bodies_and_paths_are_refused(site: Site) -> None:
    assert (await site.http.post("/v1/completions", content=b"{}")).status_code == 415
    headers = {"Content-Type": "application/json"}
    for content in (b"{", b"[]", b"[" * 100_000):
        response = await site.http.post("/v1/completions", content=content, headers=headers)
        assert response.status_code == 400 and response.json()["error"]["code"] == "invalid_json"
    assert (await site.http.get("/v1/nothing")).json()["error"]["code"] == "not_found"
    assert (await site.http.get("/v1/completions")).json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(("prompts", "n", "param"), [(64, 5, "prompt"), (33, 8, "prompt"), (1, 4, "n")])
async def test_what_can_never_be_served_is_not_told_to_come_back(
    site: Site, engine: ScriptedEngine, prompts: int, n: int, param: str
) -> None:
    engine.facts = replace(engine.facts, max_waiting=256 if prompts > 1 else 3)
    response = await site.ask("/v1/completions", model="tiny", prompt=["a"] * prompts, n=n, max_tokens=1)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "invalid_value", param)
    assert f"{prompts * n} replies" in error["message"] and "retry-after" not in response.headers
    assert not engine.asked
    engine.facts = replace(engine.facts, max_waiting=prompts * n)
    fits = await site.ask("/v1/completions", model="tiny", prompt=["a"] * prompts, n=n, max_tokens=1)
    assert fits.status_code == 200 and len(fits.json()["choices"]) == prompts * n


async def test_models_tell_the_card(site: Site, engine: ScriptedEngine) -> None:
    (model,) = (await site.client.models.list()).data
    assert model.id == "tiny" and getattr(model, "card", None) == engine.card
    assert getattr(model, "served", None) == {"precision": "int8", "device": "cpu"}, "how it runs, whatever was stored"
    assert (await site.client.models.retrieve("tiny")).id == "tiny"
    with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
        await site.client.models.retrieve("other")
    with pytest.raises(openai.NotFoundError, match="'tiny'"):
        await site.client.chat.completions.create(model="other", messages=HELLO)


async def test_health_follows_the_engine(site: Site, engine: ScriptedEngine) -> None:
    async def health() -> tuple[int, str]:
        response = await site.http.get("/health")
        return response.status_code, response.json()["status"]

    assert await health() == (200, "ok")
    engine.age = 31.0
    assert await health() == (503, "stuck")
    engine.age, engine.alive = 0.0, False
    assert await health() == (503, "dead")
    engine.alive, site.served.draining = True, True
    assert await health() == (503, "draining")
    refused = await site.ask()
    assert refused.status_code == 503 and refused.headers["retry-after"]


async def test_while_it_loads_it_says_so() -> None:
    async with serving(None) as site:
        assert (await site.http.get("/health")).json() == {"status": "loading"}
        refused = await site.ask()
        assert refused.status_code == 503 and "loaded" in refused.json()["error"]["message"]
        assert "chains_llm_engine_up 0" in (await site.http.get("/metrics")).text


async def test_metrics_count_what_happened(site: Site, engine: ScriptedEngine) -> None:
    for _ in range(2):
        await site.client.chat.completions.create(model="tiny", messages=HELLO)
    await site.ask(temperature=9)
    text = (await site.http.get("/metrics")).text
    prompt = len(engine.asked[0][0])
    for line in (
        'chains_llm_requests_total{path="/v1/chat/completions",status="200"} 2',
        'chains_llm_requests_total{path="/v1/chat/completions",status="400"} 1',
        f"chains_llm_prompt_tokens_total {2 * prompt}",
        "chains_llm_cached_tokens_total 6",
        'chains_llm_finished_total{reason="stop"} 2',
        "chains_llm_first_token_seconds_count 2",
        "chains_llm_engine_running 0",
        "chains_llm_engine_up 1",
    ):
        assert line in text.splitlines()


async def test_nothing_that_callers_write_is_logged(
    site: Site, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="engines")
    secret = "my number is 4711"
    await site.ask(messages=[{"role": "user", "content": secret}])
    engine.refuse = RuntimeError(secret)  # type: ignore[assignment]  # a fault of our own
    broken = await site.ask(messages=[{"role": "user", "content": secret}])
    assert broken.status_code == 500 and secret not in broken.text
    assert secret not in caplog.text


JSON = {"Content-Type": "application/json"}
HALF = chr(0xD800)
CALLS = {"function": {"name": "f", "arguments": {}}}


def deep(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


MALFORMED = [
    ("chat", f'"messages": [{{"role": "user", "content": {json.dumps(HALF)}}}]'),
    ("chat", f'"user": {json.dumps(HALF)}'), ("chat", f'{json.dumps(HALF)}: 1'),
    ("chat", f'"structured_outputs": {{"regex": {json.dumps(HALF)}}}'), ("chat", f'"stop": {json.dumps(HALF)}'),
    ("chat", '"top_k": 2147483648'), ("chat", f'"top_k": {10**30}'), ("chat", f'"stop_token_ids": [{10**30}]'),
    ("chat", f'"max_tokens": {10**30}'), ("chat", f'"temperature": {10**400}'), ("chat", '"temperature": NaN'),
    ("chat", '"temperature": 1e999'), ("chat", '"min_p": NaN'), ("chat", '"stop_token_ids": [-1]'),
    ("chat", '"messages": [{"role": "assistant", "content": "x", "tool_calls": 5}]'),
    ("chat", f'"messages": [{{"role": "assistant", "tool_calls": {json.dumps([CALLS])}, "content": {{}}}}, 5]'),
    ("chat", f'"messages": [{{"role": "user", "content": {deep(900)}}}]'),
    ("", f'"prompt": [{10**30}]'), ("", '"prompt": [-1]'), ("", f'"prompt": {json.dumps(HALF)}'),
    ("", f'"prompt": [[1], [{2**31}]]'), ("", f'"prompt": {deep(900)}'),
]  # fmt: skip


async def test_malformed_input_is_the_callers_fault(site: Site) -> None:
    usual = {"chat": '"messages": [{"role": "user", "content": "hello"}]', "": '"prompt": "hello"'}
    for path, fields in MALFORMED:
        body = f'{{"model": "tiny", {usual[path]}, {fields}}}'  # of two members of one name the last holds
        answer = await site.http.post(f"/v1/{path}{'/' if path else ''}completions", content=body, headers=JSON)
        assert answer.status_code == 400 and answer.json()["error"]["message"], (fields[:80], answer.text)


async def test_json_however_deep_is_no_fault_of_the_server(site: Site) -> None:
    usual = '"messages": [{"role": "user", "content": "hello"}]'
    for fields in (
        '"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": DEEP}}]}]',
        '"tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}]',
        '"response_format": {"type": "json_schema", "json_schema": {"schema": DEEP}}',
        '"structured_outputs": {"structural_tag": DEEP}',
    ):
        for depth in (100, 400, 900):
            body = f'{{"model": "tiny", {usual}, {fields.replace("DEEP", deep(depth))}}}'
            answer = await site.http.post("/v1/chat/completions", content=body, headers=JSON)
            assert answer.status_code in (200, 400), (fields, depth, answer.text)
