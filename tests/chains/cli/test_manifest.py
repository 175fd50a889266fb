"""The manifest is one that KubeRay and Serve accept, and says of the chain what it asks for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from chains.cli.manifest import LABEL, Export, ray_service, serve_config, service, text
from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build
from chains.dsl.nodes import Graph
from chains.dsl.specs import Autoscaling, Environment, Resources
from chains.errors import SettingError

SCHEMA = json.loads((Path(__file__).parent / "rayservice.schema.json").read_text())
EXPORT = Export(name="reception", image="example/reception:1", target="reception.call:Front", grace=20.0)


@chainlet(resources=Resources(cpu=2, gpu="L4", memory="6GiB"), scaling=Autoscaling(min=2, max=8))
class Brain:
    async def answer(self, text: str) -> str:
        return text


@chainlet(resources=Resources(cpu=0.5, gpu="L4", gpus=0.25), scaling=Autoscaling(min=6, max=6))
class Ears:
    async def hear(self, sound: bytes) -> str:
        return ""


@chainlet(resources=Resources(cpu=0.5), environment=Environment(secrets=["CRM_TOKEN"]))
class Records:
    async def find(self, text: str) -> str:
        return text


@chainlet(entry=True)
class Front:
    brain: Brain = depends(Brain)
    ears: Ears = depends(Ears)
    records: Records = depends(Records)

    async def run(self, text: str) -> str:
        return text


def faults_of(manifest: dict[str, Any]) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema")
    return [error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(manifest)]


def groups(graph: Graph, export: Export = EXPORT) -> dict[str, Any]:
    cluster = ray_service(graph, export)["spec"]["rayClusterConfig"]
    return {group["groupName"]: group for group in cluster["workerGroupSpecs"]}


def container(group: dict[str, Any]) -> dict[str, Any]:
    (one,) = group["template"]["spec"]["containers"]
    found: dict[str, Any] = one
    return found


def test_kuberay_accepts_it() -> None:
    assert faults_of(ray_service(build(Front), EXPORT)) == []
    assert faults_of(ray_service(build(Records), Export("r", "i", "m:R", selectors={"L4": {"a": "b"}}))) == []


def test_what_kuberay_does_not_know_is_found() -> None:
    manifest = ray_service(build(Front), EXPORT)
    manifest["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["graceSeconds"] = 3
    manifest["spec"]["rayClusterConfig"]["headGroupSpec"]["template"] = "pod"
    assert len(faults_of(manifest)) == 2


def test_serve_and_the_ray_runtime_accept_their_part() -> None:
    schema = pytest.importorskip("ray.serve.schema")
    from chains.runtime.ray_serve import Plan

    config = yaml.safe_load(ray_service(build(Front), EXPORT)["spec"]["serveConfigV2"])
    assert config == serve_config(EXPORT)
    accepted = schema.ServeDeploySchema.model_validate(config)
    (app,) = accepted.applications
    assert (app.name, app.import_path) == ("reception", "chains.runtime.ray_serve:application")
    plan = Plan.read(app.args)
    assert (plan.chain, plan.settings.grace, plan.door["port"]) == ("reception.call:Front", 20.0, 8000)


def test_a_group_for_each_shape_of_gpu_with_its_limits() -> None:
    found = groups(build(Front))
    assert list(found) == ["l4-1", "cpu", "gateway"]
    gpu = container(found["l4-1"])["resources"]
    assert gpu["limits"] == gpu["requests"] == {"cpu": "3", "memory": "9Gi", "nvidia.com/gpu": "1"}
    assert (found["l4-1"]["minReplicas"], found["l4-1"]["maxReplicas"]) == (4, 10)  # 2-8 of Brain, 2 with 4 Ears each
    assert "nvidia.com/gpu" not in container(found["cpu"])["resources"]["limits"]


def test_a_pod_has_longer_to_end_than_its_replicas_have() -> None:
    pytest.importorskip("ray")
    from chains.runtime.ray_serve.application import deployment_options
    from chains.runtime.ray_serve.plan import Plan

    graph = build(Front)
    plan = Plan.read(serve_config(EXPORT)["applications"][0]["args"])
    replica = deployment_options(graph.nodes["Brain"], plan)["graceful_shutdown_timeout_s"]
    for group in groups(graph).values():
        assert group["template"]["spec"]["terminationGracePeriodSeconds"] > replica
    assert ray_service(graph, EXPORT)["spec"]["rayClusterDeletionDelaySeconds"] > replica


def test_secrets_are_named_and_never_written() -> None:
    env = {one["name"]: one["valueFrom"] for one in container(groups(build(Front))["gateway"])["env"]}
    assert env["CHAINS_KEYS"] == {"secretKeyRef": {"name": "reception-secrets", "key": "CHAINS_KEYS"}}
    assert [one["name"] for one in container(groups(build(Front))["cpu"])["env"]] == ["CRM_TOKEN"]
    assert "secret generic reception-secrets --from-literal=CHAINS_KEYS=... --from-literal=CRM_TOKEN=..." in text(
        build(Front), EXPORT
    )


def test_gateways_send_spans_to_the_viewer_that_is_named() -> None:
    shown = replace(EXPORT, viewer="http://viewer:8001")
    env = {one["name"]: one for one in container(groups(build(Front), shown)["gateway"])["env"]}
    assert env["CHAINS_VIEWER"] == {"name": "CHAINS_VIEWER", "value": "http://viewer:8001"}
    assert env["CHAINS_VIEWER_KEY"]["valueFrom"]["secretKeyRef"]["key"] == "CHAINS_VIEWER_KEY"
    assert not any("VIEWER" in one["name"] for one in container(groups(build(Front), shown)["cpu"])["env"])
    assert "VIEWER" not in text(build(Front), EXPORT)
    assert faults_of(ray_service(build(Front), shown)) == []


def test_callers_reach_the_gateway_s_pods_once_they_are_ready() -> None:
    gateway = groups(build(Front))["gateway"]
    assert service(EXPORT)["spec"]["selector"] == gateway["template"]["metadata"]["labels"] == {LABEL: "reception"}
    assert container(gateway)["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": 8000}
    assert LABEL not in groups(build(Front))["cpu"]["template"].get("metadata", {}).get("labels", {})


def test_the_text_is_what_was_made_and_can_be_read() -> None:
    written = text(build(Front), EXPORT)
    assert list(yaml.safe_load_all(written)) == [ray_service(build(Front), EXPORT), service(EXPORT)]
    assert "serveConfigV2: |\n" in written


@pytest.mark.parametrize("changes", [{"name": "Reception"}, {"name": ""}, {"name": "a", "secret": "A b"}])
def test_names_that_kubernetes_does_not_take(changes: dict[str, str]) -> None:
    with pytest.raises(SettingError, match="no name of Kubernetes; use small letters"):
        Export(**{"image": "i", "target": "m:C", **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"image": "a b"},
        {"target": "m:C:D"},
        {"target": ""},
        {"port": 0},
        {"port": 52365},
        {"gateways": 0},
        {"grace": float("nan")},
        {"grace": -1.0},
        {"viewer": "viewer:8001"},
        {"viewer": "http://"},
    ],
)
def test_values_that_make_no_sense(changes: dict[str, Any]) -> None:
    good = {"name": "a", "image": "i@sha256:0f", "target": "/srv/my app/call.py:Call"}
    assert Export(**{**good, "grace": 0.0}).target
    with pytest.raises(SettingError):
        Export(**{**good, **changes})
