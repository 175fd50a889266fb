"""Ray Serve's autoscaling by our rules: demand comes from what replicas tell of themselves, decisions from
`ChainScaler`.

Serve makes a `ChainPolicy` for each deployment in its controller, and asks it at each of its ticks. Those of one
application decide as one. Serve's own delays are nil: what waits and lasts is said by `Autoscaling` alone.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from chains.dsl.specs import Autoscaling
from chains.policy.autoscaling import ChainScaler, Demand

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

    from chains.dsl.graph import Graph

log = logging.getLogger("chains")

POLICY = "chains.runtime.ray_serve.policy:ChainPolicy"
REPORT_S = 0.25
"""Seconds between two reports of a replica to the controller."""
REPORTS = 400
"""So many reports a second at most, of all replicas that a chain may have: the controller is one process."""
CALLS = "calls:"
"""What a replica tells under this and a chainlet's name: its calls that wait for a replica of that chainlet."""


def stats(active: float, running: float, waiting: float, wait_ms: float, calls: Mapping[str, int]) -> dict[str, float]:
    """What a replica tells, as `record_autoscaling_stats` gives it: its part of the chainlet's `Demand`, and how many
    of its calls wait for a replica of each other chainlet."""
    told = {"active": active, "running": running, "waiting": waiting, "wait_ms": wait_ms if waiting else 0.0}
    return told | waiting_stats(calls)


def waiting_stats(calls: Mapping[str, int]) -> dict[str, float]:
    """What somebody tells who has calls and no work of its own: the gateway."""
    return {f"{CALLS}{name}": float(count) for name, count in calls.items()}


def scaled(graph: Graph, counts: Mapping[str, int]) -> dict[str, Autoscaling]:
    """How each chainlet is scaled; one with a fixed count between that and that."""
    specs = {name: node.spec.scaling for name, node in graph.nodes.items()}
    return specs | {name: replace(specs[name], min=count, max=count) for name, count in counts.items()}


def autoscaling_config(specs: Mapping[str, Autoscaling], entry: str, least: int, most: int) -> dict[str, Any]:
    """What Serve is told of a deployment of the chain. No initial count is: an upgrade keeps those that there are."""
    pace = max(REPORT_S, sum(spec.max for spec in specs.values()) / REPORTS)
    kwargs = {"entry": entry, "scaling": {name: asdict(spec) for name, spec in specs.items()}}
    return {
        "min_replicas": least,
        "max_replicas": most,
        "target_ongoing_requests": 1.0,
        "upscale_delay_s": 0.0,
        "downscale_delay_s": 0.0,
        "metrics_interval_s": pace,
        "look_back_period_s": 2 * pace,  # a fifth of it is how often a replica looks at itself
        "policy": {"policy_function": POLICY, "policy_kwargs": kwargs},
    }


@dataclass(frozen=True, slots=True)
class Report:
    """What Serve knows of one deployment at one tick. `calls` of its replicas wait for others; `target` is how many
    replicas it is to have until something else is decided, within `least` and `most`."""

    demand: Demand = field(default_factory=Demand)
    calls: Mapping[str, float] = field(default_factory=dict)
    target: int = 0
    least: int = 0
    most: int = 0


def read(context: AutoscalingContext) -> Report:
    """The last that each replica told, over all that run."""
    raw = context.raw_metrics or {}
    last = {name: [series[-1].value for series in raw[name].values() if series] for name in raw}
    queued = {replica: series[-1].value for replica, series in raw.get("waiting", {}).items() if series}
    waits = [
        series[-1].value * queued.get(replica, 0.0) for replica, series in raw.get("wait_ms", {}).items() if series
    ]
    waiting = sum(queued.values())
    demand = Demand(
        active=sum(last.get("active", ())),
        streams=sum(last.get("running", ())),
        waiting=waiting,
        wait_ms=sum(waits) / waiting if waiting else 0.0,  # as one of those that wait sees it
        ready=context.current_num_replicas,
    )
    calls = {name.removeprefix(CALLS): sum(values) for name, values in last.items() if name.startswith(CALLS)}
    bounds = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    return Report(demand, calls, context.target_num_replicas, *bounds)


