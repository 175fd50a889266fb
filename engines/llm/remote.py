"""Models behind an OpenAI-like API, and speculative execution there: one call writes on past its stop, and the calls
that follow are answered from what it wrote, as long as the program asks for exactly that.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import httpx

from engines.llm.config import Sampling
from engines.llm.errors import RequestFailed, SettingInvalid
from engines.llm.seam import Grammar, Prompt
from engines.llm.text import StopStrings

KEPT = 16
TIMEOUT = 120.0
_NAMES = ("max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
_EXTRAS = ("top_k", "min_p", "repetition_penalty", "ignore_end")  # sent only where they say something


@dataclass(frozen=True, slots=True)
class Written:
    """A text that was written past its stop: `text` behind `prompt`, to the model's own end if `finished`."""

    prompt: str
    settings: Sampling
    text: str
    finished: bool

    def answer(self, prompt: str, sampling: Sampling) -> str | None:
        """What a call with this prompt would write, if this text certainly says so."""
        whole = self.prompt + self.text
        if len(prompt) < len(self.prompt) or not whole.startswith(prompt) or _comparable(sampling) != self.settings:
            return None
        rest = whole[len(prompt) :]
        stops = StopStrings(sampling.stop)
        text = stops.push(rest)
        if not stops.stopped:
            if not self.finished:
                return None
            text += stops.flush()
        # Nobody here counts tokens; but a token is a byte or more, so so many bytes are no more tokens than that.
        used = text + max(sampling.stop, key=len) if stops.stopped else text
        return text if len(used.encode()) <= sampling.max_tokens else None


class RemoteModel:
    """A model behind `url` (…/v1), for engines.llm.program. Texts go to /completions, messages to /chat/completions.

    `ahead` tokens are written past the stop of a text's call, and kept for the calls after it; 0 is off. `calls`
    counts requests, `matched` the calls that needed none. `constrained`: the API takes JSON schemas. `headers` gives
    what each request bears beside the key, e.g. the trace: `lambda: {"traceparent": current().traceparent}`.
    """

    scores = False

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key: str = "",
        ahead: int = 0,
        constrained: bool = False,
        timeout: float = TIMEOUT,
        headers: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self.model = model
        self.ahead = ahead
        self.constrained = constrained
        self.calls = 0
        self.matched = 0
        self._written: deque[Written] = deque(maxlen=KEPT)
        self._headers = headers
        usual = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(base_url=url.rstrip("/"), headers=usual, timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def stream(self, prompt: Prompt, sampling: Sampling, grammar: Grammar | None = None) -> AsyncIterator[str]:
        """The whole reply, as one piece. Raises RequestFailed."""
        if isinstance(prompt, str) and self.ahead and grammar is None and _speculates(sampling):
            yield await self._from_written(prompt, sampling)
        else:
            yield (await self._request(prompt, sampling, grammar))[0]

    async def score(self, prompt: Prompt, choices: Sequence[str], prior: Prompt | None = None) -> Mapping[str, float]:
        raise SettingInvalid(
            "a remote API tells no probability of a given text", mend="write gen(Literal[...]), which reads the reply"
        )

    async def begin(self, prompt: Prompt) -> None:
        """Nothing: what an API keeps is its own affair."""

    async def _from_written(self, prompt: str, sampling: Sampling) -> str:
        for written in reversed(self._written):
            if (answer := written.answer(prompt, sampling)) is not None:
                self.matched += 1
                return answer
        longer = replace(sampling, stop=(), max_tokens=sampling.max_tokens + self.ahead)
        text, reason = await self._request(prompt, longer, None)
        written = Written(prompt, _comparable(sampling), text, reason == "stop")
        self._written.append(written)
        answer = written.answer(prompt, sampling)
        return answer if answer is not None else (await self._request(prompt, sampling, None))[0]

    async def _request(self, prompt: Prompt, sampling: Sampling, grammar: Grammar | None) -> tuple[str, str]:
        """One request: the text, and why it ended."""
        self.calls += 1
        chat = not isinstance(prompt, str) and not all(isinstance(token, int) for token in prompt)
        body = {"model": self.model, **_body(sampling, grammar)}
        body["messages" if chat else "prompt"] = prompt if isinstance(prompt, str) else list(prompt)
        path = "/chat/completions" if chat else "/completions"
        try:
            headers = None if self._headers is None else dict(self._headers())
            answer = await self._client.post(path, json=body, headers=headers)
            answer.raise_for_status()
            choice = answer.json()["choices"][0]
            text = (choice["message"]["content"] if chat else choice["text"]) or ""
            return str(text), str(choice.get("finish_reason"))
        except httpx.HTTPStatusError as error:
            raise RequestFailed(
                f"{error.request.url} answered {error.response.status_code} ({error.response.text[:200]})",
                mend="check the address, the key, the model's name and the settings",
            ) from None
        except httpx.HTTPError as error:
            raise RequestFailed(
                f"{self._client.base_url} cannot be reached ({type(error).__name__})",
                mend="check that the server runs at this address",
            ) from None
        except (ValueError, LookupError, TypeError) as error:
            raise RequestFailed(
                f"{self._client.base_url}{path} answered with something else than completions ({error})",
                mend="check that the address is that of an OpenAI-like API, with /v1 at its end",
            ) from None


def _speculates(sampling: Sampling) -> bool:
    """Whether a text written without a stop begins with the text written with it."""
    return bool(sampling.stop) and (sampling.temperature == 0 or sampling.seed is None)


def _comparable(sampling: Sampling) -> Sampling:
    """The settings that decide what is written, apart from where it ends."""
    return replace(sampling, stop=(), max_tokens=1)


def _body(sampling: Sampling, grammar: Grammar | None) -> dict[str, Any]:
    usual = Sampling()
    for name in ("stop_ids", "include_stop", "n", "logprobs"):
        if getattr(sampling, name) != getattr(usual, name):
            raise SettingInvalid(f"{name} is not for a remote API", mend="leave it out, or run the model here")
    body = {name: getattr(sampling, name) for name in _NAMES if getattr(sampling, name) is not None}
    body |= {name: getattr(sampling, name) for name in _EXTRAS if getattr(sampling, name) != getattr(usual, name)}
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if grammar is not None:
        kind, source = grammar
        if kind not in ("json", "json_object"):
            raise SettingInvalid(f"a remote API takes no grammar of the kind {kind!r}", mend="write a JSON schema")
        schema = {"type": "json_schema", "json_schema": {"name": "result", "schema": json.loads(source or "{}")}}
        body["response_format"] = schema if kind == "json" else {"type": "json_object"}
    return body
