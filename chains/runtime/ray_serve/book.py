"""The address book of a deployment: which replicas each chainlet has now, as Serve's controller tells it.

The controller sends each change of a deployment's running replicas, with what they said of themselves, to whoever
polls it; Serve's own handles are fed the same way. The subscription is not public: it is used in this file alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.serve._private.common import DeploymentID
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve._private.long_poll import LongPollNamespace

from chains.runtime.nodes import Place

log = logging.getLogger("chains")
PAUSE = 0.5
"""Seconds between attempts to reach a controller that is not there."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A replica in the book: where it listens, its process, and the name of its actor."""

    place: Place
    pid: int
    actor: str


Told = Callable[[str, Mapping[str, Listed]], None]


class Book:
    """Tells `told(deployment, replicas)` what each of `deployments` has, at first and after every change."""

    def __init__(self, app: str, deployments: list[str], told: Told) -> None:
        self._told = told
        self._keys = {(LongPollNamespace.DEPLOYMENT_TARGETS, DeploymentID(name, app)): name for name in deployments}
        self._seen = dict.fromkeys(self._keys, -1)
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._read(), context=Context())

    async def opened(self) -> None:
        """Return once the book was read for the first time."""
        await asyncio.shield(self._first)

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _read(self) -> None:
        controller: Any = None
        while True:
            try:
                if controller is None:
                    controller = await asyncio.to_thread(ray.get_actor, SERVE_CONTROLLER_NAME, SERVE_NAMESPACE)
                news = await controller.listen_for_change.remote(self._seen)
            except (RayError, ValueError) as error:  # it is being replaced; what is known stays
                log.debug("the controller of Ray Serve is not reached: %s", type(error).__name__)
                controller = None
                await asyncio.sleep(PAUSE)
                continue
            if isinstance(news, dict):
                self._hear(news)

    def _hear(self, news: Mapping[Any, Any]) -> None:
        for key, update in news.items():
            self._seen[key] = update.snapshot_id
            found: dict[str, Listed] = {}
            for replica in update.object_snapshot.running_replicas:
                said = replica.replica_metadata
                if "address" in said:
                    place = Place(said["address"], said["machine"])
                    found[said["name"]] = Listed(place, said["pid"], replica.actor_name)
            self._told(self._keys[key], found)
        if not self._first.done():
            self._first.set_result(None)
