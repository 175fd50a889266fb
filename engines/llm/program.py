"""Control flow around a model: several dependent calls on one conversation, written as plain Python.

    talk = Talk(model, "Read what the caller says.\\n")
    talk.say("Caller: A filling on Monday, please.\\nService:")
    service = await talk.choose([" filling", " cleaning"])
    talk.say("\\nDay:")
    day = await talk.gen(stop="\\n")

Each call sees all that was said, chosen and written before it, so an engine with a prefix cache computes only what is
new. `fork` goes on in several ways from one beginning, which is computed once; `join` awaits them together.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from threading import Event
from typing import Any, Literal, Protocol, TypeVar, cast, get_args, get_origin, overload

from pydantic import TypeAdapter

from engines.llm.config import Sampling
from engines.llm.errors import RequestFailed, SettingInvalid
from engines.llm.seam import Engine, FinishEvent, Grammar, Message, Prompt, StreamingEngine, TokenEvent
from engines.llm.text import parse

T = TypeVar("T")
Scores = Mapping[str, float]


class Model(Protocol):
    """What a conversation needs of a model: an engine, a chainlet or a remote API behind one small face."""

    @property
    def constrained(self) -> bool:
        """Whether replies can be held to a grammar."""
        ...

    @property
    def scores(self) -> bool:
        """Whether it tells how likely a given text is."""
        ...

    def stream(self, prompt: Prompt, sampling: Sampling, grammar: Grammar | None = None) -> AsyncIterator[str]:
        """The reply as it is written."""
        ...

    def score(self, prompt: Prompt, choices: Sequence[str], prior: Prompt | None = None) -> Awaitable[Scores]:
        """Probability of each choice as the reply; they sum to 1."""
        ...

    async def begin(self, prompt: Prompt) -> None:
        """Compute what several calls will begin with, where that can be kept."""
        ...


class Talk:
    """One conversation: a text that grows, or messages. Not for two tasks at once: `fork` it for that."""

    def __init__(
        self, model: Model, prompt: str | Sequence[Mapping[str, Any]] = "", sampling: Sampling | None = None
    ) -> None:
        """Begun with a text or with messages; `sampling` is what calls use where they say nothing else."""
        self.model = model
        self.sampling = sampling or Sampling()
        self._text = prompt if isinstance(prompt, str) else ""
        self._messages = None if isinstance(prompt, str) else [cast(Message, message) for message in prompt]

    @property
    def prompt(self) -> Prompt:
        """All of the conversation so far."""
        return self._text if self._messages is None else tuple(self._messages)

    def say(self, text: str) -> None:
        """More of the text, word for word."""
        if self._messages is not None:
            raise SettingInvalid("this conversation holds messages, not one text", mend='write talk.ask("...")')
        self._text += text

    def ask(self, text: str) -> None:
        """A message of the user; what is written or chosen next is the assistant's."""
        if self._messages is None:
            raise SettingInvalid("this conversation is one text", mend="begin it with messages: Talk(model, [])")
        self._messages.append({"role": "user", "content": text})

    def stream(self, *, grammar: Grammar | None = None, **sampling: Any) -> AsyncIterator[str]:
        """The continuation as it is written; it belongs to the conversation once all of it was read.

        `sampling` are fields of Sampling, but for n: a conversation goes on in one way. Raises RequestFailed when
        the engine ends before the reply does.
        """
        picked = _sampling(self.sampling, sampling)
        return self._keep(self.model.stream(self.prompt, picked, grammar))

    @overload
    async def gen(self, *, grammar: Grammar | None = None, **sampling: Any) -> str: ...
    @overload
    async def gen(self, kind: type[T], *, grammar: Grammar | None = None, **sampling: Any) -> T: ...
    async def gen(self, kind: Any = str, *, grammar: Grammar | None = None, **sampling: Any) -> Any:
        """The continuation as text, or as a `kind`: a Literal is chosen by likelihood where the model tells it, and
        `grammar` and `sampling` then change nothing; a dataclass, a pydantic model or another JSON type is written as
        JSON, under its grammar where the model says that it is `constrained`.

        Raises ResultInvalid when what was written is none.
        """
        if get_origin(kind) is Literal and self.model.scores:
            _sampling(self.sampling, sampling)  # a mistake in them is one with this model, too
            texts = {str(value): value for value in get_args(kind)}
            return texts[await self.choose(list(texts))]
        if kind is not str and get_origin(kind) is not Literal and grammar is None and self.model.constrained:
            grammar = ("json", json.dumps(TypeAdapter(kind).json_schema()))
        pieces = self.stream(grammar=grammar, **sampling)
        text = "".join([piece async for piece in pieces])
        return text if kind is str else parse(text, kind)

    async def choose(self, choices: Sequence[str], prior: Prompt | None = None) -> str:
        """The likeliest of the choices, which goes on the conversation: never anything else. The only one is chosen
        without asking.
        """
        scores = {choices[0]: 1.0} if len(choices) == 1 else await self.score(choices, prior)
        chosen = max(choices, key=lambda choice: scores[choice])
        self._add(chosen)
        return chosen

    def score(self, choices: Sequence[str], prior: Prompt | None = None) -> Awaitable[Scores]:
        """How likely each choice is here; the conversation stays as it is. `prior`: the same prompt without content."""
        return self.model.score(self.prompt, choices, prior)

    async def fork(self, count: int = 2) -> list[Talk]:
        """The conversation so far, `count` times, to go on with in different ways; its beginning is computed once."""
        if self.prompt:
            await self.model.begin(self.prompt)
        return [Talk(self.model, cast(Any, self.prompt), self.sampling) for _ in range(count)]

    async def _keep(self, pieces: AsyncIterator[str]) -> AsyncIterator[str]:
        text = ""
        async with aclosing(cast(Any, pieces)):
            async for piece in pieces:
                text += piece
                yield piece
        self._add(text)

    def _add(self, text: str) -> None:
        if self._messages is None:
            self._text += text
        else:
            self._messages.append({"role": "assistant", "content": text})


