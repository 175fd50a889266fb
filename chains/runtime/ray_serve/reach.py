"""One process's ways to the chainlets of a deployment: the book feeds them, and calls that find nobody wake them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any

from ray.serve.exceptions import RayServeException
from ray.util import get_node_ip_address

from chains.runtime.nodes import RemoteNode
from chains.runtime.ray_serve.book import Book, Listed

log = logging.getLogger("chains")

WAKERS = 32
"""The most calls of one process that Serve is told of as waiting for one chainlet: its scaling needs no more."""
PAUSE = 0.5
"""Seconds after an attempt to wake a chainlet that went wrong."""
TOLD = 2.0
"""Seconds that whoever tells how many calls wait leaves to the policy, which then wakes as many replicas as they need;
a call of a handle wakes one."""


def node_ip() -> str:
    """The address by which the other nodes of the cluster know this one."""
    found: str = get_node_ip_address()
    return found


class Reach:
    """Keeps `nodes` up to date until `close`. `handles` wake a chainlet that has no replica: Serve counts whoever asks
    one for a replica as a request that waits, and starts one. They do when calls have waited for `later` seconds.
    `listed` is the book as it stands.
    """

    def __init__(
        self, app: str, nodes: Mapping[str, RemoteNode], handles: Mapping[str, Any], later: float = 0.0
    ) -> None:
        self.listed: dict[str, Mapping[str, Listed]] = {name: {} for name in nodes}
        self._nodes = nodes
        self._handles = handles
        self._later = later
        self._waking: dict[str, set[asyncio.Task[None]]] = {name: set() for name in nodes}
        for name, node in nodes.items():
            node.missing = partial(self._missing, name)
            node.opened()
        self.book = Book(app, list(nodes), self._told)

    def _told(self, name: str, listed: Mapping[str, Listed]) -> None:
        self.listed[name] = listed
        self._nodes[name].update({replica: one.place for replica, one in listed.items()})

    def _missing(self, name: str) -> None:
        """A call waits for `name`."""
        waking = self._waking[name]
        if not self.listed[name] and name in self._handles and len(waking) < WAKERS:
            task = asyncio.get_running_loop().create_task(self._wake(name), context=Context())
            waking.add(task)
            task.add_done_callback(waking.discard)

    async def _wake(self, name: str) -> None:
        """Ask for a replica until there is one. Serve goes on asking when it is told to stop, so it is told once."""
        handle, node = self._handles[name], self._nodes[name]
        await asyncio.sleep(self._later)
        while node.waiting and not self.listed[name]:
            try:
                async with handle.choose_replica():
                    return
            except (RayServeException, RuntimeError) as error:
                log.debug("%s is not woken: %s", name, type(error).__name__)
                await asyncio.sleep(PAUSE)

    async def close(self) -> None:
        """Hear no more, wake nobody, give up all connections."""
        await self.book.close()
        for task in [task for tasks in self._waking.values() for task in tasks]:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for node in self._nodes.values():
            await node.close()
