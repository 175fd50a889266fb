"""Connecting to a cluster: whatever is wrong is said with what to do about it."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import worker as ray_worker
from ray._private.state import state
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # compiled
from ray.exceptions import AuthenticationError, RayError

from chains.errors import SettingError, Unauthenticated, Unavailable
from chains.policy.placement import Cluster, Machine
from chains.runtime import local_ray

OLDEST, NEWEST = (2, 58), (2, 61)
_KIND = "accelerator_type:"


def connect(address: str, *, folder: str = "") -> None:
    """Connect this process. `folder` is sent to the nodes: replicas find the chain's files there.

    Raises Unavailable when nobody answers, Unauthenticated without the cluster's token, SettingError for another
    version of Ray or Python.
    """
    check_version(ray.__version__)
    ours = local_ray.running()
    if ours is not None and ours.address == address:
        _use_token(ours.token)
    if not local_ray.answers(address):
        raise Unavailable(
            f"no Ray cluster answers at {address}",
            mend="check --address (HOST:PORT on one of its nodes, ray://HOST:10001 elsewhere), or leave it out to use "
            "this machine",
        )
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    if address.startswith("ray://"):  # it writes down what was cancelled because this process was done
        for name in ("concurrent.futures", "ray.util.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    _no_warnings()
    options: dict[str, Any] = {"runtime_env": {"working_dir": folder}} if folder else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # ConnectionError, RuntimeError, ValueError, ...: Ray raises what it finds
        raise _told(address, error) from error


def _no_warnings() -> None:
    """Of the cluster's nodes, e.g. of how many processes they have: Ray prints them also without `log_to_driver`."""
    ray_worker._worker_logs_enabled = False


def _use_token(path: str) -> None:
    """Ray has read its environment when it was imported."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": path}
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def private() -> Iterator[Cluster]:
    """A Ray of this machine that lives as long as the block; what it wrote is removed."""
    check_version(ray.__version__)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    _no_warnings()
    with tempfile.TemporaryDirectory(prefix="chains-", ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=local_ray.OBJECT_STORE,
            _temp_dir=folder,
        )
        try:
            yield cluster()
        finally:
            ray.shutdown()


def check_version(version: str) -> None:
    """Raises SettingError for a Ray that this was not written for."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if not OLDEST <= numbers < NEWEST:
        raise SettingError(
            f"Ray {version} is installed, and Ray {_dotted(OLDEST)} or newer, below {_dotted(NEWEST)}, is needed",
            mend='run: pip install "chains-serve[ray]"',
        )


def _dotted(numbers: tuple[int, int]) -> str:
    return f"{numbers[0]}.{numbers[1]}"


def _told(address: str, error: Exception) -> Exception:
    text = str(error)
    if isinstance(error, AuthenticationError) or "token" in text.lower():
        return Unauthenticated(
            f"the cluster at {address} wants a token",
            mend="set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to a file that holds it",
        )
    if "ersion mismatch" in text or "ray.__version__" in text:
        lines = " ".join(text.split())
        return SettingError(
            f"the cluster at {address} has other versions than this machine: {lines[:300]}",
            mend="install its versions of Ray and Python here, or run this in its image",
        )
    if "ray://" not in address and ("node" in text.lower() and "ip" in text.lower()):
        return Unavailable(
            f"this machine is no node of the cluster at {address}",
            mend="use --address ray://HOST:10001, or run this on one of its nodes",
        )
    first = text.splitlines()[0] if text else type(error).__name__
    return Unavailable(
        f"the cluster at {address} does not let this process in: {first}",
        mend="is it a Ray cluster, is it up (ray status), and does it want a token (RAY_AUTH_MODE=token)?",
    )


def cluster() -> Cluster:
    """The machines of the cluster that is connected to."""
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
    except RayError as error:
        raise Unavailable(
            f"the cluster does not tell its nodes: {error}", mend="look at it with `ray status`"
        ) from error
    return Cluster(tuple(map(_machine, nodes)), _autoscales())


def _machine(node: dict[str, Any]) -> Machine:
    has = node["Resources"]
    kind = next((name.removeprefix(_KIND) for name in has if name.startswith(_KIND)), "")
    return Machine(
        id=node["NodeID"],
        name=node["NodeManagerAddress"],
        cpu=has.get("CPU", 0.0),
        memory=int(has.get("memory", 0)),
        gpus=has.get("GPU", 0.0),
        gpu=kind,
    )


def _autoscales() -> bool:
    """Whether the cluster has a configuration by which it adds nodes."""
    try:
        return bool(state.get_max_resources_from_cluster_config())
    except Exception:  # private to Ray, and not there through its client: then nothing is known
        return False
