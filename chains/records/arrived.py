"""A span on its way into the store: checked, and small enough to wait in a queue."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec

Millis = Annotated[float, msgspec.Meta(ge=-1e10, le=1e10)]
Length = Annotated[float, msgspec.Meta(ge=0.0, le=2.6e9)]  # 30 days
Small = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Source(NamedTuple):
    """The process that exported: what its OpenTelemetry resource says."""

    service: str = ""
    version: str = ""
    instance: str = ""
    chain: str = ""
    app: str = ""

    @property
    def label(self) -> str:
        """How it is called where drops are counted."""
        return f"{self.service} ({self.instance})" if self.instance else self.service or "(unnamed)"


class CallEnd(NamedTuple):
    """What the span of a whole call says; `lost` is how many spans its exporter has dropped since it last said so."""

    method: str
    tenant: str
    outcome: str
    reason: str
    turns: int
    lost: int = 0


class Segment(NamedTuple):
    """A stretch of a turn's critical path: `start` since the latency's start, both in ms."""

    hop: str
    part: str
    name: str
    replica: str
    start: float
    ms: float


class TurnEnd(NamedTuple):
    """What the span of a turn says. `path` is as it is stored; `shares` are (hop, replica, part, ms) of it."""

    latency_ms: float
    state: str
    reason: str
    path: bytes | None
    shares: tuple[tuple[str, str, str, float], ...]


class Arrived(msgspec.Struct, gc=False, frozen=True):
    """One span. `call` is empty for one that no chain of ours sent; ids are signed 64 bit, times ns since 1970.

    `parts` and `rest` are as they are stored; `detail` is there for calls and turns.
    """

    source: Source
    trace: bytes
    span: int
    parent: int
    name: str
    kind: int
    call: str
    turn: int
    replica: str
    start: int
    duration: int
    status: int
    parts: bytes | None
    rest: bytes | None
    detail: CallEnd | TurnEnd | None = None

    @property
    def size(self) -> int:
        """About how many bytes of memory it holds."""
        return 400 + len(self.rest or b"")
