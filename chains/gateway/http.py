"""Calls over plain HTTP: JSON in and out, events or JSON lines for streams, audio files in and out."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from chains import protocol
from chains.call import HANG_UP, Call
from chains.dsl.signature import Method
from chains.errors import (
    Cancelled,
    ChainsError,
    DeadlineExceeded,
    InvalidValue,
    LimitExceeded,
    MediaError,
    ProtocolError,
    Unauthenticated,
)
from chains.gateway import audio
from chains.gateway.session import REPLAY_HEADER, Gateway, Inbox, bind
from chains.gateway.tape import Loose, Tape
from chains.messages import Audio

log = logging.getLogger("chains.gateway")
STREAM_TYPES = {"sse": "text/event-stream", "lines": "application/x-ndjson", "wav": "audio/wav"}


def error_response(error: BaseException, debug: bool = False) -> Response:
    """An error as JSON: {"error": {"type", "message", "mend"}}, with its HTTP status."""
    status = error.http if isinstance(error, ChainsError) else 500
    headers: dict[str, str] = {}
    if isinstance(error, ChainsError) and error.retryable:
        headers["retry-after"] = "1"
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    body = msgspec.json.encode({"error": protocol.error_fields(error, debug=debug)})
    return Response(body, status, headers, "application/json")


class CallEndpoint:
    """POST /v1/call/{method}: an ASGI app of its own, so that a caller who leaves is always noticed."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(self.gateway, scope, receive, send)
        try:
            with self.gateway.admit():
                await exchange.conduct()
        except Exception as error:
            await exchange.fail(error)


