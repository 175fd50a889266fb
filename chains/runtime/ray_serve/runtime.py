"""The chain on Ray Serve for as long as a block runs: what tests and tools use."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ray
from ray import serve

from chains.dsl.graph import Graph
from chains.runtime.deployment import ProgressFn, ReplicaLoad
from chains.runtime.ray_serve.attached import Attached
from chains.runtime.ray_serve.deploy import deploy
from chains.runtime.ray_serve.notes import forget
from chains.runtime.ray_serve.plan import Plan, RaySettings
from chains.runtime.target import target_of
from chains.spans import Recorder
from chains.timing import Clock


class RayServe(Attached):
    """`async with RayServe(graph) as runtime`: the chain as an application of its own name, which is gone afterwards.

    Ray is connected to already. `replicas` fixes the counts, 1 each when not given. Raises StartError when a chainlet
    does not start. A replica that takes the place of one that died has its index.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        replicas: Mapping[str, int] | None = None,
        progress: ProgressFn | None = None,
        settings: RaySettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        app = f"{graph.entry}-{secrets.token_hex(4)}"
        super().__init__(graph, app, settings=settings, clock=clock, recorder=recorder, replicas=replicas)
        counts = {name: self._counts.get(name, 1) for name in graph.nodes}
        path = tuple(os.path.abspath(entry) for entry in sys.path)
        resources = {name: asdict(node.spec.resources) for name, node in graph.nodes.items()}
        self._plan = Plan(target_of(graph), path, counts, settings=self.settings, resources=resources)
        self._progress = progress
        self._places: dict[str, list[str]] = {name: [] for name in graph.nodes}

    async def __aenter__(self) -> Self:
        await deploy(self.graph, self._plan, self.app, progress=self._progress)
        try:
            await super().__aenter__()
            for node in self._nodes.values():
                for remote in node.remotes.values():
                    await remote.reached()
        except BaseException:
            await self._stop(0.0)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop(self.settings.grace if error is None else 0.0)

    async def _stop(self, grace: float) -> None:
        await self._leave(grace)
        await asyncio.to_thread(serve.delete, self.app)
        await asyncio.to_thread(forget, self.app)

    def _order(self, node: str) -> list[str]:
        """The names of its replicas by index; one that died keeps its own until another takes it."""
        known, now = self._places[node], list(self._nodes[node].remotes)
        new = [name for name in now if name not in known]
        for index, name in enumerate(known):
            if name not in now and new:
                known[index] = new.pop(0)
        known += new
        return known

    def load(self) -> list[ReplicaLoad]:
        return [self._load(name, replica) for name in self._nodes for replica in self._order(name)]

    def _load(self, node: str, replica: str) -> ReplicaLoad:
        remote = self._nodes[node].remotes.get(replica)
        return remote.load() if remote is not None else ReplicaLoad(node, replica, "dead")

    async def kill(self, node: str, index: int) -> None:
        """SIGKILL to a replica's process, which has gone then, or what comes nearest to it on another machine."""
        name = self._order(node)[index]
        assert self._reach is not None
        listed = self._reach.listed[node].get(name)
        if listed is not None and listed.place.machine == ray.get_runtime_context().get_node_id():
            os.kill(listed.pid, signal.SIGKILL)
            while _runs(listed.pid):  # noqa: ASYNC110 - the kernel tells nothing else
                await asyncio.sleep(0.005)
        elif listed is not None:
            actor: Any = ray.get_actor(listed.actor, namespace="serve")
            ray.kill(actor)
        remote = self._nodes[node].remotes.get(name)
        if remote is not None:
            await remote.gone()


def _runs(pid: int) -> bool:
    """Whether that process of this machine still has its sockets: a zombie has none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
