"""What fits on made-up clusters, what is said of what does not, and which nodes a chainlet would rather have."""

from __future__ import annotations

import re

import pytest

from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build
from chains.dsl.nodes import Graph
from chains.dsl.specs import Autoscaling, Placement, Resources
from chains.policy.placement import Cluster, Machine, doubts, faults, has_room_twice, preferred

GIB = 2**30
SMALL = Machine("a" * 8, "10.0.0.1", cpu=4, memory=8 * GIB)
BIG = Machine("b" * 8, "10.0.0.2", cpu=16, memory=64 * GIB, gpus=4, gpu="L4")
NAMELESS = Machine("c" * 8, "10.0.0.3", cpu=4, memory=8 * GIB, gpus=1)


def chain(resources: Resources, scaling: Autoscaling | None = None, placement: Placement | None = None) -> Graph:
    @chainlet(resources=resources, scaling=scaling, placement=placement)
    class Model:
        async def answer(self, text: str) -> str:
            return text

    @chainlet(entry=True, resources=Resources(cpu=0.5))
    class Front:
        model: Model = depends(Model)

        async def run(self, text: str) -> str:
            return await self.model.answer(text)

    return build(Front)


def said(graph: Graph, *machines: Machine) -> list[str]:
    return [str(fault) for fault in faults(graph, Cluster(machines))]


def test_what_fits_is_not_spoken_of() -> None:
    graph = chain(Resources(cpu=4, gpu="L4", gpus=2, memory="8GiB"), Autoscaling(min=2, max=2))
    assert said(graph, SMALL, BIG) == []
    assert doubts(graph, Cluster((SMALL, BIG))) == []


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (
            Resources(gpu="H100"),
            "wants 1 cpu, 1 H100 for a replica, which no node has; the nearest is 10.0.0.2: 16 cpu",
        ),
        (Resources(gpu="L4", gpus=8), "8 L4 for a replica"),
        (Resources(cpu=17), "wants 17 cpu for a replica"),
        (Resources(memory="65GiB"), "wants 1 cpu, 65GiB for a replica, which no node has"),
    ],
    ids=str,
)
def test_a_replica_that_no_node_can_take(wanted: Resources, words: str) -> None:
    (fault,) = said(chain(wanted), SMALL, BIG)
    assert words in fault and "64.0 GiB, 4 L4" in fault
    assert re.match(r".*test_placement\.py:\d+ \(Model\) ", fault)
    assert fault.endswith("ask for less in resources=..., deploy with --profile laptop, or add such a node")


def test_needs_are_not_met_by_two_nodes_of_which_each_has_a_part() -> None:
    assert said(chain(Resources(cpu=8, memory="8GiB", gpus=1)), SMALL, NAMELESS)


def test_a_gpu_of_an_unknown_kind_is_a_gpu_but_no_l4() -> None:
    assert said(chain(Resources(gpus=1)), NAMELESS) == []
    (fault,) = said(chain(Resources(gpu="L4")), NAMELESS)
    assert "1 GPUs of a kind that it does not tell" in fault


def test_no_machine_at_all() -> None:
    found = said(chain(Resources()))
    assert len(found) == 2 and all("the cluster has none" in fault for fault in found)


def test_the_least_numbers_together() -> None:
    (fault,) = said(chain(Resources(cpu=2), Autoscaling(min=4, max=9)), SMALL)
    assert (
        "(Front) wants 8.5 cpu for the least number of replicas, all nodes together have 4 (Model 8, Front 0.5)"
        in fault
    )
    (fault,) = said(chain(Resources(cpu=0, memory="3GiB"), Autoscaling(min=3, max=3)), SMALL)
    assert "wants 9.0 GiB memory" in fault and "have 8.0 GiB" in fault
    assert said(chain(Resources(cpu=0, gpus=0.1), Autoscaling(min=10, max=10)), NAMELESS) == []


def test_a_limit_per_node_that_leaves_too_few_places() -> None:
    graph = chain(Resources(gpus=1), Autoscaling(min=3, max=3), Placement(per_node=1))
    (fault,) = said(graph, SMALL, BIG, NAMELESS)
    assert "wants 3 replicas at least and 1 on a node at most, but 2 nodes can take it; raise per_node" in fault


def test_what_fits_in_sum_and_not_in_pieces_is_a_doubt() -> None:
    graph = chain(Resources(cpu=3), Autoscaling(min=2, max=2))
    machines = tuple(Machine(str(n), str(n), cpu=2.5 + n, memory=GIB) for n in (1, 0, 0))
    assert faults(graph, Cluster(machines)) == []
    (doubt,) = doubts(graph, Cluster(machines))
    assert doubt.startswith("Model: 1 of its replicas may find no node with room")


def test_only_those_that_wish_for_it_prefer_nodes() -> None:
    cluster = Cluster((SMALL, BIG))
    assert preferred(chain(Resources()), cluster) == {}
    packed = preferred(chain(Resources(), placement=Placement(prefer="pack")), cluster)
    assert packed == {"Model": (BIG.id, SMALL.id)}
    assert preferred(chain(Resources(cpu=8), placement=Placement(prefer="pack")), cluster) == {"Model": (BIG.id,)}


def test_with_its_caller_both_prefer_the_same_nodes_and_only_those_that_can_take_both() -> None:
    graph = chain(Resources(gpu="L4"), placement=Placement(with_caller=True))
    assert preferred(graph, Cluster((SMALL, BIG))) == {"Model": (BIG.id,), "Front": (BIG.id,)}
    assert preferred(graph, Cluster((SMALL,))) == {}


def test_groups_grow_over_several_hops() -> None:
    @chainlet(placement=Placement(with_caller=True))
    class Deep:
        async def go(self, text: str) -> str:
            return text

    @chainlet(placement=Placement(with_caller=True))
    class Middle:
        deep: Deep = depends(Deep)

        async def go(self, text: str) -> str:
            return text

    @chainlet(entry=True)
    class Front:
        middle: Middle = depends(Middle)

        async def run(self, text: str) -> str:
            return text

    orders = preferred(build(Front), Cluster((SMALL, BIG)))
    assert orders == dict.fromkeys(("Deep", "Middle", "Front"), (BIG.id, SMALL.id))


def test_room_for_an_upgrade_and_cores_that_are_taken() -> None:
    graph = chain(Resources(cpu=1.5))
    assert has_room_twice(graph, Cluster((SMALL,))) and not has_room_twice(graph, Cluster((SMALL,), taken=0.1))
    assert not has_room_twice(chain(Resources(gpus=1)), Cluster((NAMELESS,)))
