"""What replicas wrote to stdout and stderr, from all nodes, also of those that are dead: each line under its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private import worker as ray_worker
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

MARK = ":replica:"
"""Before its first line a replica writes this and its name; Ray writes lines of this kind too."""
_HEAD = 1024
"""Bytes of a file in which the marks stand."""
_MOST = 2**20
"""Bytes read of a file at once."""
READ_S = 30.0


@dataclass(frozen=True, slots=True)
class Line:
    replica: str
    text: str


class Logs:
    """The logs of an application, or of one of its chainlets: `read` gives the last lines of each replica at first,
    then what came since. A node that does not answer is left out and named in `silent`.
    """

    def __init__(self, app: str, chainlet: str = "", *, last: int = 100) -> None:
        self.silent: set[str] = set()
        self._app, self._chainlet, self._last = app, chainlet, last
        self._positions: dict[str, int] = {}
        node: Any = ray_worker._global_node
        self._here = "" if node is None else ray.get_runtime_context().get_node_id()

    @property
    def files(self) -> int:
        """How many files there are of it."""
        return len(self._positions)

    def read(self) -> list[Line]:
        last = self._last if not self._positions else None
        wanted = (self._app, self._chainlet, self._positions, last)
        found: dict[str, tuple[str, list[str], int]] = {}
        pending: dict[str, Any] = {}
        for node in ray.nodes():
            if node["Alive"] and node["NodeID"] != self._here:
                where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                pending[node["NodeManagerAddress"]] = _read_there.options(scheduling_strategy=where).remote(*wanted)
        if self._here:  # through Ray's client this process is on no node
            found |= read_folder(_folder(), *wanted)
        for name, reading in pending.items():
            try:
                found |= ray.get(reading, timeout=READ_S)
            except RayError:
                self.silent.add(name)
        self._positions |= {file: position for file, (_, _, position) in found.items()}
        ordered = sorted(found.values(), key=lambda one: one[0])
        return [Line(replica, text) for replica, lines, _ in ordered for text in lines]


def _folder() -> Path:
    """Where Ray keeps the logs of this node."""
    node: Any = ray_worker._global_node
    return Path(node.get_logs_dir_path())


@ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
def _read_there(
    app: str, chainlet: str, positions: Mapping[str, int], last: int | None
) -> dict[str, tuple[str, list[str], int]]:
    return read_folder(_folder(), app, chainlet, positions, last)


def read_folder(
    folder: Path, app: str, chainlet: str, positions: Mapping[str, int], last: int | None
) -> dict[str, tuple[str, list[str], int]]:
    """By file name: whose it is, whole lines after `positions` (of each file the `last`, if not None), and where they
    end."""
    found = {}
    for file, replica in _files(folder, app, chainlet):
        begin = positions.get(file.name, 0)
        size = file.stat().st_size
        with file.open("rb") as opened:
            opened.seek(max(begin, size - _MOST))
            data = opened.read(_MOST)
        data = data[: data.rfind(b"\n") + 1]
        lines = [line for line in data.decode(errors="replace").splitlines() if not line.startswith(":")]
        if last is not None:
            lines = lines[-last:] if last else []
        found[file.name] = (replica, lines, max(begin, size - _MOST) + len(data))
    return found


def _files(folder: Path, app: str, chainlet: str) -> Iterator[tuple[Path, str]]:
    """The files of an application's replicas, and whose each is."""
    actor = f":actor_name:ServeReplica:{app}:"
    for file in sorted(folder.glob("worker-*")):
        with file.open("rb") as opened:
            head = opened.read(_HEAD).decode(errors="replace").splitlines()
        for line in head:
            name = line.removeprefix(actor)
            if name != line and chainlet in ("", name):
                marked = [line.removeprefix(MARK) for line in head if line.startswith(MARK)]
                yield file, marked[0] if marked else f"{name}#{file.stem.rpartition('-')[2]}"
                break
