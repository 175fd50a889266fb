"""Whether a chain fits on a cluster, and on which nodes it had best stand. Pure: the machines are handed in.

What counts is what a machine has in all, not what is free: what others hold now may be given back, what no machine has
will never come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from chains.dsl import source
from chains.dsl.nodes import Graph, Node
from chains.dsl.specs import Resources
from chains.errors import Fault

_EXACT = 1e-6
"""Fractions add up to a little more or less than they should."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of a cluster and all that it has. `memory` is bytes; `gpu` is the kind of its GPUs, "" if nobody knows."""

    id: str
    name: str
    cpu: float
    memory: int
    gpus: float = 0.0
    gpu: str = ""

    def __str__(self) -> str:
        gpus = f"{self.gpus:g} {self.gpu or 'GPUs of a kind that it does not tell'}" if self.gpus else "no GPU"
        return f"{self.name}: {self.cpu:g} cpu, {self.memory / 2**30:.1f} GiB, {gpus}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines that are there. One that `autoscales` may get others when they are asked for; of its cores some
    are `taken` by what is no chainlet.
    """

    machines: tuple[Machine, ...]
    autoscales: bool = False
    taken: float = 0.0

    @property
    def gpus(self) -> float:
        return sum(machine.gpus for machine in self.machines)


def lacks(machine: Machine, wanted: Resources) -> list[str]:
    """What of `wanted` this machine can never give, e.g. ["8 cpu"]. Empty: it can."""
    short = []
    if wanted.cpu > machine.cpu + _EXACT:
        short.append(f"{wanted.cpu:g} cpu")
    if wanted.memory_bytes > machine.memory:
        short.append(wanted.memory)
    if wanted.gpus > machine.gpus + _EXACT or (wanted.gpu and wanted.gpu != machine.gpu):
        short.append(f"{wanted.gpus:g} {wanted.gpu or 'GPU'}")
    return short


def faults(graph: Graph, cluster: Cluster, *, laptop: bool = False) -> list[Fault]:
    """What can never be placed on these machines: replicas that fit on none, and least numbers that do not fit on all
    together. `laptop`: the graph has the resources of that profile already.
    """
    profile = "" if laptop else "deploy with --profile laptop, "
    found = [fault for node in graph.nodes.values() if (fault := _misfit(node, cluster, profile))]
    if not found:
        found = [_too_much(graph, "cpu", want, have, "{:g}".format) for want, have in _short(graph, cluster, _cpu)]
        found += [_too_much(graph, "GPUs", want, have, "{:g}".format) for want, have in _short(graph, cluster, _gpus)]
        found += [_too_much(graph, "memory", want, have, _gib) for want, have in _short(graph, cluster, _memory)]
        mend = f"ask for less in resources=... or scaling=..., {profile}or add nodes"
        found = [replace(fault, write=mend) for fault in found]
    return found


def doubts(graph: Graph, cluster: Cluster) -> list[str]:
    """What may have to wait though each replica fits somewhere: the least numbers do not pack onto these machines."""
    free = {machine: [machine.cpu, machine.gpus, float(machine.memory)] for machine in cluster.machines}
    standing: Counter[tuple[str, str]] = Counter()
    left: Counter[str] = Counter()
    for node, _ in sorted(_least(graph), key=lambda one: _weight(one[0].spec.resources), reverse=True):
        wanted, limit = node.spec.resources, node.spec.placement.per_node
        amounts = (wanted.cpu, wanted.gpus, float(wanted.memory_bytes))
        for machine, have in free.items():
            room = all(want <= has + _EXACT for want, has in zip(amounts, have, strict=True))
            if room and not lacks(machine, wanted) and not (limit and standing[node.name, machine.id] >= limit):
                free[machine] = [has - want for want, has in zip(amounts, have, strict=True)]
                standing[node.name, machine.id] += 1
                break
        else:
            left[node.name] += 1
    return [
        f"{name}: {count} of its replicas may find no node with room, though there is enough over all nodes together"
        for name, count in left.items()
    ]


def has_room_twice(graph: Graph, cluster: Cluster) -> bool:
    """Whether old and new replicas of all chainlets can stand side by side while the chain is upgraded."""
    twice = {
        name: {"scaling": replace(node.spec.scaling, min=2 * node.spec.scaling.min, max=2 * node.spec.scaling.max)}
        for name, node in graph.nodes.items()
    }
    doubled = graph.changed(twice)
    return not faults(doubled, cluster) and not doubts(doubled, cluster)


def preferred(graph: Graph, cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """The ids of the nodes on which each chainlet had best stand, best first, where its placement wishes for some.

    A chainlet with its caller goes where that goes: both are given one order of nodes. One that packs fills node after
    node. The roomiest comes first; only nodes that can take a replica of all of them are in it.
    """
    orders: dict[str, tuple[str, ...]] = {}
    for names in _together(graph):
        nodes = [graph.nodes[name] for name in names]
        if len(nodes) == 1 and nodes[0].spec.placement.prefer != "pack":
            continue
        fitting = [one for one in cluster.machines if not any(lacks(one, node.spec.resources) for node in nodes)]
        fitting.sort(key=lambda one: (-one.gpus, -one.cpu, -one.memory, one.name, one.id))
        if fitting:
            orders.update(dict.fromkeys(names, tuple(machine.id for machine in fitting)))
    return orders


def _together(graph: Graph) -> list[list[str]]:
    """The chainlets in groups that wish for one node: each with those that want to be with it."""
    group = {name: name for name in graph.nodes}
    for node in graph.nodes.values():
        for edge in node.edges.values():
            if graph.nodes[edge.target].spec.placement.with_caller:
                old, new = group[edge.target], group[node.name]
                group = {name: new if one == old else one for name, one in group.items()}
    return [[name for name, one in group.items() if one == which] for which in dict.fromkeys(group.values())]


def _least(graph: Graph) -> Iterator[tuple[Node, int]]:
    """Each replica that there always is, with its number."""
    for node in graph.nodes.values():
        for index in range(node.spec.scaling.min):
            yield node, index


def _weight(wanted: Resources) -> tuple[float, float, int]:
    return wanted.gpus, wanted.cpu, wanted.memory_bytes


def _cpu(one: Resources | Machine) -> float:
    return one.cpu


def _gpus(one: Resources | Machine) -> float:
    return one.gpus


def _memory(one: Resources | Machine) -> float:
    return one.memory_bytes if isinstance(one, Resources) else one.memory


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def _short(
    graph: Graph, cluster: Cluster, amount: Callable[[Resources | Machine], float]
) -> list[tuple[dict[str, float], float]]:
    """What each chainlet wants at least and what all machines have, if that is too little."""
    wants = {node.name: node.spec.scaling.min * amount(node.spec.resources) for node in graph.nodes.values()}
    have = sum(amount(machine) for machine in cluster.machines) - (cluster.taken if amount is _cpu else 0.0)
    return [(wants, have)] if sum(wants.values()) > have + _EXACT else []


def _too_much(graph: Graph, what: str, wants: dict[str, float], have: float, show: Callable[[float], str]) -> Fault:
    each = ", ".join(f"{name} {show(want)}" for name, want in wants.items() if want)
    found = f"wants {show(sum(wants.values()))} {what} for the least number of replicas, all nodes together have "
    return Fault(_where(graph.nodes[graph.entry]), f"{found}{show(have)} ({each})")


def _misfit(node: Node, cluster: Cluster, profile: str) -> Fault | None:
    wanted, limit, least = node.spec.resources, node.spec.placement.per_node, node.spec.scaling.min
    short = {machine: lacks(machine, wanted) for machine in cluster.machines}
    fitting = [machine for machine, missing in short.items() if not missing]
    if not fitting:
        best = _best(cluster.machines, short)
        nearest = f"the nearest is {best}" if best else "the cluster has none"
        found = f"wants {_shown(wanted)} for a replica, which no node has; {nearest}"
        mend = f"ask for less in resources=..., {profile}or add such a node"
        return Fault(_where(node), found, mend)
    if limit and least > limit * len(fitting):
        places = f"{len(fitting)} node{'' if len(fitting) == 1 else 's'} can take it"
        found = f"wants {least} replicas at least and {limit} on a node at most, but {places}"
        return Fault(_where(node), found, "raise per_node, lower min, or add nodes")
    return None


def _best(machines: Sequence[Machine], short: dict[Machine, list[str]]) -> Machine | None:
    return min(machines, key=lambda one: (len(short[one]), -one.gpus, -one.cpu, -one.memory), default=None)


def _shown(wanted: Resources) -> str:
    parts = [f"{wanted.cpu:g} cpu"] if wanted.cpu else []
    parts += [wanted.memory] if wanted.memory else []
    parts += [f"{wanted.gpus:g} {wanted.gpu or 'GPU'}"] if wanted.gpus else []
    return ", ".join(parts)


def _where(node: Node) -> str:
    return f"{source.ClassSource.of(node.cls).where} ({node.name})"
