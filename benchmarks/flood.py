"""A flood between real processes: nine tenants call a chain of two hops, a tenth sends many times what fits.

The clerks of two replicas sleep for as long as each call says, eight at once in each, so that slots and not cores are
what tenants compete for. Arrivals and service times are those of one seed, with and without the flood.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

from benchmarks.report import arguments, progress, report
from benchmarks.routing import row
from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build
from chains.dsl.specs import Limits
from chains.errors import Overloaded
from chains.policy.quota import Quota, Quotas
from chains.runtime.processes import Processes

REPLICAS, SLOTS, SERVICE = 2, 8, 1.0
OTHERS = tuple(f"tenant {index}" for index in range(9))


@chainlet(limits=Limits(running=SLOTS, queued=64))
class Clerk:
    async def serve(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds


@chainlet(entry=True, limits=Limits(running=4096))
class Counter:
    clerk: Clerk = depends(Clerk)

    async def ask(self, seconds: float) -> float:
        return await self.clerk.serve(seconds)


@dataclass(slots=True)
class Outcome:
    """Seconds from the call to its answer, by tenant, and how many of each were refused."""

    times: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def others(self) -> list[float]:
        return [value for name in OTHERS for value in self.times.get(name, ())]


def calls(rates: dict[str, float], seconds: float, seed: int) -> list[tuple[float, str, float]]:
    """(when, tenant, how long it takes) of all calls; `rates` in calls a second."""
    made = []
    for tenant, rate in rates.items():
        chance, now = Random(f"{tenant} {seed}"), 0.0
        while (now := now + chance.expovariate(rate)) < seconds:
            made.append((now, tenant, chance.expovariate(1 / SERVICE)))
    return sorted(made)


async def flood(load: float, quotas: Quotas | None, seconds: float, seed: int = 0) -> Outcome:
    """Others make 63 % of what fits, the flood `load` times what fits."""
    fits = REPLICAS * SLOTS / SERVICE
    rates = {**dict.fromkeys(OTHERS, 0.07 * fits), "flood": load * fits}
    outcome = Outcome()
    async with Processes(build(Counter), replicas={"Clerk": REPLICAS}, quotas=quotas, grace=0.0) as runtime:

        async def one(tenant: str, takes: float) -> None:
            begun = time.perf_counter()
            try:
                async with runtime.open_call(tenant=tenant):
                    await runtime.entry.ask(takes)
            except Overloaded:
                outcome.refused[tenant] = outcome.refused.get(tenant, 0) + 1
            else:
                outcome.times.setdefault(tenant, []).append(time.perf_counter() - begun)

        start, tasks = time.perf_counter(), dict[str, list[asyncio.Future[None]]]()
        for at, tenant, takes in calls(rates, seconds, seed):
            await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
            tasks.setdefault(tenant, []).append(asyncio.ensure_future(one(tenant, takes)))
        await asyncio.gather(*(task for name in OTHERS for task in tasks[name]))
        for task in tasks["flood"]:  # what it still has waiting is of no interest
            task.cancel()
        await asyncio.gather(*tasks["flood"], return_exceptions=True)
    return outcome


def main() -> None:
    more = {
        "seconds": {"type": float, "default": 120.0, "help": "of each of the four sides (default 120; 5 with --quick)"}
    }
    options = arguments("a flood between real processes: what it costs the other tenants", more=more)
    seconds = 5.0 if options.quick else options.more["seconds"]
    eighth = {"flood": Quota(share=1 / SLOTS)}
    sides: dict[str, Quotas | None] = {
        "its share a hard cap": Quotas(tenants=eighth, reserve=1.0),
        "half of the slots in reserve": Quotas(tenants=eighth),
        "no share set": None,
    }
    calm = asyncio.run(flood(0.07, None, seconds, options.seed)).others()
    rows = []
    for name, quotas in sides.items():
        progress(f"{name}, {seconds:g} s")
        others = asyncio.run(flood(2.5, quotas, seconds, options.seed)).others()
        goal = None if quotas is None else 1.2
        rows.append(row(f"others' p95 over two hops, s: flood, {name} / no flood", others, calm, 95, goal))
    report(rows, options.json, f"a flood between processes: {REPLICAS} replicas of {SLOTS} slots, {seconds:g} s a side")


if __name__ == "__main__":
    main()
