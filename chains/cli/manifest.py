"""A chain as a RayService of the KubeRay operator. Pure: a graph and a few names in, plain data out.

A worker group for each shape of GPU, one for all chainlets without, and one for the gateway, whose pods alone are
behind the Service: Ray's own proxy is not used. No secret stands in it: keys and the chainlets' secrets are taken from
a Secret of Kubernetes, the token of the wire is drawn on the cluster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from chains.dsl.nodes import Graph, Node
from chains.errors import SettingError

SPARE = 15.0
"""Seconds that a pod has beyond the grace of its replicas: Serve's slack, and Ray's own end."""
HELD = 0.2
"""Cores of a worker that Ray's own processes take."""
POD_CPU = 8
"""Small chainlets share pods of up to so many cores."""
STORE = 200 * 2**20
LABEL = "chains.dev/gateway"
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,40}[a-z0-9])?")

_TARGET = re.compile(r"([^:\n]+\.py|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)(:[A-Za-z_]\w*)?")
_RAYS = {6379: "head", 8080: "metrics", 8265: "dashboard", 10001: "client", 52365: "agent"}
"""Ports that Ray has in KubeRay's pods."""


@dataclass(frozen=True, slots=True)
class Export:
    """What a manifest is made of besides the chain. `target` is what the chain is called in the image, `secret` the
    Secret of Kubernetes; `selectors` are node labels by kind of GPU. `viewer` is the URL that gateways send spans to.
    """

    name: str
    image: str
    target: str
    secret: str = ""
    namespace: str = ""
    port: int = 8000
    gateways: int = 1
    grace: float = 30.0
    ray: str = "2.60.0"
    selectors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    viewer: str = ""

    def __post_init__(self) -> None:
        for what in ("name", "secret", "namespace"):
            value = getattr(self, what)
            if (value or what == "name") and not _NAME.fullmatch(value):
                raise SettingError(
                    f"{what} {value!r} is no name of Kubernetes", mend="use small letters, digits and -, e.g. reception"
                )
        if not re.fullmatch(r"[^\s'\"]+", self.image):
            raise SettingError(f"image {self.image!r} is no image", mend="write e.g. registry.example/reception:1")
        if not _TARGET.fullmatch(self.target):
            raise SettingError(
                f"target {self.target!r} is no chain",
                mend="write package.module:Class or file.py:Class, as in the image",
            )
        if not 0 < self.port < 65_536 or self.port in _RAYS:
            what = f"that of Ray's {_RAYS[self.port]}" if self.port in _RAYS else "none"
            raise SettingError(f"port {self.port} is {what}", mend="give the gateway another, e.g. 8000")
        if self.viewer and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", self.viewer):
            raise SettingError(f"viewer {self.viewer!r} is no URL", mend="write e.g. http://viewer:8001")
        if self.gateways < 1:
            raise SettingError(f"gateways is {self.gateways}", mend="give at least 1")
        if not 0.0 <= self.grace < math.inf:
            raise SettingError(f"grace is {self.grace:g}", mend="give seconds, e.g. 30")
        if not self.secret:
            object.__setattr__(self, "secret", f"{self.name}-secrets")


def text(graph: Graph, export: Export) -> str:
    """The manifest as YAML: the RayService and the Service that callers reach."""
    needed = [*_gateway_secrets(export), *_secrets(graph.nodes.values())]
    literals = " ".join(f"--from-literal={name}=..." for name in dict.fromkeys(needed))
    head = f"# kubectl create secret generic {export.secret} {literals}\n# kubectl apply -f THIS_FILE\n"
    documents = [ray_service(graph, export), service(export)]
    return head + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Text of several lines as a block that can be read."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def ray_service(graph: Graph, export: Export) -> dict[str, Any]:
    scales = any(node.spec.scaling.max > node.spec.scaling.min for node in graph.nodes.values())
    cluster = {
        "rayVersion": export.ray,
        "authOptions": {"mode": "token"},
        "enableInTreeAutoscaling": scales,
        **({"autoscalerOptions": {"version": "v2", "idleTimeoutSeconds": 300}} if scales else {}),
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
            "template": _pod("ray-head", export, {"cpu": "1", "memory": "4Gi"}, [], grace=False),
        },
        "workerGroupSpecs": [*_groups(graph, export), _gateway_group(graph, export)],
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": _metadata(export.name, export),
        "spec": {
            "serveConfigV2": yaml.safe_dump(serve_config(export), sort_keys=False),
            "excludeHeadPodFromServeSvc": True,
            "rayClusterDeletionDelaySeconds": math.ceil(export.grace) + 60,
            "rayClusterConfig": cluster,
        },
    }


