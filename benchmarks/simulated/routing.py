"""Callers and replicas in virtual time: how long calls queue under one way of choosing the replica or another."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from chains.policy.routing import Load, Peer, Router, Wish

Policy = Literal["random", "router", "best"]


@dataclass(frozen=True, slots=True)
class Setup:
    """Sizes in calls, times in seconds. Service times are lognormal with this mean; reports are made each `period`
    and arrive `delay` later; every `churn` seconds a replica dies, and the address book says so `notice` later. A
    replica without a free slot sends a call back up to `bounces` times, with its load, and the caller tries another;
    then it waits at the one that looks best."""

    replicas: int = 100
    slots: int = 4
    callers: int = 8
    load: float = 0.8
    service: float = 0.2
    sigma: float = 1.5
    period: float = 0.1
    delay: float = 0.05
    churn: float = 2.0
    notice: float = 1.0
    bounces: int = 0
    seconds: float = 20.0
    warm: float = 4.0


@dataclass(slots=True)
class Job:
    """A call. `arrived` is when it was made, `seconds` how long it runs."""

    arrived: float
    seconds: float
    caller: int
    tries: int = 0


@dataclass(slots=True)
class Server:
    """A replica: what runs, and what waits in order of arrival."""

    name: str
    slots: int
    alive: bool = True
    running: dict[int, Job] = field(default_factory=dict)
    queue: deque[tuple[Job, float]] = field(default_factory=deque)

    @property
    def calls(self) -> int:
        return len(self.running) + len(self.queue)


class Cluster:
    """One run. `waits` are the seconds that each call waited for a slot, retries included; `retries` their number."""

    def __init__(self, policy: Policy, setup: Setup, seed: int = 0) -> None:
        self.policy = policy
        self.setup = setup
        self.arrivals = Random(f"arrivals {seed}")
        self.faults = Random(f"faults {seed}")
        self.chance = Random(f"chance {seed}")
        self.now = 0.0
        self.order = itertools.count()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.servers: dict[str, Server] = {}
        self.routers = [Router(Random(f"router {seed} {index}")) for index in range(setup.callers)]
        self.waits: list[float] = []
        self.retries = 0
        self.book: list[str] = []

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (when, next(self.order), event))

    def run(self) -> Cluster:
        for _ in range(self.setup.replicas):
            self.join()
        self.publish()
        self.arrive()
        if self.setup.churn:
            self.at(self.setup.churn, self.die)
        while self.events and self.events[0][0] < self.setup.seconds:
            self.now, _, event = heapq.heappop(self.events)
            event()
        return self

    # the cluster

    def join(self) -> None:
        name = f"r{next(self.order)}"
        self.servers[name] = Server(name, self.setup.slots)
        self.book.append(name)
        self.at(self.now + self.faults.uniform(0, self.setup.period), lambda: self.tell(name))

    def publish(self) -> None:
        peers = [Peer(name, slots=self.setup.slots) for name in self.book]
        for router in self.routers:
            router.update(peers)

    def die(self) -> None:
        """kill -9: what runs there is made again elsewhere; the book learns of it later, then a new one has come."""
        server = self.faults.choice([server for server in self.servers.values() if server.alive])
        server.alive = False
        lost = [*server.running.values(), *(job for job, _ in server.queue)]
        server.running.clear()
        server.queue.clear()
        for job in lost:
            self.fail(job, server.name)

        def noticed() -> None:
            del self.servers[server.name]
            self.book.remove(server.name)
            self.join()
            self.publish()

        self.at(self.now + self.setup.notice, noticed)
        self.at(self.now + self.setup.churn, self.die)

    def tell(self, name: str) -> None:
        """A replica's report, on its way to every caller."""
        server = self.servers.get(name)
        if server is None or not server.alive:
            return
        loads = self.load(server)

        def deliver() -> None:
            for router, load in zip(self.routers, loads, strict=True):
                router.report(name, load)

        if self.policy == "router":
            self.at(self.now + self.setup.delay, deliver)
            self.at(self.now + self.setup.period, lambda: self.tell(name))

    def load(self, server: Server) -> list[Load]:
        """What it reports to each caller."""
        mine = [0] * len(self.routers)
        for job in itertools.chain(server.running.values(), (job for job, _ in server.queue)):
            mine[job.caller] += 1
        oldest = (self.now - server.queue[0][1]) * 1e3 if server.queue else 0.0
        return [Load(len(server.running), len(server.queue), 0, own, oldest) for own in mine]

    # calls

    def arrive(self) -> None:
        setup = self.setup
        rate = setup.load * setup.replicas * setup.slots / setup.service
        seconds = self.arrivals.lognormvariate(math.log(setup.service) - setup.sigma**2 / 2, setup.sigma)
        self.send(Job(self.now, seconds, self.arrivals.randrange(setup.callers)))
        self.at(self.now + self.arrivals.expovariate(rate), self.arrive)

    def send(self, job: Job, tried: frozenset[str] = frozenset(), full: frozenset[str] = frozenset()) -> None:
        keeps = self.policy != "router" or len(full) >= self.setup.bounces
        server = self.servers[self.pick(job, tried if keeps else tried | full)]
        if not server.alive:
            self.fail(job, server.name, tried)
        elif len(server.running) < server.slots:
            self.start(server, job, self.now)
        elif not keeps:
            router = self.routers[job.caller]
            router.done(server.name, self.now)
            router.report(server.name, self.load(server)[job.caller])
            self.send(job, tried, full | {server.name})
        else:
            server.queue.append((job, self.now))

    def pick(self, job: Job, tried: frozenset[str]) -> str:
        if self.policy == "router":
            name = self.routers[job.caller].pick(Wish(), self.now, tried)
            assert name is not None
            return name
        if self.policy == "random":
            return self.chance.choice([name for name in self.book if name not in tried])
        alive = [server for server in self.servers.values() if server.alive]
        return min(alive, key=lambda server: server.calls).name

    def fail(self, job: Job, name: str, tried: frozenset[str] = frozenset()) -> None:
        """The caller sees the broken way at once, and tries elsewhere."""
        self.retries += 1
        if self.policy == "router":
            self.routers[job.caller].done(name, self.now, fault=True)
        self.send(job, tried | {name})

    def start(self, server: Server, job: Job, since: float) -> None:
        if job.arrived >= self.setup.warm and not job.tries:
            self.waits.append(self.now - since)
        job.tries += 1
        key = next(self.order)
        server.running[key] = job
        self.at(self.now + job.seconds, lambda: self.finish(server, key))

    def finish(self, server: Server, key: int) -> None:
        job = server.running.pop(key, None)
        if job is None:  # it died with its replica
            return
        if self.policy == "router":
            self.routers[job.caller].done(server.name, self.now)
        if server.queue:
            following, since = server.queue.popleft()
            self.start(server, following, since)


def waits(policy: Policy, setup: Setup | None = None, seed: int = 0) -> list[float]:
    """Seconds that each call waited for a slot, sorted."""
    return sorted(Cluster(policy, setup or Setup(), seed).run().waits)