class Chain:
    """The deployments of one application, each of which asks at each tick: `decide` hears one and answers it.

    Once one asks again all have been heard, and all are decided on together. What they are told is theirs only when it
    has come to pass: when Serve has another count (woken by a call, scaled by hand, its controller begun anew), that
    one is gone on from.
    """

    def __init__(self, specs: Mapping[str, Autoscaling], entry: str) -> None:
        self.scaler = ChainScaler(specs, entry)
        self._heard: dict[str, Report] = {}
        self._told: dict[str, int] = {}
        self._wanted: dict[str, int] = {}
        self._ready: dict[str, int] = {}
        self._rising: dict[str, float] = {}
        self._starts: dict[str, float] = {}

    def decide(self, name: str, report: Report, now: float) -> int:
        """How many replicas it is to have; `now` in seconds of any steady clock."""
        if name in self.scaler.scalers:
            self._agree(name, report)
            self._watch(name, report, now)
        if name in self._heard:
            self._round(now)
        self._heard[name] = report
        count = max(report.least, min(self._wanted.get(name, report.target), report.most))
        if count == 0 and report.target > 1:
            count = 1  # Serve goes to zero from one only
        self._told[name] = count
        return count

    def _agree(self, name: str, report: Report) -> None:
        scaler = self.scaler.scalers[name]
        if (scaler.spec.min, scaler.spec.max) != (report.least, report.most):
            scaler.spec = replace(scaler.spec, min=report.least, max=report.most)
        told = self._told.get(name)
        if told != report.target:
            more = told is None or told < report.target
            scaler.adopt(max(report.target, scaler.desired) if more else report.target)
            self._wanted[name] = scaler.desired

    def _watch(self, name: str, report: Report, now: float) -> None:
        """Measure how long a replica takes from the decision until it serves."""
        before, self._ready[name] = self._ready.get(name, 0), report.demand.ready
        if self._ready[name] > before and name in self._rising:
            self._starts[name] = now - self._rising.pop(name)
        if report.target > self._ready[name]:
            self._rising.setdefault(name, now)
        else:
            self._rising.pop(name, None)

    def _round(self, now: float) -> None:
        heard, self._heard = self._heard, {}
        calls = [report.calls for report in heard.values()]
        demands = {}
        for name in self.scaler.scalers:
            demand = heard[name].demand if name in heard else Demand()
            elsewhere = sum(one.get(name, 0.0) for one in calls)
            demands[name] = replace(demand, waiting=demand.waiting + elsewhere)
        self._wanted = self.scaler.decide(demands, now, self._starts)


class Member:
    """A deployment's part in its application's `Chain`.

    It never raises: Serve would then leave all applications as they are. What goes wrong is logged, and the count kept.
    """

    def __init__(self, entry: str, scaling: Mapping[str, Mapping[str, Any]]) -> None:
        self._specs = {name: Autoscaling(**spec) for name, spec in scaling.items()}
        self._entry = entry
        self._chain: Chain | None = None
        self._failed = False

    def decide(self, context: AutoscalingContext) -> int:
        try:
            if self._chain is None:
                self._chain = _shared(context.app_name or "", self._specs, self._entry)
            count = self._chain.decide(context.deployment_name, read(context), time.monotonic())
        except Exception:
            if not self._failed:
                log.exception("%s is not scaled", context.deployment_name)
            self._failed = True
            return int(context.target_num_replicas)
        self._failed = False
        return count


_CHAINS: WeakValueDictionary[str, Chain] = WeakValueDictionary()
"""What the policies of an application share, for as long as one of them lives. Serve makes them one by one from JSON,
in its own process: nobody is there who could hand them one and the same."""


def _shared(app: str, specs: Mapping[str, Autoscaling], entry: str) -> Chain:
    key = json.dumps([app, entry, {name: asdict(spec) for name, spec in specs.items()}])
    chain = _CHAINS.get(key)
    if chain is None:
        chain = _CHAINS[key] = Chain(specs, entry)
    return chain
