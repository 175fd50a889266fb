"""The conversations that a runtime has open, and the work that they leave behind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, Literal

from chains.call import ENDED, Call, Hop
from chains.dsl.graph import Graph
from chains.errors import NotFound, SettingError, Unavailable
from chains.runtime.drive import Line, Target
from chains.runtime.handle import Handle
from chains.spans import Recorder
from chains.timing import Clock, LoopClock

AFTER_SECONDS = 120.0
LONGEST_NAME = 1024
"""Characters of a call's id, tenant and affinity key: they travel with each of its hops."""
log = logging.getLogger("chains")


def _named(what: str, value: object) -> None:
    """Refuse a name that could not go along with the call to another process."""
    if not isinstance(value, str) or len(value) > LONGEST_NAME or not value.isprintable():
        shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."
        raise SettingError(
            f"open_call({what}={shown}) is no name", mend=f"give text that prints, of at most {LONGEST_NAME} characters"
        )


class Conversations:
    """Opens calls, tells a recorder of them, and runs what their hops left to do."""

    def __init__(self, clock: Clock, recorder: Recorder) -> None:
        self.clock = clock
        self.recorder = recorder
        self._calls: dict[str, Call] = {}
        self._afters: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open_call(
        self,
        *,
        id: str | None = None,
        tenant: str = "",
        priority: Literal["interactive", "batch"] = "interactive",
        affinity: str = "",
        deadline_s: float | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> AsyncIterator[Call]:
        """See `Runtime.open_call`."""
        for name, value in (("id", id), ("tenant", tenant), ("affinity", affinity)):
            _named(name, value or "")
        deadline = None if deadline_s is None else self.clock.now() + deadline_s
        call = Call(
            self.clock,
            id=id,
            tenant=tenant,
            priority=priority,
            affinity=affinity,
            deadline=deadline,
            traceparent=traceparent,
            tracestate=tracestate,
        )
        if call.id in self._calls:
            raise SettingError(f"call {call.id} is open already", mend="give each call its own id, or none")
        self._calls[call.id] = call
        self.recorder.open(call)
        call.arm("the call ran out of time")
        try:
            with call.activate():
                yield call
        finally:
            call.cancel(ENDED)
            call.close()
            del self._calls[call.id]
            self.recorder.close(call)

    def _after(self, hop: Hop) -> None:
        """Do what the hop left to be done, in a call of its own."""
        task = asyncio.get_running_loop().create_task(self._work_after(hop), context=Context())
        self._afters.add(task)
        task.add_done_callback(self._afters.discard)

    async def _work_after(self, hop: Hop) -> None:
        call = hop.call
        try:
            async with self.open_call(
                id=f"{call.id}-after-{hop.id}", tenant=call.tenant, priority="batch", deadline_s=AFTER_SECONDS
            ):
                for work in hop.afters:
                    await work()
        except Exception as error:
            log.warning("work after %s of call %s failed: %s", hop.timing.label, call.id, type(error).__name__)

    async def _settle(self, grace: float) -> None:
        """Give work that was left behind up to `grace` seconds."""
        if self._afters and grace:
            await asyncio.wait(self._afters, timeout=grace)

    def _cancel_calls(self, reason: str) -> None:
        """End everything that is open."""
        for task in self._afters:
            task.cancel()
        for call in list(self._calls.values()):
            call.cancel(reason)


class ChainRuntime(Conversations):
    """What every runtime of a whole chain shares: its settings, and the handles it gives.

    `replicas` maps node names to counts; how many there are of the others, each runtime says. Raises SettingError for a
    node that is none.
    """

    _nodes: Mapping[str, Target]

    def __init__(
        self, graph: Graph, clock: Clock | None, recorder: Recorder | None, replicas: Mapping[str, int] | None
    ) -> None:
        for name, count in (replicas or {}).items():
            if name not in graph.nodes or count < 1:
                raise SettingError(
                    f"replicas={{{name!r}: {count}}}", mend=f"give at least 1, for one of {', '.join(graph.nodes)}"
                )
        clock = clock or LoopClock()
        super().__init__(clock, recorder or Recorder(clock))
        self.graph = graph
        self._counts = dict(replicas or {})
        self._line: Line | None = None

    @property
    def entry(self) -> Any:
        """See `Runtime.entry`."""
        return self.handle(self.graph.entry)

    def handle(self, node: str) -> Any:
        """See `Runtime.handle`."""
        if self._line is None or not self._nodes:
            name = type(self).__name__
            raise Unavailable(
                "the runtime has not started", mend=f"use it within `async with {name}(graph) as runtime`"
            )
        if node not in self._nodes:
            raise NotFound(f"no chainlet {node}", mend=f"the chain has {', '.join(self._nodes)}")
        return Handle(self._nodes[node], None, self._line)
