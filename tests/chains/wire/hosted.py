"""A replica of the suite's probe behind a real socket, and a way to it: what the wire's tests talk to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from chains.dsl.graph import Graph, build
from chains.runtime.conversations import Conversations
from chains.runtime.drive import Line
from chains.runtime.handle import Handle
from chains.runtime.host import Hosted
from chains.runtime.nodes import Place, RemoteNode
from chains.spans import Recorder
from chains.testing.harness import until
from chains.testing.probes import Entry
from chains.timing import LoopClock
from chains.wire.settings import WireSettings, new_token
from chains.wire.sharing import Memory

GRAPH = build(Entry)


@asynccontextmanager
async def hosted(settings: WireSettings | None = None, graph: Graph = GRAPH) -> AsyncIterator[Hosted]:
    """The probe of this graph, started and listening; `hosted.server.address` is where."""
    made = Hosted(graph, graph.nodes["Probe"], "Probe#0", settings or WireSettings(new_token()))
    await made.server.start()
    await made.start(lambda state: None)
    try:
        yield made
    finally:
        await made.stop(0.0)


class Caller(Conversations):
    """A process's way to one remote replica: a handle on it, and calls to open."""

    def __init__(self, address: str, settings: WireSettings, graph: Graph = GRAPH) -> None:
        clock = LoopClock()
        super().__init__(clock, Recorder(clock))
        self.memory = Memory.of(settings)
        self.target = RemoteNode(graph.nodes["Probe"], settings, clock, self.recorder.add, memory=self.memory)
        self.target.update({"Probe#0": Place(address)})
        self.remote = self.target.remotes["Probe#0"]
        self.target.opened()
        self.line = Line(None, self.recorder.add, self._after)
        self.probe: Any = Handle(self.target, None, self.line)


@asynccontextmanager
async def calling(address: str, settings: WireSettings, graph: Graph = GRAPH) -> AsyncIterator[Caller]:
    caller = Caller(address, settings, graph)
    try:
        yield caller
    finally:
        await caller.remote.gone()
        if caller.memory is not None:
            caller.memory.close()


async def eventually(holds: Callable[[], bool]) -> None:
    """Let everybody else work until `holds`; at most 30 seconds: a busy machine is not broken."""

    async def check() -> bool:
        return holds()

    await until(check, "what was waited for", seconds=30.0)
