"""The policy that Serve asks: what it reads from Serve's contexts, and what it makes of it, tick by tick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest

from chains.dsl.graph import build
from chains.dsl.specs import Autoscaling
from chains.policy.autoscaling import Demand

pytest.importorskip("ray")

from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from chains.runtime.ray_serve import Plan
from chains.runtime.ray_serve.application import built
from chains.runtime.ray_serve.autoscaling import (
    Chain,
    Report,
    autoscaling_config,
    read,
    scaled,
    stats,
    waiting_stats,
)
from chains.runtime.ray_serve.policy import ChainPolicy
from tests.chains.runtime.ray_serve import chain_that_scales as chain

TICK = 0.25
SPEC = Autoscaling(min=1, max=10, target_streams=4, target_wait_ms=100, up_delay=1, down_delay=10)


def context(name: str, told: list[dict[str, float]], target: int | None = None, **changes: Any) -> AutoscalingContext:
    """A deployment at one tick, as Serve describes it; each of its replicas has `told` something."""
    id = DeploymentID(name, "app")
    replicas = [ReplicaID(str(number), id) for number in range(len(told))]
    raw: dict[str, dict[ReplicaID, list[TimeStampedValue]]] = {}
    for replica, one in zip(replicas, told, strict=True):
        for metric, value in one.items():
            raw.setdefault(metric, {})[replica] = [TimeStampedValue(1.0, 1e6), TimeStampedValue(2.0, value)]
    given: dict[str, Any] = {
        "deployment_id": id,
        "deployment_name": name,
        "app_name": "app",
        "current_num_replicas": len(told),
        "target_num_replicas": len(told) if target is None else target,
        "running_replicas": replicas,
        "total_num_requests": 0.0,
        "total_queued_requests": 0.0,
        "aggregated_metrics": {},
        "raw_metrics": lambda: raw,
        "capacity_adjusted_min_replicas": SPEC.min,
        "capacity_adjusted_max_replicas": SPEC.max,
        "policy_state": {},
        "last_scale_up_time": None,
        "last_scale_down_time": None,
        "current_time": 0.0,
        "config": None,
    }
    return AutoscalingContext(**given | changes)


class Ticks:
    """Serve's ticks over a chain: each deployment is asked in turn, and gets what it was answered."""

    def __init__(self, **specs: Autoscaling) -> None:
        self.chain = Chain(specs, next(iter(specs)))
        self.specs = specs
        self.now = 0.0
        self.counts = {name: spec.min for name, spec in specs.items()}
        self.others: dict[str, Mapping[str, float]] = {}

    def run(self, seconds: float, **demands: Demand) -> dict[str, int]:
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            for name, spec in self.specs.items():
                demand = replace(demands.get(name, Demand()), ready=self.counts[name])
                report = Report(demand, self.others.get(name, {}), self.counts[name], spec.min, spec.max)
                self.counts[name] = self.chain.decide(name, report, self.now)
        return dict(self.counts)


def test_demand_is_what_all_replicas_told_last() -> None:
    told = [stats(3, 10, 2, 50.0, {"Next": 1}), stats(1, 4, 6, 90.0, {"Next": 2}), stats(2, 2, 0, 700.0, {"Next": 0})]
    report = read(context("Front", told, target=5))
    assert report.demand == Demand(active=6, streams=16, waiting=8, wait_ms=80.0, ready=3)  # each that waits counts
    assert (report.calls, report.target, report.least, report.most) == ({"Next": 3}, 5, 1, 10)


def test_who_has_calls_and_no_work_tells_of_them() -> None:
    assert read(context("gateway", [waiting_stats({"Front": 2}), waiting_stats({"Front": 3})])).calls == {"Front": 5}


def test_a_replica_that_has_told_nothing_has_nothing_to_do() -> None:
    assert read(context("Front", [])).demand == Demand()
    assert read(context("Front", [{}, stats(1, 1, 0, 0, {})])).demand == Demand(active=1, streams=1, ready=2)


