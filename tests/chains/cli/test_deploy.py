"""What `chains deploy` decides before it asks Ray for anything. With a cluster: test_cluster.py."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chains.cli import deploy
from chains.dsl.chainlet import chainlet
from chains.dsl.graph import build
from chains.dsl.specs import Autoscaling, Resources
from chains.errors import GraphError, SettingError
from chains.policy.placement import Cluster, Machine

LAPTOP = Cluster((Machine("a", "here", cpu=4, memory=2**34),))


@chainlet(entry=True, resources=Resources(gpu="H100"), scaling=Autoscaling(min=1, max=4))
class Model:
    async def run(self, text: str) -> str:
        return text


def fitted(cluster: Cluster, wanted: str = "", **replicas: int) -> Any:
    return deploy._fitted(build(Model), replicas, cluster, wanted).nodes["Model"].spec


def test_a_laptop_gets_what_it_has_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert fitted(LAPTOP).resources == Resources(cpu=0.5)
    assert "profile laptop, for this cluster:\n  Model: cpu 1, 1 H100 -> cpu 0.5" in capsys.readouterr().out


def test_production_is_refused_where_it_can_never_be_placed() -> None:
    with pytest.raises(
        GraphError, match=r"1 fault in chain Model[\s\S]*1 cpu, 1 H100 for a replica, which no node has"
    ):
        fitted(LAPTOP, "production")


def test_a_cluster_that_adds_nodes_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert fitted(replace(LAPTOP, autoscales=True)).resources == Resources(gpu="H100")
    assert "waits for the cluster to add nodes: " in capsys.readouterr().out


def test_counts_that_are_fixed_count() -> None:
    cluster = Cluster((Machine("a", "here", cpu=4, memory=2**34, gpus=2, gpu="H100"),))
    assert fitted(cluster).scaling.max == 4
    assert fitted(cluster, Model=2).scaling == Autoscaling(min=2, max=2)
    with pytest.raises(GraphError, match="wants 3 GPUs for the least number of replicas, all nodes together have 2"):
        fitted(cluster, Model=3)


def test_no_advice_that_is_taken_already() -> None:
    with pytest.raises(GraphError, match=r"scaling=\.\.\., deploy with --profile laptop, or add nodes"):
        plain = build(Model).changed({"Model": {"resources": Resources()}})
        deploy._fitted(plain, {"Model": 9_999_999}, LAPTOP, "production")
    with pytest.raises(GraphError, match=r"scaling=\.\.\., or add nodes") as caught:
        fitted(LAPTOP, "laptop", Model=9_999_999)
    assert "--profile" not in str(caught.value)


@pytest.mark.parametrize("name", ["n" * 64, "", "-a", "a b", "a/b"])
def test_names(name: str) -> None:
    assert deploy._named("n" * 63) == "n" * 63
    with pytest.raises(SettingError, match=r"is no name; use letters, digits, - and _, at most 63"):
        deploy._named(name)


@pytest.mark.parametrize(("keys", "written"), [([], ""), (["a", "b"], "a b")])
def test_keys_are_those_that_were_given(keys: list[str], written: str) -> None:
    assert deploy._secrets(build(Model), keys) == {"CHAINS_KEYS": written}


def door(ours: bool, **given: Any) -> dict[str, Any]:
    defaults = {"host": "", "port": 8000, "key": [], "insecure": False, "origin": [], "grace": 30.0}
    defaults |= {"record": False, "redact": ""}
    return deploy._door(argparse.Namespace(**{**defaults, **given}), ours)


def test_the_gateway_is_open_to_others_only_with_a_key() -> None:
    assert door(True)["host"] == "127.0.0.1"
    assert "host" not in door(False, key=["k"])  # its node's address
    for given in ({"ours": False}, {"ours": True, "host": "0.0.0.0"}):
        with pytest.raises(SettingError, match="add --key KEY"):
            door(**given)
    assert "k" not in str(door(True, key=["k"]).values())


def test_recording_is_a_switch_of_the_gateway() -> None:
    assert not {"record", "redact"} & door(True).keys()
    kept = door(True, record=True, redact="a:b")
    assert (kept["record"], kept["redact"]) == (True, "a:b")


def test_what_is_sent_along_has_the_chain_in_it(tmp_path: Path) -> None:
    inside = tmp_path / "app" / "desk.py"
    assert deploy._within(f"{inside}:Desk", tmp_path) == "app/desk.py:Desk"
    assert deploy._within("desk.main:Desk", tmp_path) == "desk.main:Desk"
    with pytest.raises(SettingError, match=r"desk.py is not in .*; give --ship a folder that holds it"):
        deploy._within(f"{inside}:Desk", tmp_path / "other")
    with pytest.raises(SettingError, match="--ship /no/such is no folder"):
        deploy._shipped("/no/such")
