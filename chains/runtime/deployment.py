"""What every runtime offers to the rooms above it: an entry to call, calls to open, its load and its health."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from chains.call import Call
from chains.dsl.graph import Graph
from chains.spans import Recorder
from chains.timing import Clock

State = Literal["starting", "loading", "warming", "ready", "draining", "stopped", "failed", "dead"]


@dataclass(frozen=True, slots=True)
class Progress:
    """A replica has entered `stage`, `seconds` after the start began."""

    node: str
    replica: str
    stage: State
    seconds: float


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """What a replica has to do now. `draining` are slots that cancelled work still holds, part of `running`.

    `batch` of the `queued` are batch, `active` of the running hops do something now (one that waits outside of any
    turn does not). `streams` are open streams, `turns` running hops of a turn, `queue_wait_ms` what the call that
    was admitted last (or the oldest that still waits) has waited, `idle_s` how long ago a hop here last moved.
    """

    node: str
    replica: str
    state: State
    running: int = 0
    queued: int = 0
    streams: int = 0
    turns: int = 0
    draining: int = 0
    queue_wait_ms: float = 0.0
    idle_s: float = 0.0
    batch: int = 0
    active: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """`ok` is whether work can start and moves; `why` says what is wrong otherwise."""

    ok: bool
    why: str
    replicas: tuple[ReplicaLoad, ...]


ProgressFn = Callable[[Progress], None]


class Runtime(Protocol):
    """A chain that runs somewhere. `async with` starts it (or raises StartError) and drains it at the end."""

    graph: Graph
    clock: Clock
    recorder: Recorder

    @property
    def entry(self) -> Any:
        """The entry chainlet's handle: its methods can be called within an open call."""
        ...

    def handle(self, node: str) -> Any:
        """A handle on any chainlet of the chain, for tests and tools. Raises NotFound."""
        ...

    def open_call(
        self,
        *,
        id: str | None = None,
        tenant: str = "",
        priority: Literal["interactive", "batch"] = "interactive",
        affinity: str = "",
        deadline_s: float | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> AbstractAsyncContextManager[Call]:
        """A conversation; leaving the block cancels what is left of it."""
        ...

    def load(self) -> list[ReplicaLoad]: ...
    def health(self) -> Health: ...
    async def kill(self, node: str, index: int) -> None:
        """Take a replica away at once, as a crash would. For tests."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
