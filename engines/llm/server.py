"""A model behind OpenAI's API over HTTP: /v1/chat/completions, /v1/completions, /v1/models, /metrics, /health."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from engines.llm.errors import EngineError
from engines.llm.metrics import CONTENT_TYPE, Metrics
from engines.llm.openai import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    Job,
    Model,
    chat_job,
    completion_job,
    read,
    translated,
)
from engines.llm.replies import Answer, TokenTexts
from engines.llm.seam import Event, FinishEvent, TokenEvent
from engines.llm.streaming import EventStream, ServedEngine, events_of, lines, unless_left
from engines.llm.tools import format_of

logger = logging.getLogger(__name__)
Handler = Callable[[Request], Awaitable[Response]]


BYTES_A_TOKEN = 64
"""More than a token of a chat has on average, escapes of JSON included."""
BYTES_OF_OTHERS = 256 * 1024
"""What may stand in a chat's request and is not part of its prompt: a schema, say."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`name` is the model's in the API, `key` what callers must send ("" lets everybody in). Seconds and bytes."""

    name: str = "default"
    key: str = ""
    body_bytes: int = 4 * 1024 * 1024
    body_seconds: float = 30.0
    stale_seconds: float = 30.0


class Served:
    """The model that is served, from the moment that the port is open: loading, then ready, then draining."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.draining = False
        self.running = 0
        self.created = int(time.time())
        self._engine: ServedEngine | None = None
        self._model: Model | None = None
        self._texts: TokenTexts | None = None

    def ready(self, engine: ServedEngine) -> None:
        """The model is loaded."""
        form = format_of(engine.tokenizer.templates)
        self._model = Model(self.settings.name, engine.tokenizer, engine.context, form)
        self._texts = TokenTexts(engine.tokenizer)
        self._engine = engine

    @property
    def engine(self) -> ServedEngine:
        """Raises ApiError while there is none, or no more."""
        if self._engine is None:
            raise _unavailable("the model is still being loaded; try again soon")
        if self.draining:
            raise _unavailable("the server is going down; ask another")
        return self._engine

    @property
    def model(self) -> Model:
        assert self._model is not None
        return self._model

    def answer(self, job: Job, *, chat: bool) -> Answer:
        assert self._texts is not None
        return Answer(job, self._texts, self.settings.name, chat=chat)

    def health(self) -> tuple[int, dict[str, Any]]:
        """HTTP status and words: 503 while it loads, drains, is dead, or has work and took no step for too long."""
        if self._engine is None:
            return 503, {"status": "loading"}
        age = self._engine.age
        if not self._engine.alive:
            return 503, {"status": "dead", "age_seconds": age}
        if age > self.settings.stale_seconds:
            return 503, {"status": "stuck", "age_seconds": age}
        return (503, {"status": "draining"}) if self.draining else (200, {"status": "ok", "age_seconds": age})

    def gauges(self) -> dict[str, float]:
        """The engine's numbers of this moment."""
        if self._engine is None:
            return {"up": 0.0}
        stats: Any = self._engine.stats()
        if is_dataclass(stats) and not isinstance(stats, type):
            stats = asdict(stats)
        elif hasattr(stats, "_asdict"):
            stats = stats._asdict()
        numbers = {name: float(value) for name, value in stats.items() if isinstance(value, int | float)}
        return {"up": float(self._engine.alive), "age_seconds": self._engine.age, **numbers}


