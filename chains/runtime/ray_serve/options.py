"""What a chainlet's settings are to Ray Serve. Pure: a node in, Serve's options out.

`Resources` are `num_cpus`, `num_gpus`, `memory` and `accelerator_type`; `Placement.per_node` is
`max_replicas_per_node`. Serve spreads by itself; for what packs or stays with its caller it has nothing for a single
deployment, so that these get a label selector on nodes that were chosen when they were deployed, and which gives way
when those have no room. Of `Environment`, `pip` and `env` are the `runtime_env`; secrets go past Ray, which shows
what it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chains.dsl.nodes import Node
from chains.dsl.specs import Environment, Resources

_NODE = "ray.io/node-id"
"""The label that Ray gives each node."""


def placing_options(node: Node, nodes: Sequence[str] = ()) -> dict[str, Any]:
    """Where its replicas may stand, and in which environment; `nodes` are the ids of those it would rather have."""
    options: dict[str, Any] = {"ray_actor_options": actor_options(node, nodes)}
    if node.spec.placement.per_node:
        options["max_replicas_per_node"] = node.spec.placement.per_node
    return options


def actor_options(node: Node, nodes: Sequence[str] = ()) -> dict[str, Any]:
    """What Ray holds for each replica."""
    return {**_resources(node.spec.resources), **_labels(nodes), **_environment(node.spec.environment)}


def _resources(wanted: Resources) -> dict[str, Any]:
    options: dict[str, Any] = {"num_cpus": wanted.cpu, "num_gpus": wanted.gpus}
    if wanted.memory_bytes:
        options["memory"] = wanted.memory_bytes
    if wanted.gpu:
        options["accelerator_type"] = wanted.gpu
    return options


def _labels(nodes: Sequence[str]) -> dict[str, Any]:
    """The first node that has room, any other when none has: what is wished for never keeps a replica from starting."""
    if not nodes:
        return {}
    further = [{"label_selector": {_NODE: other}} for other in nodes[1:]]
    return {"label_selector": {_NODE: nodes[0]}, "fallback_strategy": [*further, {"label_selector": {}}]}


def _environment(environment: Environment) -> dict[str, Any]:
    runtime: dict[str, Any] = {}
    if environment.pip:
        runtime["pip"] = list(environment.pip)
    if environment.env:
        runtime["env_vars"] = dict(environment.env)
    return {"runtime_env": runtime} if runtime else {}
