"""A chain under a step and a burst of calls in virtual time: what waits where, and how many replicas there are."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from chains.dsl.specs import Autoscaling
from chains.policy.autoscaling import ChainScaler, Demand, Scaler


@dataclass(frozen=True, slots=True)
class Chainlet:
    """`slots` calls run on a replica at once, which takes `start` seconds to come up."""

    spec: Autoscaling
    slots: int
    start: float


@dataclass(slots=True)
class Fleet:
    """The replicas of one chainlet, with one queue: where a call goes is not what is looked at here."""

    chainlet: Chainlet
    ready: int
    coming: list[float] = field(default_factory=list)
    running: int = 0
    queue: deque[tuple[float, Callable[[], None]]] = field(default_factory=deque)
    waits: list[tuple[float, float]] = field(default_factory=list)
    history: list[tuple[float, int]] = field(default_factory=list)

    def demand(self, now: float) -> Demand:
        wait = now - self.queue[0][0] if self.queue else 0.0
        return Demand(self.running, self.running, len(self.queue), wait * 1e3, self.ready)

    def worst(self, begin: float, end: float) -> float:
        """The longest wait of what came between."""
        return max((wait for when, wait in self.waits if begin <= when < end), default=0.0)

    def replicas(self, when: float) -> int:
        """How many were wanted then."""
        return next((count for at, count in reversed(self.history) if at <= when), 0)

    def changes(self, begin: float, end: float) -> int:
        counts = [count for at, count in self.history if begin <= at < end]
        return sum(earlier != later for earlier, later in itertools.pairwise(counts))


CHAIN: Mapping[str, Chainlet] = {
    "PhoneCall": Chainlet(Autoscaling(min=1, max=99, target_streams=16, up_delay=1, down_delay=60), 20, 2.0),
    "Ears": Chainlet(Autoscaling(min=1, max=199, target_streams=8, up_delay=1, down_delay=60), 10, 6.0),
    "Brain": Chainlet(Autoscaling(min=1, max=99, target_streams=4, up_delay=1, down_delay=60), 5, 12.0),
}


class Chain:
    """Calls of 60 s: each holds the entry and the ears all along; after a greeting of 15 s it asks the brain for 1 s,
    and again 3 s after each answer.

    `rate(now)` is the calls a second; `together` scales the chainlets by ChainScaler, otherwise each by itself.
    """

    def __init__(
        self,
        rate: Callable[[float], float],
        *,
        together: bool = True,
        chain: Mapping[str, Chainlet] = CHAIN,
        tick: float = 0.5,
        seconds: float = 300.0,
        seed: int = 0,
    ) -> None:
        self.rate = rate
        self.tick = tick
        self.seconds = seconds
        self.seed = seed
        self.arrivals = Random(f"arrivals {seed}")
        self.now = 0.0
        self.order = itertools.count()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.fleets = {name: Fleet(chainlet, chainlet.spec.min) for name, chainlet in chain.items()}
        self.entry = next(iter(chain))
        specs = {name: chainlet.spec for name, chainlet in chain.items()}
        self.scalers = {name: Scaler(spec) for name, spec in specs.items()}
        self.scaler = ChainScaler(specs, self.entry) if together else None
        self.done = self.made = 0

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (when, next(self.order), event))

    def run(self) -> Chain:
        self.at(0.0, self.scale)
        self.at(0.0, self.arrive)
        while self.events and self.events[0][0] < self.seconds:
            self.now, _, event = heapq.heappop(self.events)
            event()
        return self

    # scaling

    def scale(self) -> None:
        demands = {name: fleet.demand(self.now) for name, fleet in self.fleets.items()}
        if self.scaler is not None:
            starts = {name: fleet.chainlet.start for name, fleet in self.fleets.items()}
            wanted = self.scaler.decide(demands, self.now, starts)
        else:
            wanted = {name: scaler.decide(demands[name], self.now) for name, scaler in self.scalers.items()}
        for name, count in wanted.items():
            self.resize(self.fleets[name], count)
        self.at(self.now + self.tick, self.scale)

    def resize(self, fleet: Fleet, count: int) -> None:
        fleet.history.append((self.now, count))
        while fleet.ready + len(fleet.coming) < count:
            due = self.now + fleet.chainlet.start
            fleet.coming.append(due)
            self.at(due, lambda due=due: self.come(fleet, due))  # type: ignore[misc]
        while fleet.ready + len(fleet.coming) > count:
            if fleet.coming:
                fleet.coming.pop()
            else:
                fleet.ready -= 1  # it drains: what runs there runs on

    def come(self, fleet: Fleet, due: float) -> None:
        if due in fleet.coming:
            fleet.coming.remove(due)
            fleet.ready += 1
            self.admit(fleet)

    # calls

    def arrive(self) -> None:
        rate = self.rate(self.now)
        if rate > 0:
            self.made += 1
            self.enter(self.entry, self.call)
        self.at(self.now + (self.arrivals.expovariate(rate) if rate > 0 else 1.0), self.arrive)

    def call(self) -> None:
        """Admitted at the entry: it holds that and the ears, and asks now and then."""
        chance = Random(f"call {self.made} {self.seed}")
        length, begun = chance.expovariate(1 / 60), self.now
        others = [name for name in self.fleets if name != self.entry]
        held = [self.entry]

        def ask() -> None:
            if len(others) < 2 or self.now >= begun + length:
                return
            self.enter(others[1], lambda: self.at(self.now + chance.expovariate(1.0), answered))

        def answered() -> None:
            self.leave(others[1])
            self.at(self.now + 3.0, ask)

        def end() -> None:
            self.done += 1
            for name in held:
                self.leave(name)
            held.clear()

        def heard() -> None:
            if held:
                held.append(others[0])
            else:  # hung up before
                self.leave(others[0])

        if others:
            self.enter(others[0], heard)
        self.at(self.now + chance.uniform(14, 16), ask)
        self.at(begun + length, end)

    def enter(self, name: str, run: Callable[[], None]) -> None:
        fleet = self.fleets[name]
        fleet.queue.append((self.now, run))
        self.admit(fleet)

    def leave(self, name: str) -> None:
        self.fleets[name].running -= 1
        self.admit(self.fleets[name])

    def admit(self, fleet: Fleet) -> None:
        while fleet.queue and fleet.running < fleet.ready * fleet.chainlet.slots:
            since, run = fleet.queue.popleft()
            fleet.running += 1
            fleet.waits.append((since, self.now - since))
            run()


def step(low: float, high: float, at: float) -> Callable[[float], float]:
    """So many calls a second, and from `at` on so many."""
    return lambda now: low if now < at else high


def burst(low: float, high: float, at: float, seconds: float) -> Callable[[float], float]:
    return lambda now: high if at <= now < at + seconds else low


def wave(low: float, high: float, period: float) -> Callable[[float], float]:
    return lambda now: low + (high - low) * (1 - math.cos(2 * math.pi * now / period)) / 2
