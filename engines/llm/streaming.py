"""From an engine's events to the bytes of a response, and back: a client that leaves ends what was made for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engines.llm.config import Sampling
from engines.llm.errors import EngineError
from engines.llm.openai import ApiError, Job, translated
from engines.llm.replies import Answer
from engines.llm.seam import Event, Grammar

T = TypeVar("T")


class Run(Protocol):
    """How the model runs, whatever its files are."""

    @property
    def precision(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def max_waiting(self) -> int: ...


class ServedEngine(Protocol):
    """What is served: the front of an engine. `age` is the seconds since the last step while work waits, else 0."""

    tokenizer: Any

    @property
    def facts(self) -> Run: ...
    @property
    def context(self) -> int: ...
    @property
    def card(self) -> Mapping[str, Any]: ...
    @property
    def alive(self) -> bool: ...
    @property
    def age(self) -> float: ...
    def stats(self) -> Any: ...
    def close(self) -> None: ...

    def stream(
        self,
        prompt: Any,
        sampling: Sampling,
        *,
        tenant: str = "",
        batch: bool = False,
        grammar: Grammar | None = None,
    ) -> AsyncIterator[Event]: ...


async def events_of(engine: ServedEngine, job: Job) -> AsyncIterator[tuple[int, Event]]:
    """Events of all prompts as they come, each with the number of its prompt. Closing it ends what still runs."""

    def stream(number: int) -> AsyncIterator[Event]:
        prompt = job.prompts[number]
        return engine.stream(prompt, job.sampling, tenant=job.tenant, batch=job.batch, grammar=job.grammar)

    if len(job.prompts) == 1:
        async with aclosing(stream(0)) as only:  # type: ignore[type-var]  # it is a generator
            async for event in only:
                yield 0, event
        return
    arrived: asyncio.Queue[tuple[int, Event] | None] = asyncio.Queue(maxsize=64)

    async def forward(number: int) -> None:
        async with aclosing(stream(number)) as one:  # type: ignore[type-var]  # it is a generator
            async for event in one:
                await arrived.put((number, event))

    async def forward_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(len(job.prompts)):
                    group.create_task(forward(number))
        finally:
            await arrived.put(None)

    task = asyncio.create_task(forward_all())
    try:
        while (found := await arrived.get()) is not None:
            yield found
        try:
            await task
        except* EngineError as errors:
            raise _only(errors) from None
    finally:
        task.cancel()
        while not task.done():  # room for the last put
            await asyncio.wait({task}, timeout=0.01)
            while not arrived.empty():
                arrived.get_nowait()


def _only(errors: BaseExceptionGroup[EngineError]) -> BaseException:
    first = errors.exceptions[0]
    return _only(first) if isinstance(first, BaseExceptionGroup) else first


async def lines(
    first: tuple[int, Event], events: AsyncIterator[tuple[int, Event]], answer: Answer
) -> AsyncIterator[bytes]:
    """The lines of a stream: chunks, then the usage where it was asked for, then the end."""
    async with aclosing(events):  # type: ignore[type-var]  # it is a generator
        try:
            for chunk in answer.opening() + answer.chunks(*first):
                yield _line(chunk)
            async for prompt, event in events:
                for chunk in answer.chunks(prompt, event):
                    yield _line(chunk)
        except ApiError as error:
            yield _line(error.body())
            return
        except EngineError as error:
            yield _line(translated(error).body())
            return
    if answer.job.include_usage:
        yield _line(answer.usage_chunk())
    yield b"data: [DONE]\n\n"


def _line(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(Response):
    """Server-sent events. A client that leaves ends the generation at once."""

    media_type = "text/event-stream"

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_left(receive, self._write(send))
        except (ClientDisconnect, OSError):
            pass  # nobody is there to be told

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._lines):  # type: ignore[type-var]  # it is a generator
            async for line in self._lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_left(receive: Receive, work: Awaitable[T]) -> T:
    """The work's result. When the client leaves first, the work is cancelled and ClientDisconnect raised."""

    async def left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
