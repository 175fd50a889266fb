"""What the policies are worth: queueing among 100 replicas, beside a flood, in a step of load; and what a pick costs.

All but the last is virtual time: the same figures on every machine for one seed, from heavy-tailed calls, reports that
are 50 to 150 ms old, and a replica that dies every two seconds. The best possible knows every queue and every death at
the moment of the choice. Goals bound the ratio to the peer, or where there is none the figure itself.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

from benchmarks.report import Row, arguments, interleave, percentile, report
from benchmarks.simulated.fairness import Outcome, Tenant, simulate
from benchmarks.simulated.routing import Policy, Setup, waits
from benchmarks.simulated.scaling import Chain, burst, step
from chains.policy.quota import FairQueue, Quota, Quotas
from chains.policy.routing import Load, Peer, Router, Wish

SLOTS = 8
OTHERS = [f"tenant {index}" for index in range(9)]


def row(
    name: str, ours: list[float], peer: list[float] | None, at: float, goal: float | None, scale: float = 1.0
) -> Row:
    """The percentile `at` of each side. The goal bounds the ratio, or the figure where there is no peer."""
    figure = percentile(ours, at) * scale
    other = None if peer is None else percentile(peer, at) * scale
    ratio = figure / other if other else None
    met = None if goal is None else (figure if ratio is None else ratio) <= goal
    p50, p99 = percentile(ours, 50) * scale, percentile(ours, 99) * scale
    return Row(name, figure, other, ratio, p50, p99, len(ours), goal, met)


def cluster(seed: int, seconds: float) -> list[Row]:
    def run(policy: Policy, bounces: int = 0) -> list[float]:
        return waits(policy, Setup(seconds=seconds, bounces=bounces), seed)

    chance, router, back, best = run("random"), run("router"), run("router", 2), run("best")
    return [
        row("wait p99, ms: router / random", router, chance, 99, 0.2, 1e3),
        row("the same, sent back where no slot is free, twice at most / random", back, chance, 99, 0.06, 1e3),
        row("wait p99, ms: the best possible", best, None, 99, None, 1e3),
    ]


def others(outcome: Outcome, kind: str) -> list[float]:
    return [value for name in OTHERS for value in getattr(outcome, kind)[name]]


def flood(seed: int, seconds: float) -> list[Row]:
    """Nine tenants have 63 % of a replica's eight slots to do; a tenth sends 7 % more, or five times what fits."""

    def run(policy: str, rate: float, quotas: Quotas | None = None) -> Outcome:
        tenants = [*(Tenant(name, 0.07 * SLOTS) for name in OTHERS), Tenant("flood", rate * SLOTS)]
        fair = policy == "fair"
        return simulate("fair" if fair else "fifo", tenants, slots=SLOTS, quotas=quotas, seconds=seconds, seed=seed)

    calm, open_ = run("fair", 0.07), run("fair", 5.0)
    eighth = {"flood": Quota(share=1 / SLOTS)}
    capped = run("fair", 5.0, Quotas(tenants=eighth, reserve=1.0))
    reserved = run("fair", 5.0, Quotas(tenants=eighth))
    first = run("fifo", 5.0)

    def compared(name: str, outcome: Outcome, kind: str, goal: float | None) -> Row:
        return row(f"others' {kind} p95, s: {name} / no flood", others(outcome, kind), others(calm, kind), 95, goal)

    return [
        compared("flood, its share a hard cap", capped, "waits", 1.2),
        compared("flood, half of the slots in reserve", reserved, "waits", 1.2),
        compared("flood, half of the slots in reserve", reserved, "times", 1.2),
        compared("flood, no share set", open_, "times", 1.2),
        compared("flood, first come first served", first, "times", None),
    ]


def scaling(seed: int) -> list[Row]:
    rows = []
    for name, rate in (("step to 20x", step(0.5, 10, 180)), ("burst of 40x for 5 s", burst(0.5, 20, 180, 5))):
        together, alone = (Chain(rate, together=side, seconds=300, seed=seed).run() for side in (True, False))
        for chainlet in ("Ears", "Brain"):
            ours, peer = ([wait for at, wait in side.fleets[chainlet].waits if at >= 180] for side in (together, alone))
            rows.append(row(f"{name}: wait p99 at {chainlet}, s: scaled along / by itself", ours, peer, 99, None))
    return rows


def pick_us(router: Router, times: int, wish: Wish) -> float:
    start = time.process_time()
    for number in range(times):
        name = router.pick(wish, number * 1e-3)
        assert name is not None
        router.done(name, number * 1e-3)
    return (time.process_time() - start) / times * 1e6


def queue_us(queue: FairQueue[int], times: int) -> float:
    """A call that waits: pushed, popped, its slot given back, among 64 tenants that wait."""
    start = time.process_time()
    for number in range(times):
        queue.push(number, f"t{number % 64}", False, 0.0)
        ticket = queue.pop(0.0)
        assert ticket is not None
        queue.free(ticket.tenant)
    return (time.process_time() - start) / times * 1e6


def costs(rounds: int, times: int, seed: int) -> list[Row]:
    router = Router(Random(seed), machine="here")
    router.update([Peer(f"r{index}", "here" if index % 10 == 0 else "there", 4) for index in range(100)])
    for index in range(100):
        router.report(f"r{index}", Load(running=index % 5))
    queue: FairQueue[int] = FairQueue(1, 10_000)
    for number in range(640):
        queue.push(number, f"t{number % 64}", False, 0.0)
    sides = {
        "pick": lambda: pick_us(router, times, Wish()),
        "home": lambda: pick_us(router, times, Wish(affinity="call")),
        "prefix": lambda: pick_us(router, times, Wish(prefix="digest")),
        "queue": lambda: queue_us(queue, times),
    }
    samples = interleave(rounds, sides, seed=seed)
    return [
        row("pick among 100 replicas, us CPU", samples["pick"], None, 50, 20),
        row("pick of the conversation's replica, us CPU", samples["home"], None, 50, 20),
        row("pick by prefix, us CPU", samples["prefix"], None, 50, 20),
        row("fair queue: push, pop, free among 640 that wait, us CPU", samples["queue"], None, 50, 20),
    ]


def main() -> None:
    options = arguments("routing, fair queueing and scaling along, in virtual time")
    quick = options.quick
    rows = cluster(options.seed, 8.0 if quick else 60.0)
    rows += flood(options.seed, 300.0 if quick else 5000.0)
    rows += scaling(options.seed)
    rows += costs(3 if quick else 15, 2_000 if quick else 20_000, options.seed)
    report(rows, options.json, "routing, quotas and scaling (virtual time), and their CPU (real)")


if __name__ == "__main__":
    main()
