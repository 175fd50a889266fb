"""What a chain asks for, mapped to what is there. Pure: a graph and a cluster in, a graph out.

A chain's `Resources` say what production needs. `production` takes them as they are written. `laptop` takes GPUs away
where there are none and shares cores, memory and GPUs out where they do not suffice, so that the same file runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from chains.dsl.nodes import Graph, Node
from chains.dsl.specs import Resources
from chains.policy.placement import Cluster, faults

Profile = Literal["production", "laptop"]
_STEP = 100
"""Shares are whole hundredths of a core or GPU."""


def profile_for(graph: Graph, cluster: Cluster) -> Profile:
    """The profile when none is named: `laptop` where no GPU is, or will be, and the chain does not fit as written."""
    return "laptop" if not cluster.gpus and not cluster.autoscales and faults(graph, cluster) else "production"


def mapped(graph: Graph, cluster: Cluster, profile: Profile) -> tuple[Graph, list[str]]:
    """The graph with the resources of `profile`, and a line for each chainlet that it changes.

    Shares are such that every chainlet could have its `max` replicas, twice for as long as an upgrade takes; what
    suffices is left as it is.
    """
    if profile == "production":
        return graph, []
    machines = cluster.machines
    cores = _share(graph, sum(one.cpu for one in machines) - cluster.taken, lambda wanted: wanted.cpu)
    gpus = _share(graph, cluster.gpus, lambda wanted: wanted.gpus)
    memory = _share(graph, sum(one.memory for one in machines), lambda wanted: wanted.memory_bytes)
    nodes, told = dict[str, Node](), list[str]()
    for name, node in graph.nodes.items():
        wanted = node.spec.resources
        size = min(wanted.memory_bytes * memory, max((one.memory for one in machines), default=0))
        now = Resources(
            cpu=_part(wanted.cpu, cores, max((one.cpu for one in machines), default=0.0)),
            memory=wanted.memory if size == wanted.memory_bytes else f"{max(1, math.floor(size / 2**20))}MiB",
            gpus=_whole(_part(wanted.gpus, gpus, max((one.gpus for one in machines), default=0.0))),
        )
        if wanted.gpu and cluster.gpus and any(machine.gpu == wanted.gpu for machine in cluster.machines):
            now = replace(now, gpu=wanted.gpu)
        nodes[name] = node if now == wanted else replace(node, spec=replace(node.spec, resources=now))
        if now != wanted:
            told.append(f"{name}: {_shown(wanted)} -> {_shown(now)}")
    return Graph(graph.entry, nodes), told


def _share(graph: Graph, have: float, amount: Callable[[Resources], float]) -> float:
    """The part of what it wants that each can have, at most all of it, when each has its most replicas."""
    wanted = sum(2 * node.spec.scaling.max * amount(node.spec.resources) for node in graph.nodes.values())
    return min(1.0, have / wanted) if wanted else 1.0


def _part(wanted: float, share: float, most: float) -> float:
    """No more than one machine has, and rounded down: the shares must add up to no more than there is."""
    if share >= 1 and wanted <= most:
        return wanted
    part = min(wanted * share, most)
    return max(1, math.floor(part * _STEP + 1e-6)) / _STEP if part else 0.0


def _whole(gpus: float) -> float:
    """More than one GPU is whole ones."""
    return float(math.floor(gpus)) if gpus > 1 else gpus


def _shown(wanted: Resources) -> str:
    parts = [f"cpu {wanted.cpu:g}", wanted.memory, f"{wanted.gpus:g} {wanted.gpu or 'gpu'}" if wanted.gpus else ""]
    return ", ".join(filter(None, parts))
