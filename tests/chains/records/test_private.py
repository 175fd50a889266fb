"""Attributes that hold what somebody said are told by their names."""

from __future__ import annotations

import pytest

from chains.records.packing import KEYS
from chains.records.private import holds_words, is_said, without_words


@pytest.mark.parametrize(
    "key",
    [
        "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions", "gen_ai.prompt",
        "gen_ai.prompt.0.content", "gen_ai.completion.0.content", "gen_ai.tool.call.arguments", "gen_ai.event.content",
        "input.value", "output.value", "llm.prompts", "llm.prompts.0.content", "llm.input_messages.0.message.content",
        "traceloop.entity.input", "ai.prompt.messages", "ai.response.text", "langfuse.observation.input", "transcript",
        "asr.transcript", "content", "http.request.body", "GEN_AI.INPUT.MESSAGES",
    ],
)  # fmt: skip
def test_words_are_left_out(key: str) -> None:
    assert is_said(key)
    assert holds_words({"chains.node": "LLM", key: "Ada"}) and without_words({"a": 1, key: "Ada"}) == {"a": 1}


@pytest.mark.parametrize(
    "key",
    [
        *KEYS, "gen_ai.usage.input_tokens", "gen_ai.prompt_tokens", "gen_ai.response.id", "llm.model_name",
        "llm.token_count.prompt", "http.request.method", "url.full", "db.query.text", "message.size",
        "http.request.body.size", "content.length",
        "exception.type", "exception.message", "input.mime_type", "events.count",
    ],
)  # fmt: skip
def test_figures_and_names_are_kept(key: str) -> None:
    assert not is_said(key) and not holds_words({key: 1})
