"""How many replicas a chainlet needs. Pure: demand and the time in, a number out.

A need must last: for `up_delay` seconds before replicas are added, for `down_delay` before they are taken away; what
lasts is the least, or the most, of what was needed in that time, so that noise moves nothing. From zero, a call that
waits is need enough at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from chains.dsl.specs import Autoscaling
from chains.errors import SettingError

SHARE_SECONDS = 120.0
"""Over about this long a chainlet's share of the entry's streams is measured."""
RISE_SECONDS = 4.0
"""Over so long a rise of the entry's streams is looked at."""
LEARN_SECONDS = 600.0
"""In about this time it is forgotten that replicas were slower than their `target_streams` says."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a chainlet has to do, over all its replicas and callers.

    `active` hops are at work (a call that is silent for half an hour is none), `streams` hops are open, `waiting` ones
    queue at replicas or, where none is there yet, at their callers. `wait_ms` is what those at the front of the queues
    have waited, `ready` how many replicas serve.
    """

    active: float = 0.0
    streams: float = 0.0
    waiting: float = 0.0
    wait_ms: float = 0.0
    ready: int = 0


def needed(spec: Autoscaling, demand: Demand, *, forecast: float = 0.0, capacity: float | None = None) -> int:
    """Replicas for this demand, spares included, within `min` and `max`. More of anything never needs fewer.

    `forecast` is work that is expected soon, `capacity` what a replica bears where that is less than `target_streams`.
    Waiting too long asks for more than those that are `ready`, at most twice as many: of those that start nobody knows
    yet whether they suffice, so they are not multiplied again.
    """
    work = max(demand.active + demand.waiting, forecast)
    need = math.ceil(work / min(capacity or math.inf, spec.target_streams) - 1e-9)
    if demand.streams > 0 or demand.waiting > 0:
        need = max(need, 1)
    late = demand.wait_ms / spec.target_wait_ms
    if late > 1.0:
        need = max(need, demand.ready + 1, math.ceil(demand.ready * min(late, 2.0)))
    return max(spec.min, min(need + spec.spares, spec.max))


class Scaler:
    """The replicas of one chainlet over time: `decide` a few times a second, or whenever demand has changed.

    `desired` is the last decision, `capacity` the active hops that a replica bears: `target_streams`, or less when
    calls waited too long with less (which then is slowly forgotten, so that it is tried again).
    """

    def __init__(self, spec: Autoscaling) -> None:
        self.spec = spec
        self.desired = needed(spec, Demand())
        self.capacity = spec.target_streams
        self._needs: deque[tuple[float, int]] = deque()
        self._last: float | None = None

    def adopt(self, desired: int) -> None:
        """Somebody else has set so many. They stay for a whole delay: what was needed before says nothing of them."""
        self.desired = desired
        self._needs.clear()

    def decide(self, demand: Demand, now: float, forecast: float = 0.0) -> int:
        """How many replicas there should be from now on."""
        self._learn(demand, 0.0 if self._last is None else max(0.0, now - self._last))
        self._last = now
        need = needed(self.spec, demand, forecast=forecast, capacity=self.capacity)
        self._remember(now, need)
        lasting = self._within(now, self.spec.up_delay)
        past = self._within(now, self.spec.down_delay)
        if self.desired == 0 and demand.waiting > 0:
            self.desired = max(1, need)
        elif lasting and min(lasting) > self.desired:
            self.desired = min(lasting)
        elif past and max(past) < self.desired:
            self.desired = max(past)
        return self.desired

    def _learn(self, demand: Demand, seconds: float) -> None:
        target = self.spec.target_streams
        self.capacity += (target - self.capacity) * min(1.0, seconds / LEARN_SECONDS)
        if demand.wait_ms > self.spec.target_wait_ms and demand.ready:
            self.capacity = min(self.capacity, max(0.9 * demand.active / demand.ready, target / 4))

    def _remember(self, now: float, need: int) -> None:
        """Keep what was needed as far back as a delay reaches; a need holds until the next one."""
        if not self._needs or self._needs[-1][1] != need:
            self._needs.append((now, need))
        oldest = now - max(self.spec.up_delay, self.spec.down_delay)
        while len(self._needs) > 1 and self._needs[1][0] <= oldest:
            self._needs.popleft()

    def _within(self, now: float, seconds: float) -> list[int]:
        """What was needed in the last `seconds`; nothing when it is not known for all of them."""
        begin, found = now - seconds, list[int]()
        for when, need in reversed(self._needs):
            found.append(need)
            if when <= begin:
                return found
        return []


class ChainScaler:
    """All chainlets of a chain together: when the entry has more streams, those behind it are scaled along.

    `shares` says how many hops of each chainlet are at work for each stream of the entry, as measured over the last
    minutes (calls a second times their seconds: both are in it). By them a rise at the entry is work that is about to
    come for all others, before it stands in their queues. `starts` are the seconds that a replica of each takes to
    come up: a rise is thought on for so long, to twice what there is at most. Raises SettingError for an entry without
    a spec.
    """

    def __init__(self, specs: Mapping[str, Autoscaling], entry: str) -> None:
        if entry not in specs:
            raise SettingError(f"the entry {entry!r} has no Autoscaling", mend=f"name one of {', '.join(specs)}")
        self.entry = entry
        self.scalers = {name: Scaler(spec) for name, spec in specs.items()}
        self._work = dict.fromkeys(specs, 0.0)
        self._streams = 0.0
        self._last: float | None = None
        self._past: deque[tuple[float, float]] = deque()

    @property
    def shares(self) -> dict[str, float]:
        """Hops at work per stream of the entry; 0 as long as nothing is known."""
        return {
            name: work / self._streams if self._streams > 1e-6 else 0.0
            for name, work in self._work.items()
            if name != self.entry
        }

    def decide(
        self, demands: Mapping[str, Demand], now: float, starts: Mapping[str, float] | None = None
    ) -> dict[str, int]:
        """How many replicas each chainlet should have from now on. A chainlet that is missing has no demand."""
        entry = demands.get(self.entry, Demand())
        streams = entry.streams + entry.waiting
        self._measure(demands, entry.streams, now)
        rise = self._rise(streams, now)
        shares = self.shares
        wanted = {}
        for name, scaler in self.scalers.items():
            soon = streams + min(rise * (starts or {}).get(name, 0.0), streams)
            wanted[name] = scaler.decide(demands.get(name, Demand()), now, shares.get(name, 0.0) * soon)
        return wanted

    def _rise(self, streams: float, now: float) -> float:
        """Streams that the entry gains a second, over the last few; 0 when they get fewer."""
        self._past.append((now, streams))
        while len(self._past) > 2 and now - self._past[1][0] >= RISE_SECONDS:
            self._past.popleft()
        begin, before = self._past[0]
        return max(0.0, (streams - before) / (now - begin)) if now - begin >= RISE_SECONDS else 0.0

    def _measure(self, demands: Mapping[str, Demand], streams: float, now: float) -> None:
        """Both sides of the share fade alike, and not at all while the entry has no streams: what was learnt by day
        is known the next morning."""
        seconds = 0.0 if self._last is None else max(0.0, now - self._last)
        self._last = now
        if streams <= 0:
            return
        kept = math.exp(-seconds / SHARE_SECONDS)
        self._streams = self._streams * kept + streams * seconds
        for name in self._work:
            demand = demands.get(name, Demand())
            self._work[name] = self._work[name] * kept + (demand.active + demand.waiting) * seconds
