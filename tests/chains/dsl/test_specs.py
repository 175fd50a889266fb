"""Settings check themselves, and say what to write."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from chains.dsl.specs import Autoscaling, Batching, CallOptions, Environment, Limits, Placement, Resources
from chains.errors import SettingError


def test_defaults() -> None:
    assert Resources() == Resources(cpu=1.0, memory="", gpu="", gpus=0.0)
    assert Autoscaling() == Autoscaling(1, 1, 8.0, 100.0, 2.0, 30.0, 0)
    assert Limits() == Limits(running=32, queued=64)
    assert CallOptions() == CallOptions(timeout=60.0, first=None, idle=None, retries=1, window=262_144)
    assert Placement() == Placement(prefer="spread", per_node=0, with_caller=False)
    assert Environment() == Environment(pip=[], env={}, secrets=())
    assert Batching() == Batching(size=8, wait_ms=5.0)


def test_a_named_gpu_is_one_unless_said_otherwise() -> None:
    assert Resources(gpu="L4").gpus == 1.0
    assert Resources(gpu="L4", gpus=0.25).gpus == 0.25


@pytest.mark.parametrize(
    ("memory", "size"),
    [("", 0), ("2GiB", 2 * 2**30), ("1.5 GB", 1_500_000_000), ("512MiB", 512 * 2**20), ("10KB", 10_000)],
)
def test_memory_in_bytes(memory: str, size: int) -> None:
    assert Resources(memory=memory).memory_bytes == size


@pytest.mark.parametrize(
    ("spec", "settings", "words"),
    [
        (Resources, {"cpu": -1}, "Resources(cpu=-1) is not a number of at least 0; write cores, e.g. cpu=0.5"),
        (Resources, {"cpu": True}, "Resources(cpu=True) is not a number"),
        (Resources, {"cpu": math.nan}, "Resources(cpu=nan) is not a number"),
        (Resources, {"gpus": math.inf}, "Resources(gpus=inf) is not a number"),
        (Resources, {"cpu": "2"}, "Resources(cpu='2') is not a number"),
        (Resources, {"memory": 2}, 'Resources(memory=2) is not text; write e.g. memory="2GiB"'),
        (Resources, {"memory": "2 gigs"}, "is no amount of memory; write a number and a unit"),
        (Resources, {"gpu": 4}, 'Resources(gpu=4) is not text; write e.g. gpu="L4" for a kind, gpus=4 for how many'),
        (Autoscaling, {"min": -1}, "Autoscaling(min=-1) is not a whole number of at least 0"),
        (Autoscaling, {"max": 0}, "Autoscaling(max=0) is not a whole number of at least 1"),
        (Autoscaling, {"min": 3, "max": 2}, "has its least above its most; write Autoscaling(min=3, max=3) or more"),
        (Autoscaling, {"min": 5}, "has its least above its most"),
        (Autoscaling, {"target_streams": 0}, "is not a number above 0"),
        (Autoscaling, {"target_wait_ms": -1.0}, "is not a number above 0"),
        (Autoscaling, {"up_delay": "2s"}, "write seconds, e.g. up_delay=2"),
        (Autoscaling, {"spares": 1.5}, "is not a whole number"),
        (Limits, {"running": 0}, "Limits(running=0) is not a whole number of at least 1; write e.g. running=1"),
        (Limits, {"queued": -1}, "Limits(queued=-1)"),
        (Limits, {"queued": None}, "Limits(queued=None)"),
        (
            CallOptions,
            {"timeout": 0},
            "CallOptions(timeout=0) is not a number above 0; write seconds, e.g. timeout=2.0",
        ),
        (CallOptions, {"idle": "2"}, "CallOptions(idle='2')"),
        (CallOptions, {"retries": -1}, "CallOptions(retries=-1)"),
        (CallOptions, {"window": 0}, "CallOptions(window=0)"),
        (CallOptions, {"hedge": 5.0, "timeout": 1.0}, "asks a second replica when the time is up; write hedge=0.25"),
        (Resources, {"gpus": 1.5}, "more than one GPU and a part of another; write a part of one, e.g. gpus=0.5"),
        (Placement, {"prefer": "near"}, 'Placement(prefer=\'near\') is not "spread" or "pack"; write prefer='),
        (Placement, {"per_node": -1}, "Placement(per_node=-1) is not a whole number of at least 0"),
        (Placement, {"per_node": 101}, "Placement(per_node=101) is not at most 100"),
        (Placement, {"with_caller": "yes"}, "is not True or False; write with_caller=True"),
        (Environment, {"pip": "torch"}, "Environment(pip='torch') is not a list of texts; write pip=[\"torch"),
        (Environment, {"pip": [1]}, "is not a list of texts"),
        (Environment, {"secrets": "HF_TOKEN"}, 'write secrets=["HF_TOKEN"]'),
        (Environment, {"env": {"A": 1}}, "is not a dict of texts"),
        (Environment, {"env": {"A B": "1"}}, "names 'A B', which is no name of a variable"),
        (Environment, {"env": {"A": "1"}, "secrets": ["A"]}, "has A in env and in secrets; leave it in one of them"),
        (Batching, {"size": 0}, "Batching(size=0)"),
        (Batching, {"wait_ms": -1}, "Batching(wait_ms=-1)"),
    ],
    ids=str,
)
def test_nonsense_is_refused_with_the_mend(spec: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError) as caught:
        spec(**settings)
    assert words in str(caught.value)
    assert caught.value.mend


@pytest.mark.parametrize("spec", [Resources, Autoscaling, Limits, CallOptions, Batching])
def test_they_are_values(spec: Any) -> None:
    assert spec() == spec()
    assert hash(spec()) == hash(spec())
    with pytest.raises(AttributeError):
        setattr(spec(), spec.__match_args__[0], 1)
    name, *others = spec.__match_args__
    with pytest.raises(
        SettingError, match=f"^{spec.__name__} has no setting 'xyz'; known are {', '.join([name, *others])}$"
    ):
        spec(xyz=1)
    with pytest.raises(SettingError, match=f"write {name}=..."):
        spec(**{name + "x": 1})
    with pytest.raises(SettingError, match="has no setting 'xyz'"):
        replace(spec(), xyz=1)
