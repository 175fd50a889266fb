"""Profiles map what a chain asks for to what a made-up cluster has; what comes out always fits."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build
from chains.dsl.nodes import Graph
from chains.dsl.specs import Autoscaling, Resources
from chains.policy.placement import Cluster, Machine, faults, has_room_twice
from chains.policy.profiles import mapped, profile_for

GIB = 2**30
LAPTOP = Cluster((Machine("a", "here", cpu=2, memory=8 * GIB),))
GPU = Cluster((Machine("a", "here", cpu=8, memory=32 * GIB, gpus=1, gpu="L4"),))


def chain(model: Resources, most: int = 1) -> Graph:
    @chainlet(resources=model, scaling=Autoscaling(min=1, max=most))
    class Model:
        async def answer(self, text: str) -> str:
            return text

    @chainlet(entry=True)
    class Front:
        model: Model = depends(Model)

        async def run(self, text: str) -> str:
            return await self.model.answer(text)

    return build(Front)


def test_production_is_literal() -> None:
    graph = chain(Resources(gpu="H100", gpus=8))
    assert mapped(graph, LAPTOP, "production") == (graph, [])


def test_laptop_takes_gpus_away_and_shares_out_the_rest() -> None:
    graph, told = mapped(chain(Resources(cpu=3, memory="16GiB", gpu="L4")), LAPTOP, "laptop")
    assert graph.nodes["Model"].spec.resources == Resources(cpu=0.75, memory="4096MiB")
    assert graph.nodes["Front"].spec.resources == Resources(cpu=0.25)
    assert told == ["Model: cpu 3, 16GiB, 1 L4 -> cpu 0.75, 4096MiB", "Front: cpu 1 -> cpu 0.25"]
    assert faults(graph, LAPTOP) == [] and has_room_twice(graph, LAPTOP)


def test_laptop_leaves_what_fits() -> None:
    graph = chain(Resources(cpu=0, memory="1GiB"))
    assert mapped(graph, LAPTOP, "laptop") == (graph, [])


def test_gpus_that_are_there_are_shared() -> None:
    graph, _ = mapped(chain(Resources(gpu="L4"), most=4), GPU, "laptop")
    assert graph.nodes["Model"].spec.resources.gpus == 0.12
    assert graph.nodes["Model"].spec.resources.gpu == "L4"
    other, _ = mapped(chain(Resources(gpu="H100", gpus=2)), GPU, "laptop")
    assert other.nodes["Model"].spec.resources == Resources(gpus=0.5)


def test_which_profile_when_none_is_named() -> None:
    assert profile_for(chain(Resources(gpu="L4")), LAPTOP) == "laptop"
    assert profile_for(chain(Resources(cpu=8)), LAPTOP) == "laptop"
    assert profile_for(chain(Resources()), LAPTOP) == "production"
    assert profile_for(chain(Resources(gpu="H100")), GPU) == "production"
    assert profile_for(chain(Resources(gpu="L4")), Cluster(LAPTOP.machines, autoscales=True)) == "production"


@settings(deadline=None, max_examples=60)
@given(
    cpu=st.floats(0, 64),
    memory=st.integers(0, 512),
    gpus=st.sampled_from([0, 0.3, 1, 2, 8]),
    most=st.integers(1, 12),
    cores=st.lists(st.integers(1, 16), min_size=1, max_size=4),
    cards=st.integers(0, 2),
)
def test_what_laptop_maps_fits(cpu: float, memory: int, gpus: float, most: int, cores: list[int], cards: int) -> None:
    """With every chainlet at its least, as long as there is a hundredth for each."""
    cluster = Cluster(
        tuple(Machine(str(n), str(n), cpu=have, memory=4 * GIB, gpus=cards) for n, have in enumerate(cores))
    )
    wanted = Resources(cpu=cpu, memory=f"{memory}GiB" if memory else "", gpus=gpus)
    graph, _ = mapped(chain(wanted, most), cluster, "laptop")
    assert faults(graph, cluster) == []
