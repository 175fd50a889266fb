"""Each setting of a chainlet, as Serve is told it; Serve itself takes what comes out."""

from __future__ import annotations

from typing import Any

import pytest

from chains.dsl.chainlet import chainlet
from chains.dsl.graph import build
from chains.dsl.nodes import Node
from chains.dsl.specs import Environment, Placement, Resources

pytest.importorskip("ray")

from ray import serve

from chains.runtime.ray_serve.options import actor_options, placing_options


def node(**settings: Any) -> Node:
    @chainlet(entry=True, **settings)
    class Model:
        async def run(self, text: str) -> str:
            return text

    return build(Model).nodes["Model"]


def test_a_plain_chainlet_asks_for_a_core_and_nothing_else() -> None:
    assert placing_options(node()) == {"ray_actor_options": {"num_cpus": 1.0, "num_gpus": 0.0}}


def test_resources() -> None:
    asked = actor_options(node(resources=Resources(cpu=0.5, memory="1GiB", gpu="H100", gpus=2)))
    assert asked == {"num_cpus": 0.5, "num_gpus": 2, "memory": 2**30, "accelerator_type": "H100"}
    assert actor_options(node(resources=Resources(gpus=0.25))) == {"num_cpus": 1.0, "num_gpus": 0.25}


def test_placement() -> None:
    assert placing_options(node(placement=Placement(per_node=2)))["max_replicas_per_node"] == 2
    options = actor_options(node(placement=Placement(prefer="pack")), ["one", "two"])
    assert options["label_selector"] == {"ray.io/node-id": "one"}
    assert options["fallback_strategy"] == [
        {"label_selector": {"ray.io/node-id": "two"}},
        {"label_selector": {}},  # anywhere: a wish keeps no replica from starting
    ]


def test_environment_without_its_secrets() -> None:
    options = actor_options(node(environment=Environment(pip=["six==1.17"], env={"MODE": "fast"}, secrets=["TOKEN"])))
    assert options["runtime_env"] == {"pip": ["six==1.17"], "env_vars": {"MODE": "fast"}}


def test_serve_takes_all_of_it() -> None:
    asked = node(
        resources=Resources(gpu="L4", memory="1GiB"),
        placement=Placement(per_node=3, prefer="pack"),
        environment=Environment(env={"MODE": "fast"}),
    )
    made: Any = serve.deployment(object)
    kept = made.options(**placing_options(asked, ["one", "two"]))
    assert kept.ray_actor_options["accelerator_type"] == "L4"
    assert kept._replica_config.max_replicas_per_node == 3
