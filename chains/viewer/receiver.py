"""OTLP over HTTP: POST /v1/traces, in protobuf or JSON, gzip or not."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from chains.errors import ChainsError, MediaError, Overloaded, ProtocolError
from chains.records.intake import FULL, Intake
from chains.viewer import otlp, otlp_json, otlp_wire
from chains.viewer.bodies import Bodies, too_large

PROTOBUF, JSON = "application/x-protobuf", "application/json"
_SMALL = 64 * 1024
_LARGE = 2 * 2**20  # from here on it matters how little each of its parts says
_MEMBERS = 100  # of one gzip: each costs a copy of what follows it
_CODES = {400: 3, 413: 8, 415: 3, 503: 14}


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bytes of a request, as it comes and unpacked; bytes of all requests in hand, and how many of them may wait to be
    unpacked and decoded, which is done one at a time."""

    packed: int = 16 * 2**20
    unpacked: int = 16 * 2**20
    together: int = 128 * 2**20
    waiting: int = 64


class Receiver:
    """Takes requests in for an Intake. A sender is answered as soon as its spans are checked and queued.

    Spans that are refused, or dropped since the queue is full, are counted and told in `partial_success`; a sender
    need not send them again.
    """

    def __init__(self, intake: Intake, limits: BodyLimits | None = None) -> None:
        self._intake = intake
        self._limits = limits or BodyLimits()
        self._bodies = Bodies(self._limits.packed, self._limits.together)
        self._waiting = 0
        self._decoding = asyncio.Lock()

    def routes(self) -> list[BaseRoute]:
        """What the viewer's app adds to its own."""
        return [Route("/v1/traces", self.traces, methods=["POST"])]

    async def traces(self, request: Request) -> Response:
        """The route POST /v1/traces."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            if kind not in (PROTOBUF, JSON):
                raise MediaError(f"a body of type {kind or '(none)'}", mend=f"send {PROTOBUF} or {JSON}")
            encoding = request.headers.get("content-encoding", "identity").strip().lower()
            if encoding not in ("identity", "gzip", "deflate", ""):
                raise MediaError(f"a body packed as {encoding}", mend="send it as gzip, or as it is")
            async with self._bodies.of(request) as body:
                answer = await self.receive(body, kind, packed=encoding not in ("identity", ""))
        except ClientDisconnect:
            return Response(status_code=400)
        except ChainsError as error:
            return _refusal(error, kind)
        return Response(otlp_json.text(answer) if kind == JSON else answer.SerializeToString(), media_type=kind)

    async def receive(self, body: bytes, kind: str = PROTOBUF, packed: bool = False) -> ExportTraceServiceResponse:
        """`take` in a thread, unless it is done in a moment. Overloaded when too many wait."""
        if len(body) < _SMALL and not packed:
            return self.take(body, kind)
        if self._waiting >= self._limits.waiting:
            raise Overloaded("too many requests wait to be decoded", mend="send again in a moment")
        self._waiting += 1
        try:
            async with self._decoding:  # one at a time: they would only share the interpreter, and add up in memory
                return await asyncio.to_thread(self.take, body, kind, packed)
        finally:
            self._waiting -= 1

    def take(self, body: bytes, kind: str = PROTOBUF, packed: bool = False) -> ExportTraceServiceResponse:
        """Take in a request; ProtocolError when it cannot be read, LimitExceeded when it is too large. Thread-safe."""
        if packed:
            body = unpacked(body, self._limits.unpacked)
        bad = 0
        if kind == JSON:
            message, bad = otlp_json.parse(body)
        else:
            otlp_wire.check(body)
            try:
                message = ExportTraceServiceRequest.FromString(body)
            except (DecodeError, RecursionError, ValueError):
                raise otlp_wire.malformed() from None
        if len(body) > _LARGE:
            otlp.weigh(message)
        if self._intake.full:
            senders = otlp.senders(message)
            self._intake.drop({(sender, FULL): count for sender, count in senders.items()})
            return _partial(sum(senders.values()) + bad, FULL)
        decoded = otlp.decode(message)
        if bad:
            sender = next(iter(otlp.senders(message)), otlp.UNNAMED)
            decoded.refused[sender, otlp_json.MALFORMED] += bad
        self._intake.drop(decoded.refused)
        if not self._intake.offer(decoded.spans):
            return _partial(len(decoded.spans) + decoded.refused.total(), FULL)
        return _partial(decoded.refused.total(), decoded.complaint())


def unpacked(body: bytes, limit: int) -> bytes:
    """What gzip or zlib packed; LimitExceeded past `limit` bytes, ProtocolError when it is damaged."""
    found = bytearray()
    members = 0
    while body:
        members += 1
        if members > _MEMBERS:
            raise ProtocolError(f"a gzip of more than {_MEMBERS} members", mend="pack a request as one")
        unpacker = zlib.decompressobj(32 + zlib.MAX_WBITS)  # tells gzip and zlib apart itself
        try:
            found += unpacker.decompress(body, limit + 1 - len(found))
        except zlib.error as error:
            raise ProtocolError(f"the body cannot be unpacked: {error}", mend="send gzip") from None
        if len(found) > limit:
            raise too_large(limit)
        if not unpacker.eof:
            raise ProtocolError("the packed body is cut off", mend="send all of it")
        body = unpacker.unused_data
    return bytes(found)


def _partial(rejected: int, why: str) -> ExportTraceServiceResponse:
    """The answer; empty when all spans were taken."""
    answer = ExportTraceServiceResponse()
    if rejected:
        answer.partial_success.rejected_spans = rejected
        answer.partial_success.error_message = why
    return answer


def _refusal(error: ChainsError, kind: str) -> Response:
    """An error's status and body: google.rpc.Status in the encoding of the request."""
    code, message = _CODES.get(error.http, 13), str(error)
    headers = {"retry-after": "1"} if error.http == 503 else {}
    if kind == PROTOBUF:
        return Response(status(code, message), error.http, headers, media_type=PROTOBUF)
    body = msgspec.json.encode({"code": code, "message": message})
    return Response(body, error.http, headers, media_type=JSON)


def status(code: int, message: str) -> bytes:
    """A google.rpc.Status (code = 1, message = 2); `code` is below 128."""
    words = message.encode()[: 2**14 - 1]
    size = bytes([len(words)]) if len(words) < 128 else bytes([len(words) & 127 | 128, len(words) >> 7])
    return b"\x08" + bytes([code]) + b"\x12" + size + words
