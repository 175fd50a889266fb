"""An engine's events as OpenAI's API writes them: whole answers, and the chunks of a stream. No I/O."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engines.llm.openai import ApiError, Job
from engines.llm.seam import Event, FinishEvent, TokenEvent, TokenLogprob, Usage
from engines.llm.tools import CallBegun, CallReader, Piece, Said, arguments_fault


class Decoding(Protocol):
    """What is asked of a model's tokenizer here. `backend` is the `tokenizers` library's own."""

    backend: Any

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str: ...


class TokenTexts:
    """Single tokens as text and as bytes; a token may be part of a character."""

    def __init__(self, tokenizer: Decoding) -> None:
        self._tokenizer = tokenizer
        kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
        shifted = [byte for byte in range(256) if byte not in kept]
        self._bytes = {chr(byte): byte for byte in kept} | {chr(256 + at): byte for at, byte in enumerate(shifted)}
        self._byte_level = tokenizer.backend.token_to_id("Ġ") is not None
        self._added = set(tokenizer.backend.get_added_tokens_decoder())

    def text(self, token: int) -> str:
        return self._tokenizer.decode([token], special=True)

    def bytes(self, token: int) -> list[int]:
        written = self._tokenizer.backend.id_to_token(token) or ""
        if token not in self._added:
            if self._byte_level and all(letter in self._bytes for letter in written):
                return [self._bytes[letter] for letter in written]
            if len(written) == 6 and written.startswith("<0x"):
                return [int(written[3:5], 16)]
        return list(self.text(token).encode())


@dataclass
class Reply:
    """One of a request's replies as it grows."""

    reader: CallReader | None
    job: Job
    texts: TokenTexts
    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishEvent | None = None

    def deltas(self, event: Event) -> list[dict[str, Any]]:
        """What this event adds, as the `delta` of a chat's chunks."""
        if isinstance(event, FinishEvent):
            self.finish = event
            pieces: Sequence[Piece] = self.reader.finish() if self.reader else ()
        else:
            self.logprobs += event.logprobs
            pieces = self.reader.push(event.text) if self.reader else [Said(event.text)] if event.text else ()
        return [delta for piece in pieces if (delta := self._delta(piece)) is not None]

    def _delta(self, piece: Piece) -> dict[str, Any] | None:
        if isinstance(piece, Said):
            self.text += piece.text
            return {"content": piece.text}
        if piece.index > 0 and not self.job.parallel:
            return None
        if isinstance(piece, CallBegun):
            function = {"name": piece.name, "arguments": ""}
            self.calls.append({"id": piece.id, "type": "function", "function": dict(function)})
            return {"tool_calls": [{"index": piece.index, **self.calls[-1], "function": function}]}
        self.calls[piece.index]["function"]["arguments"] += piece.text
        return {"tool_calls": [{"index": piece.index, "function": {"arguments": piece.text}}]}

    @property
    def reason(self) -> str:
        """OpenAI's word for the end."""
        assert self.finish is not None
        if self.finish.reason == "length":
            return "length"
        return "tool_calls" if self.calls else "stop"

    def faults(self) -> list[str]:
        """Of each call, why its arguments do not fit the tool; "" where they do."""
        tools = {tool.name: tool for tool in self.job.tools}
        return [arguments_fault(tools[call["function"]["name"]], call["function"]["arguments"]) for call in self.calls]


@dataclass(frozen=True)
class Head:
    """What all chunks of an answer begin with."""

    id: str
    object: str
    created: int
    model: str

    @classmethod
    def new(cls, prefix: str, kind: str, model: str) -> Head:
        return cls(f"{prefix}-{secrets.token_hex(12)}", kind, int(time.time()), model)

    def chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        return body if usage is None else {**body, "usage": usage}