def test_a_need_is_met_when_it_has_lasted_and_not_before() -> None:
    ticks = Ticks(Front=SPEC)
    busy = Demand(active=10, streams=10)
    assert ticks.run(1.0, Front=busy) == {"Front": 1}
    assert ticks.run(2 * TICK, Front=busy) == {"Front": 3}
    assert ticks.run(9.0) == {"Front": 3}
    assert ticks.run(2.0) == {"Front": 1}


def test_silent_streams_are_no_work() -> None:
    assert Ticks(Front=SPEC).run(20.0, Front=Demand(streams=40)) == {"Front": 1}


def test_calls_that_wait_elsewhere_wake_what_sleeps_at_once() -> None:
    ticks = Ticks(Front=SPEC, Next=replace(SPEC, min=0))
    assert ticks.run(5.0)["Next"] == 0
    ticks.others["Front"] = {"Next": 9.0}
    assert ticks.run(2 * TICK)["Next"] == 3


def test_what_a_call_has_woken_stays_for_the_whole_delay() -> None:
    ticks = Ticks(Front=replace(SPEC, min=0))
    ticks.run(30.0)
    assert ticks.counts == {"Front": 0}
    ticks.counts["Front"] = 1  # Serve's own doing: somebody asked one of its handles
    assert ticks.run(9.5) == {"Front": 1}
    assert ticks.run(1.0) == {"Front": 0}


def test_to_zero_goes_by_one() -> None:
    ticks = Ticks(Front=replace(SPEC, min=0))
    ticks.run(3.0, Front=Demand(active=12, streams=12))
    assert ticks.counts == {"Front": 3}
    ticks.run(9.5)
    seen = [ticks.run(TICK)["Front"] for _ in range(8)]
    assert seen == sorted(seen, reverse=True) and {3, 1, 0} == set(seen)


def test_counts_set_by_others_are_gone_on_from() -> None:
    ticks = Ticks(Front=SPEC)
    ticks.run(1.0)
    ticks.counts["Front"] = 6  # a controller that begins anew finds what there was
    assert ticks.run(9.0) == {"Front": 6}
    assert ticks.run(2.0) == {"Front": 1}


def test_a_count_that_was_fixed_is_kept() -> None:
    ticks = Ticks(Front=SPEC)
    ticks.specs["Front"] = replace(SPEC, min=4, max=4)  # the bounds that Serve names, not those of the chain
    ticks.counts["Front"] = 4
    assert ticks.run(30.0) == ticks.run(5.0, Front=Demand(active=40, wait_ms=900)) == {"Front": 4}


def test_spares_stand_from_the_first_tick_on() -> None:
    assert Ticks(Front=replace(SPEC, spares=2)).run(TICK * 2) == {"Front": 2}


def test_the_entrys_rise_brings_replicas_to_those_behind_it_before_they_have_work() -> None:
    """The share of Next is learnt from four streams; then twelve more come to the entry, and none has reached Next."""
    ticks = Ticks(Front=SPEC, Next=SPEC)
    usual = Demand(active=4, streams=4)
    assert ticks.run(20.0, Front=usual, Next=usual) == {"Front": 1, "Next": 1}
    assert ticks.run(2.0, Front=Demand(active=16, streams=16), Next=usual) == {"Front": 4, "Next": 4}


def test_a_rise_is_thought_on_for_as_long_as_a_replica_takes() -> None:
    """Next takes five seconds to start. While the entry gains a stream a second, Next has more than it needs now."""
    ticks = Ticks(Front=SPEC, Next=SPEC)
    ticks.run(20.0, Front=Demand(active=4, streams=4), Next=Demand(active=4, streams=4))
    slow = 5.0
    for number in range(40):
        ticks.now += TICK
        streams = 4 + number * TICK
        demand = Demand(active=streams, streams=streams)
        for name in ("Front", "Next"):
            ready = 1 if name == "Next" and number * TICK < slow + 2 else ticks.counts[name]
            report = Report(replace(demand, ready=ready), {}, ticks.counts[name], 1, 10)
            ticks.counts[name] = ticks.chain.decide(name, report, ticks.now)
    assert ticks.counts["Next"] > ticks.counts["Front"] == 4


