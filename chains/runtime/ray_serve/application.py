"""From a plan to a Serve application: one deployment for each chainlet, and one that callers reach."""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.schema import LoggingConfig

from chains.dsl.graph import Graph, Node, load
from chains.runtime.ray_serve.autoscaling import autoscaling_config, scaled
from chains.runtime.ray_serve.chainlet import ChainletReplica
from chains.runtime.ray_serve.gateway import GatewayReplica
from chains.runtime.ray_serve.options import placing_options
from chains.runtime.ray_serve.plan import GATEWAY, Plan

SLACK = 10.0
"""Seconds that a replica has beyond its grace before Serve kills it."""
NEWS = 0.25
"""Seconds between a replica's leaving the book and its drain: until then its callers have heard of it."""
GATEWAY_CPU = 0.1
"""Cores that Ray holds for a gateway's replica."""
ASKED = 1024
"""Requests that Serve itself may hold at a replica: those that wake it. What calls it may take, its Limits say."""
TRIES = 3
"""How often Serve tries to start a replica before it gives a deployment up."""


def application(args: dict[str, Any]) -> serve.Application:
    """What a Serve config's `import_path: chains.runtime.ray_serve:application` builds; `args` are a Plan's fields."""
    plan = Plan.read(args)
    return built(load(plan.chain), plan)


def built(graph: Graph, plan: Plan) -> serve.Application:
    """The application of a chain that is loaded already. Raises SettingError for a plan that does not fit it."""
    plan.check(graph)
    graph, plain = plan.adapted(graph), plan.plain()
    counts = replica_counts(graph, plan)
    bound: dict[str, serve.Application] = {}
    for name, node in graph.nodes.items():  # those that are depended on come first
        targets = {edge.target: bound[edge.target] for edge in node.edges.values()}
        options = deployment_options(node, plan) | counts[name]
        bound[name] = serve.deployment(**options)(ChainletReplica).bind(plain, name, targets)
    if not plan.gateway:
        return bound[graph.entry]
    return serve.deployment(**_gateway_options(plan), **counts[GATEWAY])(GatewayReplica).bind(plain, bound)


def deployment_options(node: Node, plan: Plan) -> dict[str, Any]:
    """What Serve is told of a chainlet."""
    options = _life(plan, plan.settings.grace) | placing_options(node, plan.nodes.get(node.name, ()))
    return options | {"name": node.name}


def replica_counts(graph: Graph, plan: Plan) -> dict[str, dict[str, Any]]:
    """How many replicas there are of each deployment. Where one is scaled all have the policy: those that are not tell
    it who waits for whom."""
    specs = scaled(graph, plan.replicas)
    fixed = {name: spec.max for name, spec in specs.items() if spec.min == spec.max} | {GATEWAY: plan.gateways}
    if fixed.keys() >= specs.keys():
        return {name: {"num_replicas": count} for name, count in fixed.items()}
    bounds = {name: (spec.min, spec.max) for name, spec in specs.items()} | {GATEWAY: (plan.gateways, plan.gateways)}
    configs = {name: autoscaling_config(specs, graph.entry, *both) for name, both in bounds.items()}
    return {name: {"num_replicas": None, "autoscaling_config": config} for name, config in configs.items()}


def _gateway_options(plan: Plan) -> dict[str, Any]:
    drain = float(plan.door.get("drain_seconds", plan.settings.grace))
    return _life(plan, drain) | {
        "name": GATEWAY,
        "ray_actor_options": {"num_cpus": GATEWAY_CPU, "resources": dict(plan.gateway_resources)},
    }


def _life(plan: Plan, grace: float) -> dict[str, Any]:
    settings = plan.settings
    return {
        "max_ongoing_requests": ASKED,
        "health_check_period_s": settings.health_period,
        "health_check_timeout_s": 10.0,
        "graceful_shutdown_wait_loop_s": NEWS,
        "graceful_shutdown_timeout_s": grace + SLACK,
        "max_constructor_retry_count": TRIES,
        "max_surge_percent": settings.surge,
        "logging_config": LoggingConfig(log_level="WARNING", enable_access_log=False),
    }