class Answer:
    """All replies to a request. `events` come with the number of their prompt."""

    def __init__(self, job: Job, texts: TokenTexts, model: str, *, chat: bool) -> None:
        self.job, self.texts, self.chat = job, texts, chat
        names = [tool.name for tool in job.tools]
        self.replies = [
            Reply(CallReader(job.form, names) if job.form else None, job, texts)
            for _ in range(len(job.prompts) * job.sampling.n)
        ]
        whole = "chat.completion" if chat else "text_completion"
        self.head = Head.new("chatcmpl" if chat else "cmpl", whole + (".chunk" if chat and job.stream else ""), model)

    def chunks(self, prompt: int, event: Event) -> list[dict[str, Any]]:
        """The chunks of a stream that this event makes. ApiError when the engine could not go on."""
        index, reply = self._take(prompt, event)
        deltas = reply.deltas(event)
        logprobs = list(event.logprobs) if isinstance(event, TokenEvent) and self.job.logprobs else []
        if self.chat:
            choices = [self._chat_choice(index, delta) for delta in deltas]
            if logprobs:
                choices = choices or [self._chat_choice(index, {})]
                choices[0]["logprobs"] = self._chat_logprobs(logprobs)
        else:
            choices = [self._text_choice(index, delta["content"], []) for delta in deltas]
            if logprobs:
                choices = choices or [self._text_choice(index, "", [])]
                choices[0]["logprobs"] = self._text_logprobs(logprobs)
        if isinstance(event, FinishEvent):
            last = self._chat_choice(index, {}) if self.chat else self._text_choice(index, "", [])
            choices.append({**last, "finish_reason": reply.reason})
        return [self.head.chunk([choice]) for choice in choices]

    def opening(self) -> list[dict[str, Any]]:
        """The chunks before the first text: who speaks."""
        if not self.chat:
            return []
        delta = {"role": "assistant", "content": ""}
        return [self.head.chunk([self._chat_choice(index, delta)]) for index in range(len(self.replies))]

    def add(self, prompt: int, event: Event) -> None:
        """Take an event of an answer that is given as a whole."""
        _, reply = self._take(prompt, event)
        reply.deltas(event)

    def whole(self) -> dict[str, Any]:
        """The answer at once."""
        choices = [self._whole_choice(index, reply) for index, reply in enumerate(self.replies)]
        return self.head.chunk(choices, self.usage())

    def usage(self) -> dict[str, Any]:
        """Tokens of all replies; a prompt counts once, however many replies it has."""
        of_prompts = [self._usage(at) for at in range(0, len(self.replies), self.job.sampling.n)]
        prompt, cached = sum(one.prompt for one in of_prompts), sum(one.cached for one in of_prompts)
        completion = sum(self._usage(at).completion for at in range(len(self.replies)))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def usage_chunk(self) -> dict[str, Any]:
        return self.head.chunk([], self.usage())

    def _usage(self, at: int) -> Usage:
        finish = self.replies[at].finish
        return Usage(0, 0, 0) if finish is None else finish.usage

    def _take(self, prompt: int, event: Event) -> tuple[int, Reply]:
        if isinstance(event, FinishEvent) and event.reason in ("error", "abort"):
            raise ApiError(
                500 if event.reason == "error" else 503,
                event.message or "the engine ended this reply",
                code="engine_error",
                kind="server_error",
            )
        index = prompt * self.job.sampling.n + event.index
        return index, self.replies[index]

    def _chat_choice(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _text_choice(self, index: int, text: str, logprobs: list[TokenLogprob]) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": self._text_logprobs(logprobs) if logprobs else None,
            "finish_reason": None,
        }

    def _whole_choice(self, index: int, reply: Reply) -> dict[str, Any]:
        if not self.chat:
            logprobs = reply.logprobs if self.job.logprobs else []
            return {**self._text_choice(index, reply.text, logprobs), "finish_reason": reply.reason}
        message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
        if reply.calls:
            message |= {"content": reply.text or None, "tool_calls": reply.calls}
        return {
            "index": index,
            "message": message,
            "logprobs": self._chat_logprobs(reply.logprobs) if self.job.logprobs else None,
            "finish_reason": reply.reason,
        }

    def _chat_logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        content = [
            {**self._scored(one.token, one.logprob), "top_logprobs": [self._scored(*other) for other in one.top]}
            for one in logprobs
        ]
        return {"content": content, "refusal": None}

    def _scored(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self.texts.text(token), "logprob": _finite(logprob), "bytes": self.texts.bytes(token)}

    def _text_logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        texts = [self.texts.text(one.token) for one in logprobs]
        return {
            "tokens": texts,
            "token_logprobs": [_finite(one.logprob) for one in logprobs],
            "top_logprobs": [{self.texts.text(token): _finite(value) for token, value in one.top} for one in logprobs],
            "text_offset": [sum(map(len, texts[:at])) for at in range(len(texts))],
        }


def _finite(logprob: float) -> float:
    """JSON has no infinity: a token that a grammar forbids has a logarithm of minus infinity."""
    return max(logprob, -9999.0)