def test_the_policies_of_an_application_share_what_they_know() -> None:
    kwargs = {"entry": "Front", "scaling": {name: asdict(replace(SPEC, min=0)) for name in ("Front", "Next")}}
    front, last, other = ChainPolicy(**kwargs), ChainPolicy(**kwargs), ChainPolicy(**kwargs)
    counts = [0]
    for _ in range(3):
        front(context("Front", [stats(5, 5, 0, 0, {"Next": 5})]))
        counts.append(last(context("Next", [], target=counts[-1], capacity_adjusted_min_replicas=0))[0])
        assert other(context("Next", [], capacity_adjusted_min_replicas=0, app_name="another"))[0] == 0
    assert counts == [0, 0, 2, 2]


def test_what_goes_wrong_is_logged_once_and_leaves_the_count(caplog: pytest.LogCaptureFixture) -> None:
    policy = ChainPolicy("Front", {"Front": asdict(SPEC)})
    broken = context("Front", [], target=3, raw_metrics={"active": {"a": [None]}})
    assert [policy(broken) for _ in range(2)] == [(3, {}), (3, {})]
    assert [record.message for record in caplog.records] == ["Front is not scaled"]


def test_all_of_a_chain_have_the_policy_where_one_is_scaled() -> None:
    graph = build(chain.Front)
    app = built(graph, Plan("x:Front", gateway="chains.serve:gateway", gateways=2))
    configs = _configs(app)
    assert {name: (one.min_replicas, one.max_replicas) for name, one in configs.items()} == {
        "gateway": (2, 2),
        "Front": (1, 3),
        "Asleep": (0, 3),
        "Still": (2, 2),
    }
    for config in configs.values():
        assert config.upscale_delay_s == config.downscale_delay_s == 0.0
        assert (config.initial_replicas, config.metrics_interval_s) == (None, 0.25)


def test_the_policies_as_serve_makes_them_share_too() -> None:
    """From the bytes that come to the controller."""
    made = {name: config.policy for name, config in _configs(built(build(chain.Front), Plan("x:Front"))).items()}
    policies = {name: policy.get_policy()(**policy.policy_kwargs) for name, policy in made.items()}
    for _ in range(2):
        policies["Front"](context("Front", [stats(1, 1, 0, 0, {"Asleep": 5})]))
        count, _ = policies["Asleep"](context("Asleep", [], capacity_adjusted_min_replicas=0))
    assert count == 1


def test_a_count_that_the_plan_fixes_is_fixed() -> None:
    specs = scaled(build(chain.Front), {"Front": 2})
    assert (specs["Front"].min, specs["Front"].max) == (2, 2)
    app = built(build(chain.Front), Plan("x:Front", replicas={"Front": 2, "Asleep": 1}))
    assert not _configs(app) or None


def test_many_replicas_report_less_often() -> None:
    config = autoscaling_config({"Front": replace(SPEC, max=400)}, "Front", 1, 400)
    assert config["metrics_interval_s"] == 1.0


def _configs(app: Any) -> dict[str, AutoscalingConfig]:
    """By deployment, of all that the application binds."""
    found: dict[str, AutoscalingConfig] = {}
    pending = [app]
    while pending:
        deployment = pending.pop()._bound_deployment
        if deployment._deployment_config.autoscaling_config is not None:
            found[deployment.name] = deployment._deployment_config.autoscaling_config
        for argument in deployment.init_args:
            if isinstance(argument, dict):
                pending += [one for one in argument.values() if hasattr(one, "_bound_deployment")]
    return found
