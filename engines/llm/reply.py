"""A reply as its caller sees it: tokens come in, text that is safe to show goes out, and one last event."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engines.llm import text
from engines.llm.config import Sampling
from engines.llm.seam import FinishEvent, TokenEvent, TokenLogprob, Usage
from engines.llm.sequence import End, Token


class Reply:
    """One of the `n` replies of a request. `done` once its FinishEvent was given; `stopped` when a stop string ended
    its text, and the engine is to be told.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        sampling: Sampling,
        ends: frozenset[int],
        prompt: int,
        index: int = 0,
    ) -> None:
        self._characters = text.Detokenizer(decode)
        self._stops = text.StopStrings(sampling.stop, include=sampling.include_stop)
        self._ends, self._told, self._prompt, self._index = ends, sampling.logprobs is not None, prompt, index
        self._untold: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._ready = ""
        self._completion = 0
        self.done = False

    @property
    def stopped(self) -> bool:
        return self._stops.stopped

    def push(self, token: Token) -> None:
        """A token of the reply. The one that ends it is counted and not shown."""
        if self.stopped:
            return
        self._completion += 1
        if token.token in self._ends:
            return
        self._untold.append(token.token)
        if self._told and token.logprob is not None:
            self._logprobs.append(TokenLogprob(token.token, token.logprob, token.top))
        self._ready += self._stops.push(self._characters.push(token.token))

    def take(self) -> TokenEvent | None:
        """The text since the last time, if there is any."""
        return self._event() if self._ready else None

    def finish(self, end: End) -> list[TokenEvent | FinishEvent]:
        """What was held back, and the last event."""
        self.done = True
        if not self.stopped and end.reason in ("stop", "length"):
            self._ready += self._stops.push(self._characters.flush()) + self._stops.flush()
        reason = "stop" if self.stopped else end.reason
        usage = Usage(end.prompt, end.cached, self._completion, end.guessed, end.right)
        last = FinishEvent(reason, usage, self._index, end.message)
        return [self._event(), last] if self._ready or self._untold else [last]

    def aborted(self) -> FinishEvent:
        """The last event of a reply that its caller does not want any more."""
        self.done = True
        return FinishEvent("abort", Usage(self._prompt, 0, self._completion), self._index)

    def _event(self) -> TokenEvent:
        event = TokenEvent(self._ready, tuple(self._untold), tuple(self._logprobs), self._index)
        self._ready, self._untold, self._logprobs = "", [], []
        return event
