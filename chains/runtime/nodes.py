"""The replicas of a chainlet in other processes, as the handles of this one see them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping
from contextvars import Context
from dataclasses import dataclass

from chains.dsl.graph import Node
from chains.errors import Unavailable
from chains.policy.quota import Quotas
from chains.policy.routing import Routing
from chains.runtime.attempt import Attempt
from chains.runtime.choice import Choice
from chains.runtime.deployment import Health
from chains.runtime.drive import Server
from chains.runtime.remote import Carried, Record, Remote
from chains.timing import Clock
from chains.wire.settings import WireSettings
from chains.wire.sharing import Memory


@dataclass(frozen=True, slots=True)
class Place:
    """Where a replica is found: the address it listens at, and the machine it runs on ("" where that is not known)."""

    address: str
    machine: str = ""


class RemoteNode:
    """The replicas of `node`, after an address book that changes: `update` with each new one.

    Calls wait until it was `opened`, or are refused once it has `failed`. When none of the replicas can be reached,
    they wait up to `patience` seconds for one that can; `waiting` counts them, and `missing` is told of each. `machine`
    is the caller's own, as places name them; `quotas` say which replicas are whose alone.
    """

    patience = 0.0

    def __init__(
        self,
        node: Node,
        settings: WireSettings,
        clock: Clock,
        record: Record,
        *,
        quotas: Quotas | None = None,
        routing: Routing | None = None,
        machine: str = "",
        memory: Memory | None = None,
    ) -> None:
        self.node = node
        self.remotes: dict[str, Remote] = {}
        self._settings = settings
        self._clock = clock
        self._record = record
        self._choice = Choice(node, clock, quotas or Quotas(), routing, machine)
        self._memory = memory
        self._places: dict[str, Place] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._ready = asyncio.Event()
        self._failed = ""
        self.waiting = 0
        self.missing: Callable[[], None] = _nothing
        self._arrived = asyncio.Event()

    @property
    def count(self) -> int:
        return len(self.remotes)

    def pick(self, attempt: Attempt, avoid: Collection[str]) -> Server | None:
        name = self._choice.pick(attempt, avoid)
        return None if name is None else self.remotes[name]

    def send(self, attempt: Attempt, over: Callable[[], None]) -> Carried | None:
        if not self._ready.is_set() or self._failed or (self.patience and not self.serves):
            return None
        attempt.may_queue = self.count == 1
        name = self._choice.pick(attempt, ())
        if name is None:
            return None
        sent = self.remotes[name].send(attempt, over)
        if sent is None:
            self._choice.done(name, False)
        return sent

    def done(self, server: Server, fault: bool) -> None:
        if self.remotes.get(server.name) is server:
            self._choice.done(server.name, fault)

    def _heard(self, remote: Remote) -> None:
        if self.remotes.get(remote.name) is remote:
            self._choice.report(remote.name, remote.standing())
            self._arrived.set()

    async def ready(self) -> None:
        if not self._ready.is_set():
            await self._ready.wait()
        if self._failed:
            raise Unavailable(f"{self.node.name} did not start", mend=self._failed)
        if self.patience and not self.serves:
            await self._another()

    @property
    def serves(self) -> bool:
        """Whether a replica can be called now, as far as is known here."""
        return any(remote.open for remote in self.remotes.values())

    async def _another(self) -> None:
        """Wait for a replica that can be called. Raises Unavailable when none comes in time."""
        self.waiting += 1
        self.missing()
        try:
            async with asyncio.timeout(self.patience if self.patience < math.inf else None):
                while not self.serves:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise Unavailable(
                f"no replica of {self.node.name} came within {self.patience:g} s",
                mend="call again later; look at the deployment's status for why none starts",
            ) from None
        finally:
            self.waiting -= 1

    def opened(self) -> None:
        """Its replicas serve."""
        self._ready.set()

    def failed(self, why: str) -> None:
        """It will never serve."""
        self._failed = why
        self._ready.set()

    def update(self, places: Mapping[str, Place]) -> None:
        """The replicas that there are now, by name. One that is new is connected to; one that has left gets no more
        calls, and is let go once those under way there have ended."""
        for name in [name for name, place in self._places.items() if places.get(name) != place]:
            del self._places[name]
            self._leave(self.remotes.pop(name))
        self._choice.update(self._machines())  # without them: what is known of one that moved is forgotten
        for name, place in places.items():
            if name not in self._places:
                self._places[name] = place
                self.remotes[name] = self._remote(name, place.address)
        self._choice.update(self._machines())
        self._arrived.set()

    def _machines(self) -> dict[str, str]:
        return {name: place.machine for name, place in self._places.items()}

    def _remote(self, name: str, address: str) -> Remote:
        return Remote(self.node, name, address, self._settings, self._clock, self._record, self._heard, self._memory)

    def _leave(self, remote: Remote) -> None:
        task = asyncio.get_running_loop().create_task(_let_go(remote), context=Context())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def lost(self, name: str) -> None:
        """A replica is known to be dead: what is under way there is lost."""
        if name in self.remotes:
            await self.remotes[name].gone()

    async def close(self) -> None:
        """Give up all connections."""
        for task in self._leaving:
            task.cancel()
        for remote in self.remotes.values():
            await remote.gone()


def health_of(nodes: Mapping[str, RemoteNode], stuck_s: float, asleep: Collection[str] = ()) -> Health:
    """Whether each chainlet has a replica that serves, and none stands still for `stuck_s` seconds. Those `asleep` may
    have none."""
    loads = tuple(remote.load() for node in nodes.values() for remote in node.remotes.values())
    served = {load.node for load in loads if load.state == "ready"}
    missing = [f"{name} has no replica that serves" for name in nodes if name not in served and name not in asleep]
    stuck = [
        f"{load.replica} has not moved for {load.idle_s:.0f} s with {load.running} calls running"
        for load in loads
        if load.idle_s > stuck_s
    ]
    why = "; ".join([*missing, *stuck]) or ("" if nodes else "not started")
    return Health(not why, why, loads)


def _nothing() -> None: ...


async def _let_go(remote: Remote) -> None:
    try:
        await remote.quiet()
    finally:
        await remote.gone()
