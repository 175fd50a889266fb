"""`chains deploy`, `scale`, `delete` and `down`: what changes what runs on a cluster."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from secrets import token_urlsafe
from types import ModuleType
from typing import TYPE_CHECKING, Any

from chains.cli.view import wanted
from chains.dsl.graph import Graph, load
from chains.dsl.specs import nearest
from chains.dsl.version import version_of
from chains.errors import ChainsError, GraphError, NotFound, SettingError, Unavailable
from chains.gateway.app import example
from chains.gateway.session import GatewaySettings
from chains.policy.placement import doubts, faults, has_room_twice, preferred
from chains.policy.profiles import mapped, profile_for
from chains.runtime import local_ray
from chains.runtime.deployment import Progress
from chains.runtime.target import target_of

if TYPE_CHECKING:
    from chains.policy.placement import Cluster
    from chains.runtime.ray_serve.plan import Plan

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def ray_serve(module: str) -> Any:
    """A module of the Ray runtime, whose import takes seconds. Raises SettingError when Ray is not installed."""
    try:
        return import_module(f"chains.runtime.ray_serve.{module}")
    except ModuleNotFoundError as error:
        missing = (error.name or "ray").partition(".")[0]
        if missing == "chains":
            raise
        raise SettingError(
            f"{missing} is not installed, and a chain on a cluster needs it",
            mend='run: pip install "chains-serve[ray]"',
        ) from error


def connect(address: str, *, folder: str = "") -> str:
    """Connect to the cluster that is meant. Raises Unavailable when there is none."""
    found = local_ray.find(address)
    if not found:
        raise Unavailable(
            "no cluster runs on this machine",
            mend="chains deploy starts one; or give --address HOST:PORT of another, or set RAY_ADDRESS",
        )
    ray_serve("connection").connect(found, folder=folder)
    return found


def deploy(arguments: argparse.Namespace) -> int:
    """Bring the chain onto the cluster and say where it answers."""
    connection: ModuleType = ray_serve("connection")
    graph = load(arguments.chain)
    name = _named(arguments.name or graph.entry)
    replicas = _replicas(arguments.replicas, graph)
    secrets = _secrets(graph, arguments.key)
    address = local_ray.find(arguments.address) or _start_cluster()
    connection.connect(address, folder=str(_shipped(arguments.ship)) if arguments.ship else "")
    local = local_ray.running()
    ours = local is not None and local.address == address
    door = _door(arguments, ours)
    cluster = replace(connection.cluster(), taken=2 * arguments.gateways * ray_serve("application").GATEWAY_CPU)
    graph = _fitted(graph, replicas, cluster, arguments.profile)
    plan = _plan(arguments, graph, replicas, door, ours, cluster)
    link, told = _page(arguments, ours)
    run = ray_serve("deploy").deploy(
        graph, plan, name, progress=_progress, timeout=arguments.timeout, secrets={**secrets, **told}
    )
    try:
        url = asyncio.run(_interruptible(run))
    except BaseException:
        with suppress(ChainsError):  # what went wrong is told, not what came of it
            _end_page_with_last()
        raise
    _answers(graph, name, url, bool(arguments.key), link)
    return 0


def _page(arguments: argparse.Namespace, ours: bool) -> tuple[str, dict[str, str]]:
    """The link of the cluster's tracing page, started if none runs, and what gateways are told of it. Without a page
    there is none: that is said, and keeps nothing from being deployed. Raises StartError when calls are to be recorded.
    """
    if (settings := wanted(arguments)) is None:
        url, key = os.environ.get("CHAINS_VIEWER", "").rstrip("/"), os.environ.get("CHAINS_VIEWER_KEY", "")
        return (f"{url}/", {"CHAINS_VIEWER": url, "CHAINS_VIEWER_KEY": key}) if url else ("", {})
    plain: dict[str, Any] = {"port": settings.port, "traces": arguments.traces}
    if ours:
        plain["host"] = "127.0.0.1"
    else:  # anybody may reach a node: whoever has no key is shown nothing
        plain |= {"host": "", "keys": [token_urlsafe(16)]}
    viewer: ModuleType = ray_serve("viewer")
    try:
        shown = viewer.start("chains.viewer.process:opened", plain)
    except ChainsError as error:
        if arguments.record:
            raise
        _say(f"note: {error.message}; the chain is deployed without it")
        return "", {}
    if arguments.view_port and not shown.endpoint.endswith(f":{arguments.view_port}"):
        _say(f"note: the cluster's tracing page runs already, at {shown.endpoint}")
    return shown.link, viewer.environment(shown)


def _end_page_with_last() -> str:
    """Where no chain is left there is nothing more to show. The store that stays, "" while chains run."""
    if ray_serve("operate").applications():
        return ""
    shown = ray_serve("viewer").end()
    return shown.traces if shown is not None else ""


async def _interruptible(run: Coroutine[Any, Any, str]) -> str:
    """A deployment that says so when Ctrl-C ends it: what has started takes seconds to go."""
    running = asyncio.ensure_future(run)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        _say("\nstopping: what has not run before is taken away again")
        running.cancel()
        return await running


def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise SettingError(
            f"--name {name!r} is no name", mend="use letters, digits, - and _, at most 63, e.g. --name reception"
        )
    return name


def _replicas(given: Sequence[str], graph: Graph) -> dict[str, int]:
    counts = {}
    for one in given:
        name, _, count = one.partition("=")
        if name not in graph.nodes:
            raise SettingError(f"--replicas {one} names no chainlet", mend=_known(name, graph))
        if not count.isdecimal() or not int(count):
            raise SettingError(f"--replicas {one} is no number", mend=f"write e.g. --replicas {name}=2")
        counts[name] = int(count)
    return counts


def _known(name: str, graph: Graph) -> str:
    return nearest(name, tuple(graph.nodes)).replace("=...", "=N")


def _secrets(graph: Graph, keys: Sequence[str]) -> dict[str, str]:
    """The gateway's keys, also when there are none: no others are to hold. And the values of what the chainlets'
    environments call secrets, from this process's environment."""
    wanted = {name: node.name for node in graph.nodes.values() for name in node.spec.environment.secrets}
    for name, chainlet in wanted.items():
        if name not in os.environ:
            raise SettingError(f"{chainlet} needs the secret {name}, which is not set here", mend=f"export {name}=...")
    return {name: os.environ[name] for name in wanted} | {"CHAINS_KEYS": " ".join(keys)}


