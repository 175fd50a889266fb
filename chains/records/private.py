"""What somebody said or wrote never enters the store with a span: instrumentation of others puts prompts, replies and
tool arguments into attributes. What a call is to keep of that is its recording, which is switched on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from chains.records.packing import KEYS, PART_KEYS

_SAFE = frozenset((*KEYS, *PART_KEYS, "chains.waits", "chains.works", "chains.path"))
# OpenTelemetry's GenAI conventions (old and new), OpenInference, OpenLLMetry, Traceloop, LangSmith, Langfuse, Logfire.
_SAID = re.compile(
    r"""gen_ai\.(?:input|output)\.messages | gen_ai\.system_instructions | gen_ai\.(?:prompt|completion)(?:\..*|)
    | gen_ai\.tool\.(?:call\.(?:arguments|result)|message) | gen_ai\.(?:user|assistant|system|choice)\..*
    | http\.(?:request|response)\.body(?:\.content)? | gen_ai\.event\.content | gen_ai\.retrieval\.query(?:\..*)?
    | (?:llm\.)?(?:input|output)\.value | llm\.(?:prompts?|completions?|input_messages|output_messages)(?:\..*|)
    | (?:langfuse|langsmith)\..*(?:input|output|prompt|completion).* | traceloop\.entity\.(?:input|output)
    | (?:ai\.)?(?:prompt|response)(?:\.(?:text|messages|prompt|object|toolCalls))? | all_messages_events | events
    | (?:message|content|transcript|text|utterance|prompt|completion)
    | (?:.*\.)?(?:message\.content|transcript|utterance)""",
    re.VERBOSE | re.IGNORECASE,
)


def without_words(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes without those that hold what was said or written."""
    return {key: value for key, value in attributes.items() if key in _SAFE or not is_said(key)}


def holds_words(attributes: Mapping[str, Any]) -> bool:
    """Whether `without_words` would leave something out; quick for spans of ours."""
    return not _SAFE.issuperset(attributes) and any(key not in _SAFE and is_said(key) for key in attributes)


@lru_cache(4_096)
def is_said(key: str) -> bool:
    """Whether an attribute of this name holds what somebody said or wrote."""
    return _SAID.fullmatch(key) is not None
