"""Who is served next: the interactive before batch, then the tenant that was served least, then the earliest."""

from __future__ import annotations

from bisect import insort

from engines.llm.errors import QueueFull
from engines.llm.sequence import Sequence, Tenant

_REMEMBERED = 64


class Waiting:
    """The queues, one a tenant and kind, and how much each tenant was served.

    A tenant that was away begins at the level of the least served that is there (or, of nobody, of the last that was):
    it does not catch up on what it did not ask for. So of two tenants that always wait, none gets ahead of the other
    by more tokens than its running requests hold (prompts and replies), plus one request.
    """

    def __init__(self, limit: int, limit_of_all: int) -> None:
        self._limit, self._limit_of_all = limit, limit_of_all
        self._tenants: dict[str, Tenant] = {}
        self._queues: tuple[dict[str, list[Sequence]], dict[str, list[Sequence]]] = ({}, {})
        self._counts: dict[str, int] = {}
        self._held: dict[int, Sequence] = {}
        self._active = 0
        self._level = 0
        self.count = 0
        """Sequences that wait, those behind a leader included."""

    def check_room(self, name: str, others: int = 0) -> None:
        """Raises QueueFull when too many of the tenant's requests wait, or too many of all tenants together; `others`
        wait elsewhere and count too."""
        for count, limit, whose, setting in (
            (self._counts.get(name, 0), self._limit, "", "max_waiting"),
            (self.count, self._limit_of_all, " of all callers", "max_waiting_all"),
        ):
            if count + others >= limit:
                raise QueueFull(
                    f"{limit} requests{whose} wait already",
                    mend=f"try again later, send fewer at once, or raise {setting}",
                )

    def enter(self, name: str) -> Tenant:
        """The tenant, with one more request under way. Raises QueueFull as `check_room` does."""
        self.check_room(name)
        tenant = self._tenants.get(name)
        if tenant is None or not tenant.active:
            least = min((one.served for one in self._tenants.values() if one.active), default=self._level)
            if tenant is None:
                self._forget(least)
                tenant = self._tenants[name] = Tenant(name, least)
            tenant.served = max(tenant.served, least)
            self._active += 1
        tenant.active += 1
        return tenant

    def leave(self, tenant: Tenant) -> None:
        """One of the tenant's requests has ended."""
        tenant.active -= 1
        if not tenant.active:
            self._active -= 1
            if not self._active:
                self._level = tenant.served

    def hold(self, sequence: Sequence) -> None:
        """It waits, and is not to be chosen yet: its leader's prompt is not computed."""
        self._held[sequence.id] = sequence
        self._count(sequence, 1)

    def put(self, sequence: Sequence) -> None:
        """It waits, before all of its tenant and kind that came later."""
        if self._held.pop(sequence.id, None) is None:
            self._count(sequence, 1)
        queue = self._queues[sequence.batch].setdefault(sequence.tenant.name, [])
        insort(queue, sequence, key=_arrival)

    def first(self, batch: bool) -> Sequence | None:
        """Who is next of this kind; None when nobody waits."""
        queues = self._queues[batch]
        if not queues:
            return None
        return min((queue[0] for queue in queues.values()), key=_turn)

    def remove(self, sequence: Sequence) -> None:
        """It waits no longer."""
        self._count(sequence, -1)
        if self._held.pop(sequence.id, None) is not None:
            return
        queues, name = self._queues[sequence.batch], sequence.tenant.name
        queues[name].remove(sequence)
        if not queues[name]:
            del queues[name]

    def _count(self, sequence: Sequence, change: int) -> None:
        name = sequence.tenant.name
        self.count += change
        self._counts[name] = self._counts.get(name, 0) + change
        if not self._counts[name]:
            del self._counts[name]

    def _forget(self, least: int) -> None:
        """Tenants that are away and would begin at `least` anyway need no memory; of the others a bounded number."""
        away = sorted((one for one in self._tenants.values() if not one.active), key=lambda one: -one.served)
        for number, one in enumerate(away):
            if one.served <= least or number >= _REMEMBERED:
                del self._tenants[one.name]


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival


def _turn(sequence: Sequence) -> tuple[int, int]:
    return sequence.tenant.served, sequence.arrival
