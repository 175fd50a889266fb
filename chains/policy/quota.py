"""Whose call is next on a replica: interactive before batch, and within that each tenant its share. Pure.

Within a class, start-time fair queueing by tenant: a tenant's next call is due 1/weight after its last one, so that a
thousand calls of one push back nobody else's. Batch that has waited for `aging` seconds stands among the interactive
calls with a small weight, so that it is late and never forgotten.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, TypeVar

from chains.errors import SettingError

T = TypeVar("T")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Quota:
    """A tenant's part of each replica: its `weight` among those who queue, and the `share` of the slots beyond which it
    does not take those that are kept in reserve. So many replicas of each chainlet are `dedicated` to it alone.
    """

    weight: float = 1.0
    share: float = 1.0
    dedicated: int = 0

    def __post_init__(self) -> None:
        if not (_number(self.weight) and math.isfinite(self.weight) and self.weight > 0):
            raise SettingError(f"Quota(weight={self.weight!r}) is no weight", mend="write e.g. weight=2.0")
        if not (_number(self.share) and 0 < self.share <= 1):
            raise SettingError(f"Quota(share={self.share!r}) is no share of the slots", mend="write e.g. share=0.5")
        if type(self.dedicated) is not int or self.dedicated < 0:
            raise SettingError(
                f"Quota(dedicated={self.dedicated!r}) is no number of replicas", mend="write dedicated=1"
            )


@dataclass(frozen=True, slots=True)
class Quotas:
    """Quotas by tenant, and `default` for all others.

    `reserve` is the part of the slots that stay free of tenants above their share: with 0.0 none (nothing idles, and
    others wait until a slot is given back), with 1.0 a share is a hard cap. After `aging` seconds (math.inf: never) a
    batch call queues among the interactive ones with `aged` times its tenant's weight.
    """

    default: Quota = Quota()
    tenants: Mapping[str, Quota] = field(default_factory=dict)
    reserve: float = 0.5
    aging: float = 10.0
    aged: float = 0.1

    def __post_init__(self) -> None:
        tenants: object = self.tenants  # as somebody wrote it, whatever its type says
        quotas = tenants.values() if isinstance(tenants, Mapping) else [None]
        if not all(isinstance(quota, Quota) for quota in quotas):
            raise SettingError(
                f"Quotas(tenants={self.tenants!r}) are no quotas by tenant",
                mend='write tenants={"clinic": Quota(share=0.25)}',
            )
        default: object = self.default
        if not isinstance(default, Quota):
            raise SettingError(f"Quotas(default={self.default!r}) is no Quota", mend="write default=Quota(share=0.25)")
        if not (_number(self.reserve) and 0 <= self.reserve <= 1):
            raise SettingError(
                f"Quotas(reserve={self.reserve!r}) is no part of the slots", mend="write e.g. reserve=0.5"
            )
        if not (_number(self.aging) and self.aging >= 0):
            raise SettingError(f"Quotas(aging={self.aging!r}) is no time", mend="write seconds, e.g. aging=10.0")
        if not (_number(self.aged) and 0 < self.aged <= 1):
            raise SettingError(f"Quotas(aged={self.aged!r}) is no part of a weight", mend="write e.g. aged=0.1")
        if self.default.dedicated:
            raise SettingError(
                "Quotas(default=Quota(dedicated=...)) gives replicas to nobody",
                mend='write tenants={"clinic": Quota(dedicated=1)}',
            )

    def of(self, tenant: str) -> Quota:
        return self.tenants.get(tenant, self.default)

    @property
    def dedicated(self) -> dict[str, int]:
        """How many replicas of each chainlet are whose alone."""
        return {tenant: quota.dedicated for tenant, quota in self.tenants.items() if quota.dedicated}

    def plain(self) -> dict[str, Any]:
        """As plain data, for another process: `Quotas.read` makes it the same again."""
        return asdict(replace(self, tenants=dict(self.tenants)))

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Quotas:
        tenants = {name: Quota(**quota) for name, quota in plain["tenants"].items()}
        return cls(**{**plain, "default": Quota(**plain["default"]), "tenants": tenants})


class Ticket(Generic[T]):
    """A call that waits: `item` is whatever its owner pushed, `since` when."""

    __slots__ = ("batch", "flow", "item", "since", "tenant")

    def __init__(self, item: T, tenant: str, batch: bool, since: float) -> None:
        self.item = item
        self.tenant = tenant
        self.batch = batch
        self.since = since
        self.flow: _Flow[T] | None = None


class _Flow(Generic[T]):
    """The tickets of one tenant in one class, in order. `key` is the tenant, and whether these are aged."""

    __slots__ = ("key", "tickets", "weight")

    def __init__(self, key: tuple[str, bool], weight: float) -> None:
        self.key = key
        self.weight = weight
        self.tickets: dict[Ticket[T], None] = {}


class _Class(Generic[T]):
    """Flows in the order in which they are due. A flow that has run out of tickets keeps its place until it is due, so
    that a tenant gains nothing by sending its calls one by one.

    `_virtual` is where the service stands: a new flow is due then. It creeps on with each turn, else an endless row of
    new tenants would starve one that has had its first turn.
    """

    def __init__(self) -> None:
        self.flows: dict[tuple[str, bool], _Flow[T]] = {}
        self._due: list[tuple[float, int, _Flow[T]]] = []
        self._parked: list[_Flow[T]] = []
        self._order = itertools.count()
        self._virtual = 0.0
        self._busy = 0  # flows with tickets,
        self._weight = 0.0  # and the weight of all of them

    def push(self, ticket: Ticket[T], weight: float, aged: bool = False) -> None:
        key = (ticket.tenant, aged)
        flow = self.flows.get(key)
        if flow is None:
            flow = self.flows[key] = _Flow(key, weight)
            self._enter(flow, self._virtual)
        if not flow.tickets:
            self._busy += 1
            self._weight += flow.weight
        flow.tickets[ticket] = None
        ticket.flow = flow

    def _enter(self, flow: _Flow[T], due: float) -> None:
        heapq.heappush(self._due, (due, next(self._order), flow))

    def pop(self, may_run: Callable[[str], bool]) -> Ticket[T] | None:
        """The next ticket of a tenant that may run."""
        while self._due:
            due, _, flow = heapq.heappop(self._due)
            if not flow.tickets:
                del self.flows[flow.key]
            elif not may_run(flow.key[0]):
                self._parked.append(flow)  # few: it holds its share of the slots, and of such there are 1 / share
            else:
                self._virtual = max(self._virtual, due) + 0.5 / self._weight
                self._enter(flow, due + 1.0 / flow.weight)
                ticket = next(iter(flow.tickets))
                self.remove(ticket)
                return ticket
        return None

    def remove(self, ticket: Ticket[T]) -> None:
        flow = ticket.flow
        assert flow is not None
        del flow.tickets[ticket]
        if not flow.tickets:
            self._weight -= flow.weight
            self._busy -= 1
            if not self._busy:  # nobody waits: whoever comes next starts afresh
                self._clear()

    def _clear(self) -> None:
        self.flows.clear()
        self._due.clear()
        self._parked.clear()
        self._virtual = self._weight = 0.0

    def unpark(self) -> None:
        """Those that were held back may run again: they have missed their turns, and are due now."""
        while self._parked:
            self._enter(self._parked.pop(), self._virtual)


class FairQueue(Generic[T]):
    """The slots of a replica, and the calls that wait for one: at most `limit`. Each operation is O(log n), except
    that a push into a full queue looks at each tenant.

    `admit`, or else `push`, and later `pop` or `remove`; each admitted or popped call gives its slot back by `free`.
    """

    def __init__(self, slots: int, limit: int, quotas: Quotas | None = None) -> None:
        self.slots = slots
        self.limit = limit
        self.quotas = quotas or Quotas()
        self.taken = 0
        self._running: dict[str, int] = {}
        self._capped = any(quota.share < 1.0 for quota in (self.quotas.default, *self.quotas.tenants.values()))
        self._interactive: _Class[T] = _Class()
        self._batch: _Class[T] = _Class()
        self._tickets: dict[Ticket[T], None] = {}
        self._young: dict[Ticket[T], None] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket[T]]:
        """Those that wait, in the order in which they came."""
        return iter(self._tickets)

    @property
    def batch(self) -> int:
        """How many of those that wait go behind an interactive call that comes now."""
        return len(self._young)

    def wait(self, now: float) -> float:
        """Seconds that the oldest has waited; 0 when none waits."""
        return now - next(iter(self._tickets)).since if self._tickets else 0.0

    def admit(self, tenant: str) -> bool:
        """Take a slot at once, if one is free and the tenant's share allows. (Who waits then waits for its share.)"""
        if self.taken >= self.slots or not self._may_run(tenant):
            return False
        self._take(tenant)
        return True

    def push(self, item: T, tenant: str, batch: bool, now: float) -> tuple[Ticket[T], Ticket[T] | None]:
        """Queue a call. When that makes one too many, the second is the ticket that has to go, no longer queued: the
        newest of whoever has the most waiting, batch first. It may be the one that was pushed."""
        ticket = Ticket(item, tenant, batch, now)
        self._tickets[ticket] = None
        if batch:
            self._young[ticket] = None
        (self._batch if batch else self._interactive).push(ticket, self.quotas.of(tenant).weight)
        if len(self._tickets) <= self.limit:
            return ticket, None
        longest = self._longest(ticket)
        self.remove(longest)
        return ticket, longest

    def _longest(self, pushed: Ticket[T]) -> Ticket[T]:
        """The newest of the flow with the most waiting for its weight; the pushed one's own where several have."""
        kind = self._batch if self._young else self._interactive

        def length(flow: _Flow[T]) -> tuple[float, bool]:
            return len(flow.tickets) / self.quotas.of(flow.key[0]).weight, flow is pushed.flow

        return next(reversed(max(kind.flows.values(), key=length).tickets))

    def pop(self, now: float) -> Ticket[T] | None:
        """Who runs next, with a slot; None when no slot is free or none that waits may run."""
        if self.taken >= self.slots or not self._tickets:
            return None
        self._promote(now)
        ticket = self._interactive.pop(self._may_run) or self._batch.pop(self._may_run)
        if ticket is not None:
            self._forget(ticket)
            self._take(ticket.tenant)
        return ticket

    def _promote(self, now: float) -> None:
        while self._young:
            ticket = next(iter(self._young))
            if now - ticket.since < self.quotas.aging:
                return
            del self._young[ticket]
            self._batch.remove(ticket)
            weight = self.quotas.of(ticket.tenant).weight * self.quotas.aged
            self._interactive.push(ticket, weight, aged=True)

    def remove(self, ticket: Ticket[T]) -> bool:
        """It waits no longer; False when it did not."""
        if ticket not in self._tickets:
            return False
        (self._batch if ticket in self._young else self._interactive).remove(ticket)
        self._forget(ticket)
        return True

    def _forget(self, ticket: Ticket[T]) -> None:
        del self._tickets[ticket]
        self._young.pop(ticket, None)

    def free(self, tenant: str) -> None:
        """A slot is given back. `pop` says whose it is then."""
        self.taken -= 1
        if self._capped:
            left = self._running[tenant] - 1
            if left:
                self._running[tenant] = left
            else:
                del self._running[tenant]
            self._interactive.unpark()
            self._batch.unpark()

    def _take(self, tenant: str) -> None:
        self.taken += 1
        if self._capped:
            self._running[tenant] = self._running.get(tenant, 0) + 1

    def _may_run(self, tenant: str) -> bool:
        """Within its share always; above it while the slots in reserve stay free."""
        if not self._capped or self.slots - self.taken > self.quotas.reserve * self.slots:
            return True
        share = self.quotas.of(tenant).share
        return share == 1.0 or self._running.get(tenant, 0) < max(1, int(share * self.slots + 1e-9))