def serve_config(export: Export) -> dict[str, Any]:
    """What Serve is to run: the builder of the Ray runtime with a plan."""
    door = {"host": "0.0.0.0", "port": export.port, "drain_seconds": max(export.grace, 0.1)}
    plan = {
        "chain": export.target,
        "gateway": "chains.serve:door",
        "gateways": export.gateways,
        "gateway_resources": {"gateway": 0.5},  # an old and a new one fit on a pod
        "door": door,
        "settings": {"grace": export.grace},
    }
    app = {
        "name": export.name,
        "route_prefix": None,
        "import_path": "chains.runtime.ray_serve:application",
        "args": plan,
    }
    return {"proxy_location": "Disabled", "applications": [app]}


def service(export: Export) -> dict[str, Any]:
    """What callers dial: the gateway's pods that can serve, of both clusters while one takes the other's place."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(export.name, export),
        "spec": {
            "selector": {LABEL: export.name},
            "ports": [{"name": "gateway", "port": export.port, "targetPort": export.port}],
        },
    }


def _metadata(name: str, export: Export) -> dict[str, Any]:
    return {"name": name, **({"namespace": export.namespace} if export.namespace else {})}


def _groups(graph: Graph, export: Export) -> list[dict[str, Any]]:
    shapes: dict[tuple[str, int], list[Node]] = {}
    for node in graph.nodes.values():
        wanted = node.spec.resources
        shapes.setdefault((wanted.gpu, math.ceil(wanted.gpus)), []).append(node)
    secrets = _secrets(graph.nodes.values())  # for all, since any may stand where there is room
    return [_group(gpu, gpus, nodes, export, secrets) for (gpu, gpus), nodes in shapes.items()]


def _group(gpu: str, gpus: int, nodes: Sequence[Node], export: Export, secrets: Sequence[str]) -> dict[str, Any]:
    """Pods that hold whole replicas of these chainlets; as many as their least and most numbers need."""
    per_pod, least, most = _packed(nodes, gpus)
    limits = {"cpu": f"{math.ceil(per_pod[0] + HELD)}", "memory": f"{math.ceil(per_pod[1] / 2**30) + 1}Gi"}
    if gpus:
        limits["nvidia.com/gpu"] = str(gpus)
    name = re.sub(r"[^a-z0-9]+", "-", f"{gpu or 'gpu'}-{gpus}".lower()) if gpus else "cpu"
    pod = _pod("ray-worker", export, limits, secrets, selector=export.selectors.get(gpu, {}))
    return {
        "groupName": name,
        "replicas": least,
        "minReplicas": least,
        "maxReplicas": most,
        "rayStartParams": {"object-store-memory": str(STORE)},
        "template": pod,
    }


def _packed(nodes: Sequence[Node], gpus: int) -> tuple[tuple[float, float], int, int]:
    """Cores and bytes of a pod, and how many pods there are at least and at most."""
    wants = [(node.spec.resources, node.spec.scaling) for node in nodes]
    if gpus:  # a pod has the GPUs of one replica, or of all that share one GPU
        together = [math.floor(gpus / one.gpus + 1e-6) for one, _ in wants]
        cpu = max(count * one.cpu for count, (one, _) in zip(together, wants, strict=True))
        memory = max(count * (one.memory_bytes or 2**31) for count, (one, _) in zip(together, wants, strict=True))
        pairs = list(zip(together, wants, strict=True))
        least = sum(math.ceil(scaling.min / count) for count, (_, scaling) in pairs)
        most = sum(math.ceil(scaling.max / count) for count, (_, scaling) in pairs)
        return (cpu, memory), least, most
    all_cpu, all_memory = (sum(scaling.min * one for one, scaling in column) for column in _columns(wants))
    cpu = max([min(all_cpu, POD_CPU), *(one.cpu for one, _ in wants)])
    share = max(1, math.ceil(all_cpu / max(cpu, 0.01) - 1e-6))
    memory = max([all_memory / share, *(float(one.memory_bytes) for one, _ in wants)])
    most_cpu = sum(scaling.max * one.cpu for one, scaling in wants)
    return (cpu, memory), share, max(share, math.ceil(most_cpu / max(cpu, 0.01) - 1e-6))


def _columns(wants: Sequence[tuple[Any, Any]]) -> list[list[tuple[float, Any]]]:
    cpus = [(one.cpu, scaling) for one, scaling in wants]
    return [cpus, [(float(one.memory_bytes or 2**29), scaling) for one, scaling in wants]]


def _gateway_group(graph: Graph, export: Export) -> dict[str, Any]:
    secrets = [*_gateway_secrets(export), *_secrets(graph.nodes.values())]
    pod = _pod("ray-worker", export, {"cpu": "1", "memory": "2Gi"}, secrets, gateway=True)
    return {
        "groupName": "gateway",
        "replicas": export.gateways,
        "minReplicas": export.gateways,
        "maxReplicas": 2 * export.gateways,
        "rayStartParams": {"resources": "'{\"gateway\": 1}'", "object-store-memory": str(STORE)},
        "template": pod,
    }


def _pod(
    name: str,
    export: Export,
    limits: Mapping[str, str],
    secrets: Sequence[str],
    *,
    grace: bool = True,
    gateway: bool = False,
    selector: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": name,
        "image": export.image,
        "resources": {"limits": dict(limits), "requests": dict(limits)},
    }
    if secrets:
        container["env"] = [
            {"name": one, "valueFrom": {"secretKeyRef": {"name": export.secret, "key": one}}} for one in secrets
        ]
    if grace:  # of a worker: KubeRay's own probe asks Serve's proxy, which does not run
        container |= _probes(export) if gateway else {"readinessProbe": _raylet(3), "livenessProbe": _raylet(24)}
    if gateway and export.viewer:
        container.setdefault("env", []).append({"name": "CHAINS_VIEWER", "value": export.viewer})
    if gateway:
        container["ports"] = [{"name": "gateway", "containerPort": export.port}]
    spec: dict[str, Any] = {"containers": [container]}
    if selector:
        spec["nodeSelector"] = dict(selector)
    if grace:
        spec["terminationGracePeriodSeconds"] = math.ceil(export.grace + SPARE)
    labels = {"metadata": {"labels": {LABEL: export.name}}} if gateway else {}
    return {**labels, "spec": spec}


def _raylet(failures: int) -> dict[str, Any]:
    path = {"path": "/api/local_raylet_healthz", "port": 52365}
    return {"httpGet": path, "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": failures}


def _probes(export: Export) -> dict[str, Any]:
    """Callers come as long as the chain can serve; a pod is killed only when its Ray is dead."""
    ready = {"httpGet": {"path": "/healthz", "port": export.port}, "periodSeconds": 2, "failureThreshold": 2}
    return {"readinessProbe": ready, "livenessProbe": _raylet(24)}


def _gateway_secrets(export: Export) -> list[str]:
    return ["CHAINS_KEYS", *(["CHAINS_VIEWER_KEY"] if export.viewer else [])]


def _secrets(nodes: Any) -> list[str]:
    return list(dict.fromkeys(name for node in nodes for name in node.spec.environment.secrets))