def _shipped(folder: str) -> Path:
    path = Path(folder).resolve()
    if not path.is_dir():
        raise SettingError(f"--ship {folder} is no folder", mend="give the folder in which the chain's files lie")
    return path


def _start_cluster() -> str:
    _say("starting a Ray cluster on this machine (`chains down` ends it)")
    return local_ray.start().address


def _door(arguments: argparse.Namespace, ours: bool) -> dict[str, Any]:
    """The gateway's settings. Raises SettingError now, not in a replica, for what makes no sense."""
    host = arguments.host or ("127.0.0.1" if ours else "")
    GatewaySettings(
        host=host or "0.0.0.0",
        port=arguments.port,
        keys=tuple(arguments.key),
        insecure=arguments.insecure,
        origins=tuple(arguments.origin),
    )
    door = {"port": arguments.port, "insecure": arguments.insecure, "origins": list(arguments.origin)}
    if arguments.record:
        door |= {"record": True, "redact": arguments.redact}
    return {**door, "drain_seconds": max(arguments.grace, 0.1)} | ({"host": host} if host else {})


def _fitted(graph: Graph, replicas: dict[str, int], cluster: Cluster, wanted: Any) -> Graph:
    """The chain with the resources of its profile. Raises GraphError for what can never be placed."""
    counted = graph.changed({name: {"scaling": _fixed(graph, name, count)} for name, count in replicas.items()})
    profile = wanted or profile_for(counted, cluster)
    graph, told = mapped(counted, cluster, profile)
    if told:
        _say(f"profile {profile}, for this cluster:\n" + "".join(f"  {line}\n" for line in told))
    found = faults(graph, cluster, laptop=profile == "laptop")
    if found and not cluster.autoscales:
        raise GraphError(found, chain=graph.entry)
    for fault in found:
        _say(f"waits for the cluster to add nodes: {fault}")
    for doubt in doubts(graph, cluster) if not found else ():
        _say(f"note: {doubt}")
    return graph


