"""What Serve is told of each chainlet."""

from __future__ import annotations

from typing import Any

import pytest

from chains.dsl.graph import build
from chains.errors import SettingError
from chains.runtime.target import target_of
from tests.chains.runtime.ray_serve import chain_on_ray as chain

pytest.importorskip("ray")

from chains.runtime.ray_serve.application import application, deployment_options, replica_counts
from chains.runtime.ray_serve.plan import Plan, RaySettings


def options(entry: type, name: str, **plan: Any) -> dict[str, Any]:
    return deployment_options(build(entry).nodes[name], Plan("x", **plan))


def test_resources_are_what_the_chainlet_asks_for() -> None:
    assert options(chain.Greedy, "Greedy")["ray_actor_options"] == {
        "num_cpus": 0.1,
        "num_gpus": 2,
        "memory": 2 * 2**30,
        "accelerator_type": "B200",
    }


def counts(entry: type, **plan: Any) -> dict[str, dict[str, Any]]:
    return replica_counts(build(entry), Plan("x", **plan))


def test_counts_are_fixed_or_scaled() -> None:
    assert counts(chain.Front)["Worker"] == {"num_replicas": 1}
    assert counts(chain.Front, replicas={"Worker": 3})["Worker"] == {"num_replicas": 3}
    scaled = counts(chain.Waking)["Sleeper"]["autoscaling_config"]
    assert (scaled["min_replicas"], scaled["max_replicas"]) == (0, 1)
    assert counts(chain.Waking, replicas={"Sleeper": 2})["Sleeper"] == {"num_replicas": 2}


def test_where_one_is_scaled_the_others_have_the_policy_and_their_count() -> None:
    for name in ("Waking", "gateway"):
        told = counts(chain.Waking, gateways=1)[name]["autoscaling_config"]
        assert told["min_replicas"] == told["max_replicas"] == 1


def test_a_replica_has_its_grace_and_a_little_more() -> None:
    told = options(chain.Front, "Worker", settings=RaySettings(grace=7.0, surge=50, health_period=2.0))
    assert told["graceful_shutdown_timeout_s"] > 7.0 + told["graceful_shutdown_wait_loop_s"]
    assert (told["max_surge_percent"], told["health_check_period_s"]) == (50, 2.0)


def test_a_manifest_builds_what_a_program_does() -> None:
    target = target_of(build(chain.Front))
    assert application({"chain": target})._bound_deployment.name == "Front"
    assert application({"chain": target, "gateway": "chains.serve:door"})._bound_deployment.name == "gateway"
    with pytest.raises(SettingError, match="no setting 'gatway'"):
        application({"chain": target, "gatway": ""})