class Exchange:
    """One request and its answer."""

    def __init__(self, gateway: Gateway, scope: Scope, receive: Receive, send: Send) -> None:
        self.gateway = gateway
        self.scope = scope
        self.headers = Headers(scope=scope)
        self._receive, self._send = receive, send
        self._started = self._gone = False
        self._style: Literal["sse", "lines", "wav", "unary"] = "unary"
        self._tape: Tape | None = None
        self._sound: tuple[str, Audio] | None = None  # a body of audio, and the stream that it feeds

    async def conduct(self) -> None:
        headers, gateway = self.headers, self.gateway
        if not gateway.origin_allowed(headers.get("origin", ""), headers.get("host", "")):
            raise Unauthenticated("pages of other sites may not call", mend="list it in GatewaySettings.origins")
        gateway.authorise(headers.get("authorization", ""))
        method = gateway.method(self.scope["path_params"].get("method", ""))
        self._style = self._wanted_style(method)
        body = await self._body()
        inboxes = {param.name: Inbox(param, gateway.settings) for param in method.params if param.stream}
        given = self._given(method, body, inboxes)
        arguments = bind(method, given, inboxes)
        for inbox in inboxes.values():
            inbox.end()
        replay_of = headers.get(REPLAY_HEADER, "")
        async with gateway.open_call(
            method,
            traceparent=headers.get("traceparent"),
            tracestate=headers.get("tracestate"),
            replay_of=replay_of,
        ) as call:
            self._tape = gateway.tape(call, method, given, replay_of=replay_of)
            self._record_sound(inboxes)
            leaving = asyncio.create_task(self._watch_leaving(call))
            try:
                await self._answer(method, arguments, call)
            finally:
                leaving.cancel()
                await asyncio.gather(leaving, return_exceptions=True)
                if self._tape is not None:
                    self._tape.close()

    def _wanted_style(self, method: Method) -> Literal["sse", "lines", "wav", "unary"]:
        accept = self.headers.get("accept", "")
        if "audio/wav" in accept or "audio/x-wav" in accept:
            return "wav"
        if "text/event-stream" in accept:
            return "sse"
        return "lines" if method.streams_out else "unary"

    # what came

    async def _body(self) -> bytes:
        limit = self.gateway.settings.max_body
        pieces: list[bytes] = []
        size = int(self.headers.get("content-length") or 0)
        while True:
            if size > limit:
                raise LimitExceeded(
                    f"a body of {size} bytes is over the limit of {limit}",
                    mend="send less, stream it over the websocket, or raise GatewaySettings.max_body",
                )
            try:
                async with asyncio.timeout(self.gateway.settings.idle_seconds):
                    message = await self._receive()
            except TimeoutError:
                raise DeadlineExceeded("the body did not come to its end", mend="send it without pauses") from None
            if message["type"] == "http.disconnect":
                self._gone = True
                raise Cancelled(HANG_UP)
            pieces.append(message.get("body", b""))
            size = max(size, sum(map(len, pieces)))
            if not message.get("more_body", False):
                break
        return b"".join(pieces)

    def _given(self, method: Method, body: bytes, inboxes: dict[str, Inbox]) -> dict[str, Any]:
        """The arguments: a JSON object, or an audio file for the stream of audio, the rest in the query."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind.startswith("audio/"):
            return self._audio_given(method, body, inboxes)
        if kind not in ("", "application/json", "application/x-www-form-urlencoded", "text/json"):
            raise MediaError(
                f"a body of {kind} is not understood",
                mend="send application/json, or a wav file as audio/wav",
            )
        if not body:
            return {}
        try:
            given = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(
                f"the body is not JSON: {error}", mend='send an object of arguments, e.g. {"text": "hello"}'
            ) from None
        if not isinstance(given, dict):
            raise ProtocolError(
                f"the body is a JSON {type(given).__name__}",
                mend='send an object of arguments, e.g. {"text": "hello"}',
            )
        return given

    def _audio_given(self, method: Method, body: bytes, inboxes: dict[str, Inbox]) -> dict[str, Any]:
        query = QueryParams(self.scope.get("query_string", b""))
        texts = {param.name for param in method.params if param.annotation is str}
        given = {name: value if name in texts else _json_or_text(value) for name, value in query.items()}
        inbox = next((box for box in inboxes.values() if "Audio" in str(box.param.annotation)), None)
        if inbox is None:
            raise MediaError(f"{method.label} takes no stream of audio", mend="send JSON, or call another method")
        rates = self.gateway.settings.rates
        sound = audio.read(body)
        if sound.rate not in rates:
            sound = audio.resample(sound, rates[-1])
        for frame in audio.frames(sound):
            inbox.put(frame, 0)
        self._sound = inbox.param.name, sound
        return given

    def _record_sound(self, inboxes: dict[str, Inbox]) -> None:
        if self._tape is None or self._sound is None:
            return
        name, sound = self._sound
        stream = list(inboxes).index(name)
        self._tape.received(Loose("audio", sound), stream)
        self._tape.received(Loose("end", None), stream)

    async def _watch_leaving(self, call: Call) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if self._tape is not None:
            self._tape.hung_up()
        call.cancel(HANG_UP)

    # what goes back

    async def _answer(self, method: Method, arguments: dict[str, Any], call: Call) -> None:
        items = self.gateway.items(method, arguments)
        if self._tape is not None:
            items = self._tape.given(items, method)
        if self._style == "unary":
            async for value in items:
                body = msgspec.json.encode({"result": method.result.dump(value)})
                await self._whole(Response(body, 200, _names(call), "application/json"))
            return
        pieces = self._wav(items) if self._style == "wav" else self._events(method, items)
        async for piece in pieces:
            await self._piece(piece, call)
        await self._end()

    async def _events(self, method: Method, items: AsyncIterator[Any]) -> AsyncIterator[bytes]:
        async for value in items:
            fields = {"kind": protocol.kind_of(value), "turn": getattr(value, "turn", 0)}
            yield self._event("item", {**fields, "value": method.result.dump(value)})
        yield self._event("done", {})

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        data = msgspec.json.encode({"type": kind, **fields})
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n" if self._style == "sse" else data + b"\n"

    async def _wav(self, items: AsyncIterator[Any]) -> AsyncIterator[bytes]:
        """The audio alone, as one wav of unknown length at the rate of its first piece."""
        rate = 0
        async for value in items:
            if not isinstance(value, Audio):
                continue
            if not rate:
                rate = value.rate
                yield wav_header(rate)
            yield audio.resample(value, rate).to_bytes()
        if not rate:
            raise InvalidValue("the method made no audio", mend="ask for application/json or text/event-stream")

    async def _piece(self, data: bytes, call: Call) -> None:
        if not self._started:
            headers = {
                "content-type": STREAM_TYPES[self._style],
                "cache-control": "no-store",
                **_names(call),
            }
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            self._started = True
            await self._out({"type": "http.response.start", "status": 200, "headers": raw})
        await self._out({"type": "http.response.body", "body": data, "more_body": True})

    async def _end(self) -> None:
        await self._out({"type": "http.response.body", "body": b"", "more_body": False})

    async def _out(self, message: Message) -> None:
        if self._gone:
            raise Cancelled(HANG_UP)
        await self._send(message)

    async def _whole(self, response: Response) -> None:
        self._started = True
        await response(self.scope, self._receive, self._send)

    async def fail(self, error: Exception) -> None:
        """Tell of an error: as the status if nothing was sent yet, else as the last event of the stream."""
        if self._gone:
            return
        debug = self.gateway.settings.debug
        if not self._started:
            await self._whole(error_response(error, debug))
            return
        if self._style in ("sse", "lines"):
            kind = "cancelled" if isinstance(error, Cancelled) else "error"
            await self._send(
                {
                    "type": "http.response.body",
                    "body": self._event(kind, {"error": protocol.error_fields(error, debug=debug)}),
                    "more_body": True,
                }
            )
            await self._end()
        # a broken-off wav: the connection closes without the last chunk, which is what tells the caller


def _names(call: Call) -> dict[str, str]:
    """Headers by which a caller finds the call again: its id, and its span as W3C's trace context answers it."""
    return {"x-call-id": call.id, "traceresponse": call.traceparent}


def _json_or_text(value: str) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value


def wav_header(rate: int) -> bytes:
    """A wav header for a stream of 16-bit mono whose length nobody knows yet."""
    unknown = 0xFFFF_FFFF
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", unknown, b"WAVE", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    return head + struct.pack("<4sI", b"data", unknown)