def _fixed(graph: Graph, name: str, count: int) -> Any:
    return replace(graph.nodes[name].spec.scaling, min=count, max=count)


def _plan(
    arguments: argparse.Namespace,
    graph: Graph,
    replicas: dict[str, int],
    door: dict[str, Any],
    ours: bool,
    cluster: Cluster,
) -> Plan:
    plan = ray_serve("plan")
    target, path = target_of(graph), [os.path.abspath(entry) for entry in sys.path]
    if arguments.ship:
        target, path = _within(target, _shipped(arguments.ship)), []
    surge = 100 if cluster.autoscales or has_room_twice(graph, cluster) else 0
    if not surge:
        _say(
            "note: no room for old and new replicas side by side: in an upgrade each is stopped before the next starts"
        )
    made: Plan = plan.Plan(
        target,
        tuple(path),
        replicas,
        resources={name: asdict(node.spec.resources) for name, node in graph.nodes.items()},
        nodes=preferred(graph, cluster),
        gateway="chains.serve:door",
        gateways=arguments.gateways,
        door=door,
        version=arguments.version_name or version_of(load(arguments.chain)),
        settings=plan.RaySettings(grace=arguments.grace, surge=surge, bind="127.0.0.1" if ours else ""),
    )
    return made


def _within(target: str, folder: Path) -> str:
    """What the chain is called in the folder that is sent along."""
    file, colon, name = target.rpartition(":")
    if not file.endswith(".py"):
        return target
    if not Path(file).is_relative_to(folder):
        raise SettingError(f"{file} is not in {folder}", mend="give --ship a folder that holds it")
    return f"{Path(file).relative_to(folder)}{colon}{name}"


def _progress(step: Progress) -> None:
    if step.stage in ("loading", "warming", "ready", "failed"):
        _say(f"{step.seconds:7.1f} s  {step.replica:<24} {step.stage}")


def _answers(graph: Graph, name: str, url: str, keyed: bool, link: str) -> None:
    _say(f"\n{graph.entry} answers at {url} as {name}")
    if link:
        _say(f"where each call's time went: {link}")
    for method in graph.nodes[graph.entry].methods.values():
        _say(f"\n  {method.shape}\n    {example(url, method, keyed)}")
    _say(f"\nchains status {name}   chains logs {name} -f   chains delete {name}")


def scale(arguments: argparse.Namespace) -> int:
    scaling = ray_serve("scaling")
    counts = {}
    for one in arguments.counts:
        name, equals, count = one.rpartition("=")
        if not equals or not name:
            raise SettingError(f"{one} says no number", mend=f"write {one or 'Ears'}=3, or {one or 'Ears'}=1-8")
        counts[name] = scaling.Count.read(count)
    connect(arguments.address)
    scaling.scale(arguments.name, counts)
    _say(", ".join(f"{name} {count}" for name, count in counts.items()) + f"; see `chains status {arguments.name}`")
    return 0


def delete(arguments: argparse.Namespace) -> int:
    connect(arguments.address)
    ray_serve("operate").application(arguments.name)
    if not _sure(arguments, f"take {arguments.name} off the cluster?"):
        return 1
    asyncio.run(ray_serve("deploy").delete(arguments.name))
    _say(f"{arguments.name} is gone")
    if traces := _end_page_with_last():
        _say(f"so is the tracing page, with the last chain; its calls stay: chains view --traces {traces}")
    return 0


def down(arguments: argparse.Namespace) -> int:
    running = local_ray.running()
    if running is None:
        raise NotFound(
            "no cluster of `chains deploy` runs on this machine", mend="others are ended by who started them"
        )
    if not _sure(arguments, "end the cluster on this machine, with all that runs on it?"):
        return 1
    count = local_ray.stop(running)
    _say(f"the cluster has ended ({count} processes)")
    return 0


def _sure(arguments: argparse.Namespace, question: str) -> bool:
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise SettingError("nobody is there to be asked", mend="add --yes")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _say(line: str) -> None:
    print(line, flush=True)
