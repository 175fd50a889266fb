"""What callers reach: the gateway on a port of its own, in a process that Serve looks after."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any

import ray
from ray import serve

from chains.dsl.graph import load
from chains.dsl.version import version_of
from chains.errors import StartError
from chains.export import exporter_from_env
from chains.runtime.ray_serve.attached import Attached
from chains.runtime.ray_serve.autoscaling import waiting_stats
from chains.runtime.ray_serve.logs import MARK
from chains.runtime.ray_serve.notes import Step, claim_port, forget_step, secrets_of, take_port, told_of, write_step
from chains.runtime.ray_serve.plan import GATEWAY, KEYS, VIEWER, VIEWER_KEY, Plan
from chains.runtime.ray_serve.reach import node_ip
from chains.spans import Recorder
from chains.timing import LoopClock

PORT = 8000


class GatewayReplica:
    """Opens the plan's door: `plan.gateway(graph, runtime, **plan.door)` gives an async context manager with its
    `port`, the number of its open `calls`, and `leave()`, which accepts no more callers and returns once those on the
    line have hung up, or had their time.
    """

    _door: Any = None

    async def __init__(self, plan: Mapping[str, Any], handles: Mapping[str, Any]) -> None:  # type: ignore[misc]  # as Serve allows
        context = serve.get_replica_context()
        self._app = context.app_name
        self._name = f"{GATEWAY}#{context.replica_id.unique_id}"
        self._stack = AsyncExitStack()
        for stream in (sys.stdout, sys.stderr):
            print(f"{MARK}{self._name}", file=stream, flush=True)
        try:
            await self._open(Plan.read(plan), handles)
        except Exception as error:
            told = told_of(error, self._name)
            await self._stack.aclose()
            step = Step(GATEWAY, self._name, "failed", told.message, told.mend, str(plan.get("deployment", "")))
            await asyncio.to_thread(write_step, self._app, step)
            raise StartError(told.message, mend=told.mend) from None

    async def _open(self, plan: Plan, handles: Mapping[str, Any]) -> None:
        sys.path.extend(entry for entry in plan.path if entry not in sys.path)
        graph = load(plan.chain)
        module, _, name = plan.gateway.partition(":")
        opens = getattr(importlib.import_module(module), name)
        host = plan.settings.bind or node_ip()
        door = {"host": host, "port": PORT, "drain_seconds": plan.settings.grace, **plan.door}
        await asyncio.to_thread(_claim, int(door["port"]), self._app)
        os.environ.update(await asyncio.to_thread(secrets_of, self._app, [KEYS, VIEWER, VIEWER_KEY]))
        clock = LoopClock()
        known = {"chain": graph.entry, "app": self._app, "version": plan.version or version_of(graph)}
        recorder = Recorder(clock, exporter=exporter_from_env(os.environ, **known))
        runtime = Attached(graph, self._app, settings=plan.settings, handles=handles, clock=clock, recorder=recorder)
        self._runtime = runtime
        self._door = await self._stack.enter_async_context(opens(graph, runtime, **door))
        self._url = f"http://{_host(door['host'], host)}:{self._door.port}"
        await asyncio.to_thread(write_step, self._app, Step(GATEWAY, self._name, "ready", deployment=plan.deployment))

    async def record_replica_metadata(self) -> dict[str, Any]:
        return {
            "name": self._name,
            "node": GATEWAY,
            "address": self._url,
            "machine": ray.get_runtime_context().get_node_id(),
            "pid": os.getpid(),
        }

    async def report(self) -> dict[str, Any]:
        """What a status shows of this replica."""
        return {"name": self._name, "address": self._url, "calls": self._door.calls}

    async def check_health(self) -> None:
        """That its process answers is all: a chainlet that is ill is no reason to take the door away."""

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Who waits here for a replica of which chainlet."""
        return waiting_stats(self._runtime.waiting())

    async def leave(self) -> None:
        """Accept no more callers, and return once the others have gone."""
        if self._door is not None:
            await self._door.leave()

    def __del__(self) -> Coroutine[Any, Any, None] | None:
        """What Serve awaits before it ends the process. An ordinary end of the object finds nothing left to do."""
        door, self._door = self._door, None
        return self._end(door) if door is not None else None

    async def _end(self, door: Any) -> None:
        await door.leave()
        await self._stack.aclose()
        await asyncio.to_thread(forget_step, self._app, self._name)


def _claim(port: int, app: str) -> None:
    """Replicas of one deployment share the port, of two they would share each other's callers. Raises StartError."""
    owner = claim_port(port, app)
    if owner == app:
        return
    if owner in serve.status().applications:
        raise StartError(f"port {port} is that of {owner}", mend="give this one another port, or delete the other")
    take_port(port, app)


def _host(host: str, node_ip: str) -> str:
    """What callers dial: where it listens on all interfaces, the address of its node."""
    shown = {"0.0.0.0": node_ip, "::": node_ip}.get(host, host).strip("[]")
    return f"[{shown}]" if ":" in shown else shown
