"""One replica and many tenants in virtual time: what one tenant's flood does to the others."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from chains.policy.quota import FairQueue, Quotas

Policy = Literal["fifo", "fair"]


@dataclass(frozen=True, slots=True)
class Tenant:
    """Calls per second, in part (`batch`) of batch priority, from `begin` on; exponential service of 1 s."""

    name: str
    rate: float
    batch: bool = False
    begin: float = 0.0


@dataclass(slots=True)
class Outcome:
    """Per tenant: the seconds waited and the seconds in all of its calls, and how many were refused."""

    waits: dict[str, list[float]] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def wait(self, tenant: str, percent: float) -> float:
        return _percentile(self.waits[tenant], percent)

    def time(self, tenant: str, percent: float) -> float:
        return _percentile(self.times[tenant], percent)


def _percentile(values: list[float], percent: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


@dataclass(slots=True)
class Call:
    tenant: Tenant
    arrived: float
    seconds: float


def calls(tenants: list[Tenant], seconds: float, seed: int) -> list[Call]:
    """All calls in order. Each tenant has its own source of chance: another's flood leaves its calls as they are."""

    def of(tenant: Tenant) -> Iterator[Call]:
        chance, now = Random(f"{tenant.name} {seed}"), tenant.begin
        while (now := now + chance.expovariate(tenant.rate)) < seconds:
            yield Call(tenant, now, chance.expovariate(1.0))

    return sorted((call for tenant in tenants for call in of(tenant)), key=lambda call: call.arrived)


class Fifo:
    """The peer: first come, first served, with the same slots and the same limit."""

    def __init__(self, slots: int, limit: int) -> None:
        self.slots, self.limit, self.taken = slots, limit, 0
        self.queue: deque[Call] = deque()


def simulate(
    policy: Policy,
    tenants: list[Tenant],
    *,
    slots: int = 8,
    limit: int = 64,
    quotas: Quotas | None = None,
    seconds: float = 2000.0,
    warm: float = 50.0,
    seed: int = 0,
) -> Outcome:
    """Run the tenants' calls on one replica."""
    outcome, order = Outcome(), itertools.count()
    for tenant in tenants:
        outcome.waits[tenant.name], outcome.times[tenant.name], outcome.refused[tenant.name] = [], [], 0
    ends: list[tuple[float, int, Call]] = []
    fair: FairQueue[Call] = FairQueue(slots, limit, quotas)
    fifo = Fifo(slots, limit)

    def start(call: Call, now: float) -> None:
        heapq.heappush(ends, (now + call.seconds, next(order), call))
        if call.arrived >= warm:
            outcome.waits[call.tenant.name].append(now - call.arrived)
            outcome.times[call.tenant.name].append(now - call.arrived + call.seconds)

    def end() -> None:
        now, _, call = heapq.heappop(ends)
        if policy == "fair":
            fair.free(call.tenant.name)
            while (ticket := fair.pop(now)) is not None:
                start(ticket.item, now)
        elif fifo.queue:
            start(fifo.queue.popleft(), now)
        else:
            fifo.taken -= 1

    def arrive(call: Call) -> None:
        if policy == "fair":
            if fair.admit(call.tenant.name):
                start(call, call.arrived)
                return
            _, refused = fair.push(call, call.tenant.name, call.tenant.batch, call.arrived)
            if refused is not None:
                outcome.refused[refused.tenant] += 1
        elif fifo.taken < slots:
            fifo.taken += 1
            start(call, call.arrived)
        elif len(fifo.queue) < limit:
            fifo.queue.append(call)
        else:
            outcome.refused[call.tenant.name] += 1

    for call in calls(tenants, seconds, seed):
        while ends and ends[0][0] <= call.arrived:
            end()
        arrive(call)
    return outcome
