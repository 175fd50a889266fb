"""Other numbers of replicas for chainlets that run: those that are there stay, with all that goes on in them.

Serve has no call for it that keeps autoscaling. A deployment is therefore handed to it once more as it is, code and
version and all, with other numbers; Serve sees that nothing else has changed and restarts nobody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.serve._private.api import _get_global_client
from ray.serve._private.common import DeploymentID
from ray.serve._private.deploy_utils import get_deploy_args
from ray.serve.config import AutoscalingConfig
from ray.serve.generated.serve_pb2 import ApplicationArgs, DeploymentArgs

from chains.dsl.specs import closest
from chains.errors import NotFound, SettingError
from chains.runtime.ray_serve.operate import application

_COUNT = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class Count:
    """Between `least` and `most` replicas."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least}" if self.least == self.most else f"{self.least}-{self.most}"

    @classmethod
    def read(cls, text: str) -> Count:
        """From "3" or "1-8". Raises SettingError."""
        found = _COUNT.fullmatch(text)
        if not found:
            raise SettingError(f"{text!r} is no number of replicas", mend="write e.g. 3, or 1-8 for between those")
        least, most = int(found[1]), int(found[2] or found[1])
        if most < 1 or least > most:
            raise SettingError(
                f"{text} replicas make no sense", mend="write at least 1, or from less to more, e.g. 0-4"
            )
        return cls(least, most)


def scale(app: str, counts: Mapping[str, Count]) -> None:
    """Raises NotFound for an application or chainlet that is not there, SettingError for a chainlet that does not scale
    and is given a range."""
    deployments = application(app)["deployments"]
    for name in counts:
        if name not in deployments:
            near = closest(name, deployments)
            mend = f"did you mean {near}?" if near else f"there are {', '.join(deployments)}"
            raise NotFound(f"{app} has no chainlet {name}", mend=mend)
    client: Any = _get_global_client()
    infos = ray.get(client._controller.list_deployments_internal.remote())
    args = []
    for name in deployments:
        info, route = infos[DeploymentID(name, app)]
        args.append(_args(name, info, route, counts.get(name)))
    whole = ApplicationArgs(external_scaler_enabled=False).SerializeToString()
    ray.get(client._controller.deploy_applications.remote({app: args}, {app: whole}))


def _args(name: str, info: Any, route: str | None, count: Count | None) -> bytes:
    """A deployment as Serve is given it."""
    config = info.deployment_config
    if count is not None:
        _count(name, config, count)
    plain = get_deploy_args(
        name,
        replica_config=info.replica_config,
        ingress=info.ingress,
        deployment_config=config,
        version=info.version,
        route_prefix=route,
    )
    made: bytes = DeploymentArgs(
        deployment_name=name,
        deployment_config=plain["deployment_config_proto_bytes"],
        replica_config=plain["replica_config_proto_bytes"],
        deployer_job_id=info.deployer_job_id,
        ingress=info.ingress,
        **({"route_prefix": route} if route else {}),
    ).SerializeToString()
    return made


def _count(name: str, config: Any, count: Count) -> None:
    scaling: AutoscalingConfig | None = config.autoscaling_config
    if scaling is None and count.least != count.most:
        raise SettingError(
            f"{name} has a fixed number of replicas and does not scale by itself",
            mend=f"give one number, or write scaling=Autoscaling(min={count.least}, max={count.most}) and deploy again",
        )
    if scaling is None:
        config.num_replicas = count.most
    else:
        initial = None
        changed = {"min_replicas": count.least, "max_replicas": count.most, "initial_replicas": initial}
        config.autoscaling_config = scaling.model_copy(update=changed)
