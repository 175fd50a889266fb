"""What runs on a cluster and how it fares. Ray is connected to already."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve._private.api import _get_global_client
from ray.serve.exceptions import RayServeException

from chains.dsl.specs import closest
from chains.errors import NotFound, Unavailable
from chains.runtime.ray_serve.notes import Step, read_steps
from chains.runtime.ray_serve.plan import GATEWAY

ASK_S = 3.0
"""Seconds that replicas have to tell their load."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica. `state` is where it is on its way to being ready, or "dead"; `why` what is wrong with it.

    `machine` is the address of its node. The load is None when it did not say it in time.
    """

    name: str
    state: str
    machine: str = ""
    address: str = ""
    pid: int = 0
    why: str = ""
    load: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class ChainletStatus:
    """`wanted` replicas now, between `least` and `most`; `why` is what keeps it from having them."""

    name: str
    wanted: int
    least: int
    most: int
    ok: bool
    why: str
    replicas: tuple[ReplicaStatus, ...]

    def count(self, *states: str) -> int:
        return sum(replica.state in states for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class AppStatus:
    """One chain. `state` is Serve's word in small letters; `urls` are where callers reach it."""

    name: str
    state: str
    ok: bool
    why: str
    urls: tuple[str, ...]
    chainlets: tuple[ChainletStatus, ...]

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        for chainlet, one in zip(plain["chainlets"], self.chainlets, strict=True):
            chainlet |= {"ready": one.count("ready", "draining"), "failed": one.count("failed", "dead")}
        return plain


def applications() -> dict[str, Any]:
    """Serve's details of each application by name; none where Serve does not run."""
    client = _get_global_client(raise_if_no_controller_running=False)
    if client is None:
        return {}
    try:
        found: dict[str, Any] = client.get_serve_details()["applications"]
        return found
    except (RayError, RayServeException) as error:
        raise Unavailable(
            f"the controller of Ray Serve does not answer: {reason(str(error))}",
            mend="it is restarted by itself: try again; what runs goes on meanwhile",
        ) from error


def application(app: str) -> dict[str, Any]:
    """Those of one. Raises NotFound that names what was meant."""
    every = applications()
    if app not in every:
        near = closest(app, every)
        known = f"there are {', '.join(sorted(every))}" if every else "nothing is deployed on this cluster"
        raise NotFound(f"no chain is deployed as {app}", mend=f"did you mean {near}?" if near else known)
    found: dict[str, Any] = every[app]
    return found


def status(app: str = "") -> list[AppStatus]:
    """All chains that are deployed, or one. Raises NotFound, Unavailable."""
    found = {app: application(app)} if app else applications()
    with ThreadPoolExecutor(16) as pool:
        return [_app(name, details, pool) for name, details in sorted(found.items())]


def _app(name: str, details: Mapping[str, Any], pool: ThreadPoolExecutor) -> AppStatus:
    steps = {step.replica: step for step in read_steps(name)}
    deployments = details["deployments"]
    reports = dict(zip(deployments, pool.map(lambda one: _reports(name, one), deployments), strict=True))
    chainlets = tuple(
        _chainlet(one, deployment, [step for step in steps.values() if step.node == one], reports[one])
        for one, deployment in deployments.items()
    )
    gateways = [one.replicas for one in chainlets if one.name == GATEWAY]
    urls = dict.fromkeys(replica.address for replicas in gateways for replica in replicas if replica.address)
    state = str(details["status"]).rpartition(".")[2].lower()
    failing = [named(one.name, one.why) for one in chainlets if not one.ok and one.why]
    why = "; ".join(failing) or reason(details.get("message") or "")
    good = state == "running" and all(one.ok for one in chainlets)
    return AppStatus(name, state, good, "" if good else why, tuple(urls), chainlets)


def _reports(app: str, deployment: str) -> dict[str, Mapping[str, Any]]:
    """What each replica says of itself, by name."""
    try:
        handle = serve.get_deployment_handle(deployment, app)
        answers = handle.broadcast("report").results(timeout_s=ASK_S, return_exceptions=True)
    except Exception:  # none is there, or one is too busy to answer: the status says so by having no load
        return {}
    return {one["name"]: one for one in answers if isinstance(one, dict)}


def _chainlet(
    name: str, details: Mapping[str, Any], steps: list[Step], reports: Mapping[str, Mapping[str, Any]]
) -> ChainletStatus:
    known = {step.replica: step for step in steps}
    live = [_replica(name, one, known, reports) for one in details["replicas"]]
    dead = [_replica(name, one, known, {}, dead=True) for one in details.get("recent_dead_replicas") or ()]
    listed = {one.name for one in (*live, *dead)}
    config = details["deployment_config"]
    scaling, wanted = config.get("autoscaling_config") or {}, int(details["target_num_replicas"])
    state = str(details["status"]).rpartition(".")[2].lower()
    ok = state in ("healthy", "upscaling", "downscaling")
    failed = [  # of what is well again, why it was not is no matter any more
        ReplicaStatus(step.replica, "failed", why=_because(step))
        for step in steps
        if step.stage == "failed" and step.replica not in listed and not ok
    ]
    told = next((one.why for one in (*live, *failed, *dead) if one.why), reason(details.get("message") or state))
    why = "" if ok else told
    least, most = scaling.get("min_replicas", wanted), scaling.get("max_replicas", wanted)
    shown = (*live, *failed, *(one for one in dead if one.why))
    return ChainletStatus(name, wanted, least, most, ok, why, shown)


_STATES = {"starting": "starting", "updating": "starting", "recovering": "starting", "running": "ready"}


def _replica(
    node: str,
    details: Mapping[str, Any],
    told: Mapping[str, Step],
    reports: Mapping[str, Mapping[str, Any]],
    *,
    dead: bool = False,
) -> ReplicaStatus:
    name = f"{node}#{details['replica_id']}"
    step, report = told.get(name), reports.get(name, {})
    serving = str(details["state"]).rpartition(".")[2].lower()
    state = "dead" if dead else _STATES.get(serving, "draining")
    if state == "starting" and step is not None:
        state = step.stage
    load = {key: float(value) for key, value in report.items() if isinstance(value, int | float)}
    load.pop("pid", None)
    return ReplicaStatus(
        name,
        state,
        machine=details.get("node_ip") or "",
        address=str(report.get("address", "")),
        pid=details.get("pid") or 0,
        why=_because(step) if step is not None and step.stage == "failed" else "",
        load=load or None,
    )


def _because(step: Step) -> str:
    return f"{step.why}; {step.mend}" if step.mend else step.why


def named(chainlet: str, why: str) -> str:
    """What is wrong with a chainlet, under its name once."""
    return why if why.startswith(f"{chainlet}#") else f"{chainlet}: {why}"


_OURS = "chains.errors.StartError: "


def reason(text: str) -> str:
    """What Serve says is wrong, without its traces: of an error of ours all of it."""
    if _OURS in text:
        return text.rpartition(_OURS)[2].strip()
    if "ActorDiedError" in text:
        return "its process died while it started; its log says more"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
