"""OpenAI's API in words: what a request asks of an engine, and what its events look like in a reply. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engines.llm.config import MOST_LOGPROBS, MOST_REPLIES, Sampling
from engines.llm.errors import (
    EngineError,
    GrammarInvalid,
    GrammarMissing,
    PromptTooLong,
    QueueFull,
    Refused,
    SettingInvalid,
)
from engines.llm.seam import Grammar
from engines.llm.tools import Format, Tool, constrained, guided

COMPLETION_TOKENS = 16  # OpenAI's default of /v1/completions
MOST_PROMPTS = 64

# What OpenAI's API knows and this one does not do, with what to do instead.
REFUSED = {
    "logit_bias": "hold the reply to a grammar (response_format, structured_outputs) instead",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "this model reads and writes text",
    "prediction": "leave it out",
    "reasoning_effort": "leave it out, or say it in the prompt",
    "verbosity": "leave it out, or say it in the prompt",
    "web_search_options": "give a tool that searches",
    "suffix": "write it into the prompt",
    "best_of": "use n",
}
IGNORED_WHEN = {"store": (False,), "modalities": (["text"],), "echo": (False,), "metadata": ({},)}


class ApiError(Exception):
    """A request's failure as OpenAI's clients read it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        kind: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.kind = status, message, code, param, kind
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def translated(error: EngineError) -> ApiError:
    """The engine's error as the caller meets it: its own fault with 400, a full queue with 429, the rest with 500."""
    if isinstance(error, QueueFull):
        return ApiError(
            429, str(error), code="rate_limit_exceeded", kind="rate_limit_error", headers={"Retry-After": "1"}
        )
    if isinstance(error, PromptTooLong | Refused):
        return ApiError(400, str(error), code="context_length_exceeded", param="messages")
    if isinstance(error, GrammarInvalid):
        return ApiError(400, str(error), code="invalid_grammar", param="response_format")
    if isinstance(error, GrammarMissing):
        return ApiError(400, str(error), code="unsupported_value", param="response_format")
    if isinstance(error, SettingInvalid):
        return ApiError(400, str(error), code="invalid_value")
    return ApiError(500, str(error), code="engine_error", kind="server_error")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(_Model):
    include_usage: bool = False
    include_obfuscation: bool = False


class JsonSchema(_Model):
    name: str = "reply"
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(_Model):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(_Model):
    """Beyond OpenAI's: what the reply is held to. One of them."""

    json_: dict[str, Any] | bool | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: dict[str, Any] | None = None


class Function(_Model):
    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolEntry(_Model):
    type: Literal["function"]
    function: Function


class NamedFunction(_Model):
    name: str


class NamedTool(_Model):
    type: Literal["function"]
    function: NamedFunction


class _Sampled(_Model):
    """What both kinds of completion take. The last six are beyond OpenAI's."""

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    n: int | None = Field(default=None, ge=1, le=MOST_REPLIES)
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(default=None, max_length=256)
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    top_k: int | None = Field(default=None, ge=0)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = Field(default=None, max_length=64)
    structured_outputs: StructuredOutputs | None = None


class ChatRequest(_Sampled):
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)
    response_format: ResponseFormat | None = None
    tools: list[ToolEntry] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    safety_identifier: str | None = Field(default=None, max_length=256)
    prompt_cache_key: str | None = Field(default=None, max_length=256)


class CompletionRequest(_Sampled):
    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)


R = TypeVar("R", ChatRequest, CompletionRequest)


def read(kind: type[R], body: bytes) -> R:
    """A request's body. ApiError names the field that is wrong and says what to write."""
    try:
        text = body.decode()
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half of a pair is no text, wherever it stands
    except UnicodeError:
        raise ApiError(400, "the body is no text in UTF-8; write whole characters", code="invalid_json") from None
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body is no JSON object", code="invalid_json")
    for name, allowed in IGNORED_WHEN.items():
        if value.get(name) in allowed:
            value.pop(name)
    for name in [name for name in value if name in REFUSED]:
        if value[name] is not None:
            raise ApiError(400, f"{name} is not supported; {REFUSED[name]}", code="unsupported_parameter", param=name)
        del value[name]
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _fault(error) from None