async def join(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """The results of calls that run side by side, in order. One that fails ends the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _sampling(base: Sampling, changes: Mapping[str, Any]) -> Sampling:
    stop = changes.get("stop", base.stop)
    changes = {**changes, "stop": (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, list) else stop}
    return Sampling.read(asdict(base) | changes).single()


class EngineModel:
    """A model of this process: any engine that fills the seam.

    `constrained`: types are written under their grammar, which the engine must be able to hold a reply to.
    """

    scores = True

    def __init__(self, engine: Engine | StreamingEngine, *, tenant: str = "", constrained: bool = False) -> None:
        self.engine = engine
        self.tenant = tenant
        self.constrained = constrained

    def stream(self, prompt: Prompt, sampling: Sampling, grammar: Grammar | None = None) -> AsyncIterator[str]:
        if hasattr(self.engine, "stream"):
            return _texts(self.engine.stream(prompt, sampling, tenant=self.tenant, grammar=grammar))
        return self._stepped(prompt, sampling, grammar)

    async def _stepped(self, prompt: Prompt, sampling: Sampling, grammar: Grammar | None) -> AsyncIterator[str]:
        """An engine that blocks is asked for each event in a thread."""
        cancelled = Event()
        options: dict[str, Any] = {"grammar": grammar} if grammar else {}
        options |= {"tenant": self.tenant} if self.tenant else {}
        events = self.engine.generate(prompt, sampling, cancelled.is_set, **options)
        try:
            while (event := await asyncio.to_thread(next, events, None)) is not None:
                if isinstance(event, TokenEvent):
                    yield event.text
                elif event.cut:
                    raise _cut(event)
        finally:
            cancelled.set()

    async def score(self, prompt: Prompt, choices: Sequence[str], prior: Prompt | None = None) -> Scores:
        return await asyncio.to_thread(self.engine.score, prompt, choices, prior)

    async def begin(self, prompt: Prompt) -> None:
        await _begin(self, prompt)


class ChainletModel:
    """A model behind a chainlet of the kind engines.llm.chainlet.LLM: `handle` is what depends(LLM) gives.

    A call begins when `stream` or `score` is called, not when it is awaited: others may be begun beside it.
    `constrained`: types are written under their grammar, which the engine must be able to hold a reply to.
    """

    scores = True

    def __init__(self, handle: Any, *, constrained: bool = False) -> None:
        self.handle = handle
        self.constrained = constrained

    def stream(self, prompt: Prompt, sampling: Sampling, grammar: Grammar | None = None) -> AsyncIterator[str]:
        held = () if grammar is None else (0, grammar)
        return _said(self.handle.reply(_plain(prompt), _changed(sampling), *held))

    def score(self, prompt: Prompt, choices: Sequence[str], prior: Prompt | None = None) -> Awaitable[Scores]:
        before = None if prior is None else _plain(prior)
        return cast(Awaitable[Scores], self.handle.score(_plain(prompt), list(choices), before))

    async def begin(self, prompt: Prompt) -> None:
        await _begin(self, prompt)


async def _begin(model: Model, prompt: Prompt) -> None:
    """One token is written for nothing: the prompt's keys and values stay behind in the prefix cache."""
    async for _ in model.stream(prompt, Sampling(max_tokens=1)):
        pass


async def _said(pieces: Any) -> AsyncIterator[str]:
    async with aclosing(pieces):
        async for piece in pieces:
            if piece.text:
                yield piece.text


async def _texts(events: AsyncIterator[TokenEvent | FinishEvent]) -> AsyncIterator[str]:
    async with aclosing(cast(Any, events)):
        async for event in events:
            if isinstance(event, TokenEvent):
                yield event.text
            elif event.cut:
                raise _cut(event)


def _cut(event: FinishEvent) -> RequestFailed:
    return RequestFailed(f"the reply was cut short: {event.cut}", mend="ask again")


def _plain(prompt: Prompt) -> Any:
    return prompt if isinstance(prompt, str) else list(prompt)


def _changed(sampling: Sampling) -> dict[str, Any]:
    """The settings that differ from what every call has, as JSON carries them."""
    usual = asdict(Sampling())
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(sampling).items()
        if value != usual[name]
    }
