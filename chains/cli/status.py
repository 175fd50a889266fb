"""`chains status` and `chains logs`: what runs on a cluster, and what it says."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from chains.cli.deploy import connect, ray_serve
from chains.dsl.specs import closest
from chains.errors import NotFound

if TYPE_CHECKING:
    from chains.runtime.ray_serve.operate import AppStatus, ChainletStatus, ReplicaStatus

POLL_S = 0.5


def status(arguments: argparse.Namespace) -> int:
    """0 when all is as it should be, else 1."""
    address = connect(arguments.address)
    found: list[AppStatus] = ray_serve("operate").status(arguments.name)
    if arguments.json:
        print(json.dumps([app.to_json() for app in found], indent=2))
    elif not found:
        print(f"nothing is deployed on the cluster at {address}")
    for app in found if not arguments.json else ():
        print("\n".join(_app(app)))
    if not arguments.json and (shown := ray_serve("viewer").running()) is not None:
        print(f"where each call's time went: {shown.link}")
    return 0 if all(app.ok for app in found) else 1


def _app(app: AppStatus) -> list[str]:
    lines = ["  ".join(filter(None, (app.name, app.state, *app.urls))) + (f"  ({_first(app.why)})" if app.why else "")]
    for chainlet in app.chainlets:
        lines.append(f"  {chainlet.name:<20} {_counts(chainlet)}")
        lines += [f"    {_replica(replica)}" for replica in chainlet.replicas]
    return lines


def _first(why: str) -> str:
    """The line that says what it is; all of it stands beside the replica."""
    return why.partition("\n")[0]


def _counts(chainlet: ChainletStatus) -> str:
    ready = chainlet.count("ready")
    between = f" ({chainlet.least}-{chainlet.most})" if chainlet.least != chainlet.most else ""
    states = [
        f"{count} {name}"
        for name, count in (
            ("starting", chainlet.count("starting", "loading", "warming")),
            ("draining", chainlet.count("draining")),
            ("failed", chainlet.count("failed", "dead")),
        )
        if count
    ]
    why = f"  {_first(chainlet.why)}" if chainlet.why else ""
    return f"{ready}/{chainlet.wanted} ready{between}" + "".join(f", {state}" for state in states) + why


def _replica(replica: ReplicaStatus) -> str:
    where = replica.address or replica.machine
    parts = [f"{replica.name:<26} {replica.state:<8}", where, _load(replica.load)]
    return "  ".join(filter(None, parts)) + (f"  {replica.why}" if replica.why else "")


def _load(load: Mapping[str, float] | None) -> str:
    """`running 3, queued 1, wait 12 ms`; what is 0 is left out, "idle" if all is."""
    if load is None:
        return ""
    parts = [f"{name} {value:g}" for name, value in load.items() if value and name != "queue_wait_ms"]
    wait = load.get("queue_wait_ms", 0.0)
    return ", ".join([*parts, *([f"wait {wait:.0f} ms"] if wait else [])]) or "idle"


def logs(arguments: argparse.Namespace) -> int:
    """Each line under its replica's name, until Ctrl-C with --follow. A chain that is gone still has logs."""
    connect(arguments.address)
    reader = ray_serve("logs").Logs(arguments.name, arguments.chainlet, last=arguments.lines)
    lines = reader.read()
    if not reader.files:
        details = ray_serve("operate").application(arguments.name)
        known = tuple(details["deployments"])
        if arguments.chainlet and arguments.chainlet not in known:
            near = closest(arguments.chainlet, known)
            mend = f"did you mean {near}?" if near else f"there are {', '.join(known)}"
            raise NotFound(f"{arguments.name} has no chainlet {arguments.chainlet}", mend=mend)
    while True:
        for line in lines:
            print(f"[{line.replica}] {line.text}")
        sys.stdout.flush()
        for name in reader.silent:
            print(f"chains: node {name} does not give its logs", file=sys.stderr)
        reader.silent.clear()
        if not arguments.follow:
            return 0
        time.sleep(POLL_S)
        lines = reader.read()
