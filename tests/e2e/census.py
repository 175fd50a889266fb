"""What there is of a deployment, counted from outside: what a crash must not change once all has settled."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from chains.runtime.ray_serve.operate import AppStatus, status
from chains.testing.harness import Broken
from chains.wire.segments import FOLDER, POOL_NAME


@dataclass(frozen=True)
class Census:
    """`processes` of each chainlet that are ready; `channels`, connections between them and from here; `slots` that
    calls hold or wait for, and open streams; `pools` of shared memory and `bytes` in them; `orphans`, pools of nobody.
    """

    processes: dict[str, int]
    channels: int
    slots: int
    pools: int
    bytes: int
    orphans: int

    @property
    def settled(self) -> tuple[object, ...]:
        """All but the bytes: how many slots a pool has, chance says."""
        return (self.processes, self.channels, self.slots, self.pools, self.orphans)


async def seen(app: str) -> AppStatus:
    (one,) = await asyncio.to_thread(status, app)
    return one


async def seen_to(app: str, holds: Callable[[AppStatus], bool], what: str, seconds: float = 90.0) -> AppStatus:
    """The status once that holds of it. Broken when it never does, with the last one."""
    end = time.monotonic() + seconds
    while not holds(now := await seen(app)):
        if time.monotonic() > end:
            raise Broken(f"not within {seconds:g} s: {what}; it is {now}")
        await asyncio.sleep(0.1)  # the state is on the cluster
    return now


def pids(app: AppStatus, name: str) -> list[int]:
    """The processes of a chainlet's replicas that are ready."""
    return [one.pid for chainlet in app.chainlets if chainlet.name == name for one in chainlet.replicas
            if one.state == "ready"]  # fmt: skip


async def census(app: str) -> Census:
    now = await seen(app)
    replicas = [one for chainlet in now.chainlets for one in chainlet.replicas if one.state != "dead"]
    everybody = {one.pid for one in replicas} | {os.getpid()}
    ports = {int(one.address.rpartition(":")[2]) for one in replicas if one.address.count("://") == 0 and one.address}
    slots = sum(
        int((one.load or {}).get(key, 0)) for one in replicas for key in ("running", "queued", "draining", "calls")
    )
    pools = {pool for pid in everybody for pool in held(pid)}
    return Census(
        dict(Counter(chainlet.name for chainlet in now.chainlets for one in chainlet.replicas if one.state == "ready")),
        sum(connections(pid, ports) for pid in everybody),
        slots,
        len(pools),
        sum(file.stat().st_blocks * 512 for pool in pools for file in pool.iterdir()),
        len(orphans()),
    )


def connections(pid: int, ports: set[int]) -> int:
    """Those that the process has dialled to one of the ports."""
    with suppress(psutil.Error):
        found = psutil.Process(pid).net_connections(kind="tcp")
        return sum(one.status == psutil.CONN_ESTABLISHED and bool(one.raddr) and one.raddr.port in ports
                   for one in found)  # fmt: skip
    return 0


def held(pid: int) -> set[Path]:
    """The pools that the process owns: it has their lock open."""
    found = set()
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                file = descriptor.readlink()
                if file.name == "lock" and file.parent.parent == FOLDER and POOL_NAME.fullmatch(file.parent.name):
                    found.add(file.parent)
    return found


def orphans() -> set[Path]:
    """The pools that nobody owns any more."""
    found = set()
    for pool in FOLDER.iterdir():
        if POOL_NAME.fullmatch(pool.name):
            with suppress(OSError), (pool / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found.add(pool)
    return found
