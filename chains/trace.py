"""W3C trace context: how a call goes on with somebody else's trace, and how their own spans nest under a hop."""

from __future__ import annotations

import random
import re
import secrets
import sys
from contextvars import Context
from dataclasses import dataclass
from typing import Any

_TRACEPARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})((?:-.*)?)", re.ASCII
)
_STATE = 512
"""Characters of a tracestate that are passed on, at most: what the standard asks for."""
_bits = random.Random(secrets.randbits(128)).getrandbits


def new_span() -> int:
    """A span's id: 64 random bits, never 0. As cheap as a hop needs it; no secret."""
    return _bits(64) or 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """`trace_id` in 32 hex digits, `parent` in 16 ("" where the trace begins here), whether it is to be recorded, and
    the `state` that other systems keep in it."""

    trace_id: str
    parent: str = ""
    sampled: bool = True
    state: str = ""

    @classmethod
    def read(cls, traceparent: str | None, tracestate: str | None = None) -> TraceContext:
        """What the two headers say; a new trace when the first is missing or bad."""
        found = _TRACEPARENT.fullmatch((traceparent or "").strip().lower())
        if found is None or (found[1] == "00" and found[5]):
            return cls(secrets.token_hex(16))
        state = (tracestate or "").strip()
        if len(state) > _STATE or not state.isascii() or not state.isprintable():
            state = ""
        return cls(found[2], found[3], bool(int(found[4], 16) & 1), state)


def traceparent(trace_id: str, span: int, sampled: bool) -> str:
    """The header that says: the caller is this span."""
    return f"00-{trace_id}-{span:016x}-{'01' if sampled else '00'}"


def nest(context: Context, trace_id: str, span: int, sampled: bool, state: str) -> None:
    """Where the user's own OpenTelemetry is set up: spans that code makes in `context` become children of `span`."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return
    attach = sys.modules["opentelemetry.context"].attach
    parent = api.SpanContext(
        int(trace_id, 16),
        span,
        is_remote=False,
        trace_flags=api.TraceFlags(int(sampled)),
        trace_state=api.TraceState.from_header([state]) if state else None,
    )
    context.run(lambda: attach(api.set_span_in_context(api.NonRecordingSpan(parent))))
