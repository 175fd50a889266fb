"""A running application, called from any process of its cluster: the wire goes straight to the replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import ray
from ray import serve

from chains.dsl.graph import Graph
from chains.errors import Unavailable
from chains.runtime.conversations import ChainRuntime
from chains.runtime.deployment import Health, ReplicaLoad
from chains.runtime.drive import Line
from chains.runtime.nodes import RemoteNode, health_of
from chains.runtime.ray_serve.notes import token_of
from chains.runtime.ray_serve.operate import application
from chains.runtime.ray_serve.plan import RaySettings
from chains.runtime.ray_serve.reach import TOLD, Reach, node_ip
from chains.spans import Recorder
from chains.timing import Clock
from chains.wire.sharing import Memory


class Attached(ChainRuntime):
    """The runtime of a chain that runs already, as the application `app`: `async with Attached(graph, app) as runtime`.

    Leaving it ends the calls made from here and nothing else. A chainlet that is scaled to zero is woken by a call.
    Raises NotFound for an application that is not there, Unavailable when its replicas are not told within `patience`.
    """

    _reach: Reach | None = None

    def __init__(
        self,
        graph: Graph,
        app: str,
        *,
        settings: RaySettings | None = None,
        handles: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
        replicas: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(graph, clock, recorder, replicas)
        self.app = app
        self.settings = settings or RaySettings()
        self._handles = handles
        self._memory: Memory | None = None
        self._nodes: dict[str, RemoteNode] = {}

    async def __aenter__(self) -> Self:
        if self._handles is None:
            await asyncio.to_thread(application, self.app)
        try:
            await self._attach()
        except BaseException:
            await self._leave(0.0)
            raise
        return self

    async def _attach(self) -> None:
        self._line = Line(None, self.recorder.add, self._after)
        token = await asyncio.to_thread(token_of, self.app)
        wire = self.settings.wire(token, node_ip())
        memory = self._memory = Memory.of(wire)
        ways: dict[str, Any] = {
            "quotas": self.settings.quotas,
            "routing": self.settings.routing,
            "machine": ray.get_runtime_context().get_node_id(),
            "memory": memory,
        }
        nodes = {
            name: RemoteNode(node, wire, self.clock, self.recorder.add, **ways)
            for name, node in self.graph.nodes.items()
        }
        for node in nodes.values():
            node.patience = self.settings.patience
        handles, later = self._handles, TOLD  # who is given handles is a replica, and tells how many wait
        if handles is None:
            handles, later = {name: serve.get_deployment_handle(name, self.app) for name in nodes}, 0.0
        self._nodes, self._reach = nodes, Reach(self.app, nodes, handles, later)
        try:
            async with asyncio.timeout(self.settings.patience if self._handles is None else None):
                await self._reach.book.opened()
        except TimeoutError:
            raise Unavailable(
                f"the controller of Ray Serve does not say which replicas {self.app} has",
                mend="it is restarted by itself: try again",
            ) from None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(self.settings.grace if error is None else 0.0)

    async def _leave(self, grace: float) -> None:
        await self._settle(grace)
        self._cancel_calls("the runtime stopped")
        if self._line is not None:
            await self._line.settled(1.0)
        if self._reach is not None:
            await self._reach.close()
        if self._memory is not None:
            self._memory.close()
        self._reach = self._memory = None
        self.recorder.flush()

    def load(self) -> list[ReplicaLoad]:
        return [remote.load() for node in self._nodes.values() for remote in node.remotes.values()]

    def waiting(self) -> dict[str, int]:
        """How many calls wait here for a replica of each chainlet."""
        return {name: node.waiting for name, node in self._nodes.items()}

    def health(self) -> Health:
        asleep = [name for name, node in self.graph.nodes.items() if node.spec.scaling.min == 0]
        return health_of(self._nodes, self.settings.stuck, asleep)

    async def kill(self, node: str, index: int) -> None:
        """Take a replica away at once, as a crash would. For tests."""
        raise NotImplementedError
