"""One replica of a chainlet as Ray Serve runs it: the chain's code and its wire in a process that Serve looks after."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray import serve

from chains.dsl.graph import load
from chains.errors import ChainsError, StartError, Unavailable
from chains.runtime.cores import settings as cores_settings
from chains.runtime.deployment import State
from chains.runtime.host import Hosted
from chains.runtime.ray_serve.autoscaling import stats
from chains.runtime.ray_serve.logs import MARK
from chains.runtime.ray_serve.notes import Step, forget_step, secrets_of, token_of, told_of, write_step
from chains.runtime.ray_serve.plan import Plan
from chains.runtime.ray_serve.reach import TOLD, Reach, node_ip


class ChainletReplica:
    """Starts the node's replica with its server, and says where it listens. Serve calls the methods on its user loop.

    `handles` are those of the chainlets that this one calls.
    """

    _hosted: Hosted | None = None

    async def __init__(self, plan: Mapping[str, Any], node: str, handles: Mapping[str, Any]) -> None:  # type: ignore[misc]  # as Serve allows
        context = serve.get_replica_context()
        self._app = context.app_name
        self._name = f"{node}#{context.replica_id.unique_id}"
        self._plan = Plan.read(plan)
        self._notes = ThreadPoolExecutor(1, thread_name_prefix="notes")  # one thread: steps are written in order
        self._node = node
        for stream in (sys.stdout, sys.stderr):
            print(f"{MARK}{self._name}", file=stream, flush=True)
        try:
            await self._start(handles)
        except Exception as error:
            told = told_of(error, self._name)
            await self._note("failed", told)
            raise StartError(told.message, mend=told.mend) from None

    async def _start(self, handles: Mapping[str, Any]) -> None:
        await self._note("starting")
        sys.path.extend(entry for entry in self._plan.path if entry not in sys.path)
        graph = self._plan.adapted(load(self._plan.chain))
        if self._node not in graph.nodes:
            raise StartError(f"{self._plan.chain} has no chainlet {self._node}", mend="deploy the chain again")
        node = graph.nodes[self._node]
        os.environ.update(await asyncio.to_thread(secrets_of, self._app, node.spec.environment.secrets))
        os.environ.update(cores_settings(max(1, int(node.spec.resources.cpu)), os.environ))
        settings = self._plan.settings
        wire = settings.wire(token_of(self._app), node_ip())
        machine = ray.get_runtime_context().get_node_id()
        self._hosted = hosted = Hosted(
            graph, node, self._name, wire, settings.quotas, settings.routing, machine=machine
        )
        await hosted.server.start()
        for target in hosted.targets.values():
            target.patience = math.inf  # others may still load: what they are called for now waits for them
        self._reach = Reach(self._app, hosted.targets, handles, TOLD)
        for name, target in hosted.targets.items():
            if graph.nodes[name].spec.scaling.min:  # or a call's time would run while the one it calls still loads
                await target.ready()
        notes: list[asyncio.Future[None]] = []

        def entered(state: State) -> None:
            if state != "failed":  # what failed is told with its reason
                notes.append(asyncio.ensure_future(self._note(state)))

        await hosted.start(entered)
        await asyncio.gather(*notes)
        for target in hosted.targets.values():
            target.patience = settings.patience

    async def _note(self, state: State, error: ChainsError | None = None) -> None:
        why, mend = (error.message, error.mend) if error is not None else ("", "")
        step = Step(self._node, self._name, state, why, mend, self._plan.deployment)
        await asyncio.get_running_loop().run_in_executor(self._notes, write_step, self._app, step)

    async def record_replica_metadata(self) -> dict[str, Any]:
        """What stands in the address book."""
        assert self._hosted is not None
        return {
            "name": self._name,
            "node": self._node,
            "address": self._hosted.server.address,
            "machine": ray.get_runtime_context().get_node_id(),
            "pid": os.getpid(),
        }

    async def report(self) -> dict[str, Any]:
        """What a status shows of this replica."""
        assert self._hosted is not None
        load = self._hosted.replica.load()
        return {
            "name": self._name,
            "address": self._hosted.server.address,
            "running": load.running,
            "queued": load.queued,
            "streams": load.streams,
            "draining": load.draining,
            "queue_wait_ms": load.queue_wait_ms,
        }

    async def check_health(self) -> None:
        """Raises when Serve should replace this replica."""
        if self._hosted is None:
            return  # it ends
        load = self._hosted.replica.load()
        if load.state in ("failed", "dead"):
            raise Unavailable(f"{self._name} is {load.state}")
        if load.idle_s > self._plan.settings.stuck:
            raise Unavailable(f"{self._name} has not moved for {load.idle_s:.0f} s with {load.running} calls running")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What the number of replicas is decided by, `autoscaling.py`."""
        hosted = self._hosted
        if hosted is None:
            return {}  # it ends
        load = hosted.replica.load()
        calls = {name: target.waiting for name, target in hosted.targets.items()}
        return stats(load.active, load.running, load.queued, load.queue_wait_ms, calls)

    def __del__(self) -> Coroutine[Any, Any, None] | None:
        """What Serve awaits before it ends the process. An ordinary end of the object finds nothing left to do."""
        hosted, self._hosted = self._hosted, None
        return self._drain(hosted) if hosted is not None else None

    async def _drain(self, hosted: Hosted) -> None:
        """What runs here has the grace period, then it is cancelled."""
        try:
            await hosted.stop(self._plan.settings.grace)
        finally:
            await self._reach.close()
            await asyncio.get_running_loop().run_in_executor(self._notes, forget_step, self._app, self._name)
