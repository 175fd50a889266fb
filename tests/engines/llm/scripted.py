"""An engine that says what it is told to say: the server's other side where no model is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from engines.llm.assembly import Facts
from engines.llm.config import Sampling
from engines.llm.errors import EngineError
from engines.llm.seam import Event, FinishEvent, FinishReason, Grammar, TokenEvent, TokenLogprob, Usage
from engines.llm.tokenizer import Tokenizer
from tests.engines.llm.vocabularies import chat_tokenizer


class ScriptedEngine:
    """Says `text`, token by token, `cached` tokens of each prompt known. `open` counts the streams that run."""

    def __init__(self, tokenizer: Tokenizer | None = None, *, context: int = 512) -> None:
        self.tokenizer = tokenizer or chat_tokenizer()
        self.context = context
        self.facts = Facts(self.tokenizer.vocabulary, context, 4096, "cpu", "int8", False, (2,), 256)
        self.card = {"model": "scripted", "precision": "none"}
        self.alive, self.age = True, 0.0
        self.text = "Hello there, friend."
        self.cached = 3
        self.reason: FinishReason | None = None
        self.refuse: EngineError | None = None
        self.hold_after: int | None = None  # tokens; then nothing more comes until `released`
        self.released = asyncio.Event()
        self.open = self.left = 0
        self.asked: list[tuple[tuple[int, ...], Sampling, Grammar | None, str, bool]] = []
        self.closed = False

    async def stream(
        self,
        prompt: Any,
        sampling: Sampling,
        *,
        tenant: str = "",
        batch: bool = False,
        grammar: Grammar | None = None,
    ) -> AsyncIterator[Event]:
        self.asked.append((tuple(prompt), sampling, grammar, tenant, batch))
        if self.refuse is not None:
            raise self.refuse
        self.open += 1
        ended = False
        try:
            said = self.tokenizer.encode(self.text)
            for at, token in enumerate(said[: sampling.max_tokens]):
                if at == self.hold_after:
                    await self.released.wait()
                for index in range(sampling.n):
                    yield TokenEvent(self._text(said, at), (token,), self._logprobs(token, sampling), index)
                await asyncio.sleep(0)
            reason = self.reason or ("stop" if len(said) <= sampling.max_tokens else "length")
            usage = Usage(len(prompt), min(self.cached, len(prompt)), min(len(said), sampling.max_tokens))
            for index in range(sampling.n):
                yield FinishEvent(reason, usage, index, "the device is gone" if reason == "error" else "")
            ended = True
        finally:
            self.open -= 1
            self.left += not ended

    def _text(self, said: Sequence[int], at: int) -> str:
        return self.tokenizer.decode(said[: at + 1])[len(self.tokenizer.decode(said[:at])) :]

    def _logprobs(self, token: int, sampling: Sampling) -> tuple[TokenLogprob, ...]:
        if sampling.logprobs is None:
            return ()
        return (TokenLogprob(token, -0.5, tuple((token + at, -0.5 - at) for at in range(sampling.logprobs))),)

    def stats(self) -> dict[str, Any]:
        return {"running": self.open, "waiting": 0, "note": "no number"}

    def close(self) -> None:
        self.closed = True