def _fault(error: ValidationError) -> ApiError:
    fault = error.errors()[0]
    place = ".".join(str(part) for part in fault["loc"] if not str(part).startswith(("list[", "literal[", "function-")))
    if fault["type"] == "extra_forbidden":
        return ApiError(400, f"there is no parameter {place}; leave it out", code="unknown_parameter", param=place)
    code = "missing_required_parameter" if fault["type"] == "missing" else "invalid_value"
    return ApiError(400, f"{place}: {fault['msg']}", code=code, param=place)


class TextTokenizer(Protocol):
    """What is asked of a model's tokenizer."""

    def tokens(self, prompt: Any, *, tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Model:
    """The model that is served: its name, how it reads text, the most tokens of a prompt and its reply."""

    name: str
    tokenizer: TextTokenizer
    context: int
    form: Format | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What a request asks of the engine."""

    prompts: tuple[tuple[int, ...], ...]
    sampling: Sampling
    grammar: Grammar | None = None
    tenant: str = ""
    batch: bool = False
    stream: bool = False
    include_usage: bool = False
    tools: tuple[Tool, ...] = ()
    form: Format | None = None
    parallel: bool = True
    logprobs: bool = False


class _Streaming(TypedDict):
    stream: bool
    include_usage: bool


def chat_job(asked: ChatRequest, model: Model) -> Job:
    """A chat's prompt, rendered by the model's own template, and what its reply is held to. Raises ApiError."""
    tools = _tools(asked, model)
    messages = [_message(message) for message in asked.messages]
    try:
        prompt = model.tokenizer.tokens(messages, tools=[tool.for_template() for tool in tools] or None)
    except SettingInvalid as error:
        raise ApiError(400, str(error), code="invalid_value", param="messages") from None
    most = asked.max_completion_tokens or asked.max_tokens
    logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
    if asked.top_logprobs is not None and not asked.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", code="invalid_value", param="top_logprobs")
    return Job(
        prompts=(tuple(prompt),),
        sampling=_sampling(asked, _room([prompt], most, model, "messages"), logprobs),
        grammar=_chat_grammar(asked, tools, model),
        tenant=asked.safety_identifier or asked.user or "",
        batch=asked.service_tier == "flex",
        tools=tuple(tools),
        form=model.form if tools else None,
        parallel=asked.parallel_tool_calls is not False,
        logprobs=bool(asked.logprobs),
        **_streaming(asked),
    )


def completion_job(asked: CompletionRequest, model: Model) -> Job:
    """The prompts of a completion and how they go on. Raises ApiError."""
    try:
        prompts = [list(model.tokenizer.tokens(prompt)) for prompt in _prompts(asked.prompt)]
    except SettingInvalid as error:
        raise ApiError(400, str(error), code="invalid_value", param="prompt") from None
    most = COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
    return Job(
        prompts=tuple(tuple(prompt) for prompt in prompts),
        sampling=_sampling(asked, _room(prompts, most, model, "prompt"), asked.logprobs),
        grammar=_structured(asked.structured_outputs),
        tenant=asked.user or "",
        batch=asked.service_tier == "flex",
        logprobs=asked.logprobs is not None,
        **_streaming(asked),
    )


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[Any]:
    if isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int)):
        prompts: list[Any] = list(prompt)
    else:
        prompts = [prompt]
    if not prompts or any(len(one) == 0 for one in prompts):
        raise ApiError(400, "the prompt is empty; write some text", code="invalid_value", param="prompt")
    if len(prompts) > MOST_PROMPTS:
        raise ApiError(400, f"{len(prompts)} prompts are over {MOST_PROMPTS}", code="invalid_value", param="prompt")
    return prompts


def _streaming(asked: _Sampled) -> _Streaming:
    if asked.stream_options is not None and not asked.stream:
        raise ApiError(400, "stream_options needs stream: true", code="invalid_value", param="stream_options")
    usage = asked.stream_options is not None and asked.stream_options.include_usage
    return _Streaming(stream=bool(asked.stream), include_usage=usage)


def _room(prompts: Sequence[Sequence[int]], most: int | None, model: Model, param: str) -> int:
    """How many tokens the reply may have: `most`, or what the context leaves. ApiError with the numbers."""
    longest = max(map(len, prompts))
    wanted = 1 if most is None else most
    if longest + wanted > model.context:
        rest = "" if most is None else f" and the reply may have {most}"
        raise ApiError(
            400,
            f"the context holds {model.context} tokens; the prompt has {longest}{rest}: "
            f"{longest + wanted - model.context} too many; shorten the prompt or ask for a shorter reply",
            code="context_length_exceeded",
            param=param,
        )
    return model.context - longest if most is None else most


def _sampling(asked: _Sampled, most: int, logprobs: int | None) -> Sampling:
    given: dict[str, Any] = {
        name: value
        for name in ("top_p", "n", "seed", "presence_penalty", "frequency_penalty", "top_k", "min_p",
                     "repetition_penalty")
        if (value := getattr(asked, name)) is not None
    }  # fmt: skip
    stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    if len(stop) > 16 or not all(0 < len(text) <= 256 for text in stop):
        raise ApiError(400, "stop takes up to 16 texts of 1 to 256 characters", code="invalid_value", param="stop")
    if "seed" in given:
        given["seed"] %= 2**63
    try:
        return Sampling(
            max_tokens=most,
            temperature=1.0 if asked.temperature is None else asked.temperature,
            stop=tuple(stop),
            stop_ids=tuple(asked.stop_token_ids or ()),
            ignore_end=bool(asked.ignore_eos),
            logprobs=logprobs,
            **given,
        )
    except SettingInvalid as error:
        raise ApiError(400, str(error), code="invalid_value") from None


def _tools(asked: ChatRequest, model: Model) -> list[Tool]:
    """The tools that the model may call: none of them with tool_choice "none", one when it is named."""
    choice = asked.tool_choice
    if not asked.tools:
        if choice not in (None, "none", "auto"):
            raise ApiError(400, "tool_choice needs tools", code="invalid_value", param="tool_choice")
        return []
    if choice == "none":
        return []
    if model.form is None:
        raise ApiError(
            400,
            "this model's chat template knows of no tools; leave them out, or serve a model that was taught to call",
            code="unsupported_parameter",
            param="tools",
        )
    tools = [
        Tool(one.name, one.description or "", one.parameters, bool(one.strict))
        for one in (entry.function for entry in asked.tools)
    ]
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise ApiError(400, "two tools have the same name", code="invalid_value", param="tools")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise ApiError(400, f"no tool is named {choice.function.name!r}", code="invalid_value", param="tool_choice")
    return tools


def _chat_grammar(asked: ChatRequest, tools: Sequence[Tool], model: Model) -> Grammar | None:
    wanted = _response_format(asked.response_format) or _structured(asked.structured_outputs)
    if not tools or model.form is None:
        return wanted
    if wanted is not None:
        raise ApiError(
            400,
            "tools and a format of the reply exclude each other; ask for one of them, or set tool_choice: none",
            code="invalid_value",
            param="response_format",
        )
    if isinstance(asked.tool_choice, NamedTool):
        named = [tool for tool in tools if tool.name == asked.tool_choice.function.name]
        return "structural_tag", constrained(model.form, named, parallel=False)
    if asked.tool_choice == "required":
        parallel = asked.parallel_tool_calls is not False
        return "structural_tag", constrained(model.form, tools, parallel=parallel)
    tag = guided(model.form, tools) if any(tool.strict for tool in tools) else None
    return None if tag is None else ("structural_tag", tag)


def _response_format(asked: ResponseFormat | None) -> Grammar | None:
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return "json_object", ""
    if asked.json_schema is None:
        raise ApiError(
            400, "response_format lacks json_schema", code="missing_required_parameter", param="response_format"
        )
    return "json", json.dumps(asked.json_schema.schema_)


def _structured(asked: StructuredOutputs | None) -> Grammar | None:
    if asked is None:
        return None
    given: list[Grammar] = []
    if asked.json_ is not None:
        given.append(("json", json.dumps(asked.json_)))
    if asked.regex is not None:
        given.append(("regex", asked.regex))
    if asked.choice is not None:
        given.append(("choice", json.dumps(asked.choice)))
    if asked.grammar is not None:
        given.append(("ebnf", asked.grammar))
    if asked.structural_tag is not None:
        given.append(("structural_tag", json.dumps(asked.structural_tag)))
    if len(given) != 1:
        raise ApiError(
            400,
            "structured_outputs takes one of json, regex, choice, grammar, structural_tag",
            code="invalid_value",
            param="structured_outputs",
        )
    return given[0]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates know it: null is left out, a developer is the system."""
    if message.get("role") == "function":
        raise ApiError(400, "the role function is of an older API; use tool", code="invalid_value", param="messages")
    plain = {name: value for name, value in message.items() if value is not None and name != "refusal"}
    if plain.get("role") == "developer":
        plain["role"] = "system"
    return plain
