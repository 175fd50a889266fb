"""Ray Serve: one deployment that calls another by its DeploymentHandle, an actor that is given what lies in the object
store, and a websocket behind Serve's own proxy. All in a private cluster on this machine.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray import serve
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from benchmarks.peers.loops import Array, Samples, ends, every_ms, measured

ROOT = Path(__file__).resolve().parents[2]
MANY = {"ray_actor_options": {"num_cpus": 0.1}, "max_ongoing_requests": 1000}


class Callee:
    async def say(self, text: str) -> str:
        return text

    async def repeat(self, text: str, times: int) -> AsyncIterator[str]:
        for _ in range(times):
            yield text

    async def paced(self, times: int) -> AsyncIterator[str]:
        async for token in every_ms(times):
            yield token

    async def put(self, array: Array) -> float:
        return ends(array)

    async def pid(self) -> int:
        return os.getpid()


class _Handle:
    """Serve's handle as a target."""

    def __init__(self, handle: Any) -> None:
        self._handle, self._streams = handle, handle.options(stream=True)

    async def say(self, text: str) -> str:
        answer: str = await self._handle.say.remote(text)
        return answer

    def repeat(self, text: str, times: int) -> AsyncIterator[str]:
        stream: AsyncIterator[str] = self._streams.repeat.remote(text, times)
        return stream

    def paced(self, times: int) -> AsyncIterator[str]:
        stream: AsyncIterator[str] = self._streams.paced.remote(times)
        return stream

    async def put(self, array: Array) -> float:
        answer: float = await self._handle.put.remote(array)
        return answer


class _Store:
    """An actor that is handed arrays through the object store."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def put(self, array: Array) -> float:
        answer: float = await self._actor.put.remote(ray.put(array))
        return answer


class Caller:
    def __init__(self, callee: Any) -> None:
        self._actor = ray.remote(num_cpus=0.1)(Callee).remote()
        self._targets: dict[str, Any] = {
            "default": _Handle(callee),
            "grpc": _Handle(callee.options(_by_reference=False)),
            "store": _Store(self._actor),
        }
        self._callee = callee

    async def run(self, target: str, op: str, times: int, size: int) -> Samples:
        return await measured(self._targets[target], op, times, size)

    async def pids(self) -> list[int]:
        return [os.getpid(), await self._callee.pid.remote()]


async def _echo(websocket: WebSocket) -> None:
    await websocket.accept()
    async for data in websocket.iter_bytes():
        await websocket.send_bytes(data)


@serve.ingress(Starlette(routes=[WebSocketRoute("/", _echo)]))
class Door:
    def __init__(self, caller: Any) -> None: ...


class Served:
    """One way to call in the running Serve application: by its handle ("default", "grpc"), or the object store."""

    def __init__(self, handle: Any, target: str, pids: Sequence[int]) -> None:
        self._handle, self._target = handle, target
        self.pids = pids

    async def run(self, op: str, times: int, size: int = 0) -> Samples:
        response = self._handle.run.remote(self._target, op, times, size)
        samples: Samples = await asyncio.to_thread(response.result, timeout_s=300.0)
        return samples


class Application:
    """What runs there: its sides by name, and the port of its proxy."""

    def __init__(self, port: int) -> None:
        self.port = port
        handle = serve.get_deployment_handle("Caller", "peer")
        pids = handle.pids.remote().result()
        self.sides = {name: Served(handle, name, pids) for name in ("default", "grpc", "store")}


@contextmanager
def cluster(cpus: int = 16, store: int = 1 << 30) -> Iterator[None]:
    """A private Ray on this machine, `store` bytes of shared memory; gone afterwards."""
    folder = tempfile.mkdtemp(prefix="ray-")
    try:
        ray.init(
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=store,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=folder,
            runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
        )
        yield
    finally:
        with suppress(Exception):  # else Serve goes on to speak to a controller that has gone
            serve.shutdown()
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def application() -> Iterator[Application]:
    """The peer's deployments on the Ray that runs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    quiet: Any = {"enable_access_log": False, "log_level": "WARNING"}
    serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config=quiet)
    callee, caller, door = (serve.deployment(**MANY)(cls) for cls in (Callee, Caller, Door))
    try:
        serve.run(door.bind(caller.bind(callee.bind())), name="peer", route_prefix="/peer")
        yield Application(port)
    finally:
        serve.shutdown()