def application(served: Served) -> Starlette:
    """The HTTP application. Nothing of what callers write is logged."""
    server = _Server(served)
    routes = [
        Route("/v1/chat/completions", server.endpoint(server.chat), methods=["POST"]),
        Route("/v1/completions", server.endpoint(server.completion), methods=["POST"]),
        Route("/v1/models", server.endpoint(server.models), methods=["GET"]),
        Route("/v1/models/{name:path}", server.endpoint(server.one_model), methods=["GET"]),
        Route("/metrics", server.endpoint(server.metrics), methods=["GET"]),
        Route("/health", server.health, methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers={404: _no_path, 405: _no_method})


class _Server:
    def __init__(self, served: Served) -> None:
        self._served = served

    def endpoint(self, handler: Handler) -> Handler:
        """A handler behind the key, whose failures are OpenAI's error JSON."""

        async def guarded(request: Request) -> Response:
            try:
                self._check_key(request)
                response = await handler(request)
            except ApiError as error:
                response = _failure(error)
            except EngineError as error:
                response = _failure(translated(error))
            except ClientDisconnect:
                response = Response(status_code=499)
            except Exception as error:
                frames = "".join(traceback.format_tb(error.__traceback__))  # no message: it may hold a caller's text
                logger.error("a request to %s failed with %s\n%s", request.url.path, type(error).__name__, frames)
                response = _failure(ApiError(500, f"{type(error).__name__} in the server", kind="server_error"))
            self._served.metrics.requests.add(path=request.scope["route"].path, status=str(response.status_code))
            return response

        return guarded

    def _check_key(self, request: Request) -> None:
        key = self._served.settings.key
        if not key:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), key.encode()):
            raise ApiError(
                401,
                "the API key is missing or wrong; send Authorization: Bearer KEY",
                code="invalid_api_key",
                kind="authentication_error",
                headers={"WWW-Authenticate": "Bearer"},
            )

    async def chat(self, request: Request) -> Response:
        asked = read(ChatRequest, self._short(await self._body(request)))
        self._check_name(asked.model)
        engine = self._served.engine
        job = await asyncio.to_thread(chat_job, asked, self._served.model)
        return await self._run(request, engine, job, chat=True)

    async def completion(self, request: Request) -> Response:
        asked = read(CompletionRequest, await self._body(request))
        self._check_name(asked.model)
        engine = self._served.engine
        job = await asyncio.to_thread(completion_job, asked, self._served.model)
        return await self._run(request, engine, job, chat=False)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def one_model(self, request: Request) -> Response:
        self._check_name(request.path_params["name"])
        return JSONResponse(self._card())

    async def metrics(self, request: Request) -> Response:
        return PlainTextResponse(self._served.metrics.text(self._served.gauges()), media_type=CONTENT_TYPE)

    async def health(self, request: Request) -> Response:
        status, words = self._served.health()
        return JSONResponse(words, status_code=status)

    def _card(self) -> dict[str, Any]:
        engine, settings = self._served.engine, self._served.settings
        card = {"id": settings.name, "object": "model", "created": self._served.created, "owned_by": "chains"}
        run = {"precision": engine.facts.precision, "device": engine.facts.device}
        return {**card, "max_model_len": engine.context, "card": dict(engine.card), "served": run}

    def _check_name(self, name: str | None) -> None:
        if name != self._served.settings.name:
            found = "no model is named" if name is None else f"there is no model {name!r};"
            raise ApiError(
                404 if name is not None else 400,
                f"{found} write model: {self._served.settings.name!r}",
                code="model_not_found" if name is not None else "missing_required_parameter",
                param="model",
            )

    def _short(self, body: bytes) -> bytes:
        """A chat that no context could hold is refused before its tokens are counted, which takes seconds."""
        context = self._served.engine.context
        if len(body) > context * BYTES_A_TOKEN + BYTES_OF_OTHERS:
            raise ApiError(
                400,
                f"the chat has {len(body)} bytes, far more than this model's {context} tokens hold; send less of it",
                code="context_length_exceeded",
                param="messages",
            )
        return body

    async def _body(self, request: Request) -> bytes:
        settings = self._served.settings
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # a page of somebody else's may not send this without asking first
            raise ApiError(415, "the body is not said to be JSON; send Content-Type: application/json")
        too_large = ApiError(413, f"the body is larger than {settings.body_bytes} bytes", code="request_too_large")
        if int(request.headers.get("content-length") or 0) > settings.body_bytes:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(settings.body_seconds):
                async for piece in request.stream():
                    body += piece
                    if len(body) > settings.body_bytes:
                        raise too_large
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {settings.body_seconds:g} s") from None
        return bytes(body)

    async def _run(self, request: Request, engine: ServedEngine, job: Job, *, chat: bool) -> Response:
        """The answer of a job: its first event is awaited, so that what is refused has its HTTP status."""
        _check_number(job, engine.facts.max_waiting)
        started = time.perf_counter()
        answer = self._served.answer(job, chat=chat)
        events = self._counted(events_of(engine, job), answer, started)
        if not job.stream:
            return await unless_left(request.receive, self._collect(events, answer))
        first = await unless_left(request.receive, _first(events))
        return EventStream(lines(first, events, answer))

    async def _collect(self, events: AsyncIterator[tuple[int, Event]], answer: Answer) -> Response:
        async with aclosing(events):  # type: ignore[type-var]  # it is a generator
            async for prompt, event in events:
                answer.add(prompt, event)
        return JSONResponse(answer.whole())

    async def _counted(
        self, events: AsyncIterator[tuple[int, Event]], answer: Answer, started: float
    ) -> AsyncIterator[tuple[int, Event]]:
        """The events as they are, with what the metrics tell of them."""
        metrics = self._served.metrics
        first: float | None = None
        self._served.running += 1
        try:
            async with aclosing(events):  # type: ignore[type-var]  # it is a generator
                async for prompt, event in events:
                    if first is None and isinstance(event, TokenEvent):
                        first = time.perf_counter()
                        metrics.first_token.observe(first - started)
                    if isinstance(event, FinishEvent):
                        self._count_end(event, first)
                    yield prompt, event
            for reply in answer.replies:
                for fault in reply.faults():
                    metrics.tool_calls.add(fit="no" if fault else "yes")
        finally:
            self._served.running -= 1
            metrics.request.observe(time.perf_counter() - started)

    def _count_end(self, event: FinishEvent, first: float | None) -> None:
        metrics, usage = self._served.metrics, event.usage
        metrics.finished.add(reason=event.reason)
        if event.index == 0:
            metrics.prompt_tokens.add(usage.prompt)
            metrics.cached_tokens.add(usage.cached)
        metrics.completion_tokens.add(usage.completion)
        if first is not None and usage.completion > 1:
            metrics.token.observe((time.perf_counter() - first) / (usage.completion - 1))


async def _first(events: AsyncIterator[tuple[int, Event]]) -> tuple[int, Event]:
    try:
        return await anext(events)
    except StopAsyncIteration:
        raise ApiError(500, "the engine gave no answer", code="engine_error", kind="server_error") from None


def _check_number(job: Job, most: int) -> None:
    """Raises for more replies than may wait at once: whoever came back later would be refused again."""
    prompts, each = len(job.prompts), job.sampling.n
    if prompts * each > most:
        raise ApiError(
            400,
            f"{prompts} prompts with n={each} are {prompts * each} replies, and {most} may wait at once; ask for fewer",
            code="invalid_value",
            param="prompt" if prompts > 1 else "n",
        )


def _unavailable(message: str) -> ApiError:
    return ApiError(503, message, code="unavailable", kind="server_error", headers={"Retry-After": "2"})


def _failure(error: ApiError) -> Response:
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers)


async def _no_path(request: Request, error: Exception) -> Response:
    return _failure(ApiError(404, f"there is no {request.url.path}; /v1/chat/completions is one", code="not_found"))


async def _no_method(request: Request, error: Exception) -> Response:
    return _failure(ApiError(405, f"{request.method} is not for {request.url.path}", code="method_not_allowed"))
