"""How much memory there is to load a model into, and the refusal when it is too little."""

from __future__ import annotations

from pathlib import Path

import torch

from engines.layers.architecture import Architecture
from engines.llm.fit import require_room

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def refuse_what_does_not_fit(
    architecture: Architecture, precision: str, device: torch.device, tokens: int, usable: float = 1.0
) -> None:
    """Raises ModelTooLarge, before anything is read, when weights and a cache of `tokens` exceed what is `usable` of
    the free memory.
    """
    free = available(device)
    if free is not None:
        where = "this machine" if device.type == "cpu" else f"the device {device}"
        on_cpu = device.type == "cpu"
        require_room(architecture, precision, int(free * usable), where=where, tokens=tokens, on_cpu=on_cpu)


def available(device: torch.device, meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Bytes that are free on the device; on a CPU what the kernel and the container still give. None: not known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    known = [free for free in (_machine(meminfo), _container(cgroup)) if free is not None]
    return min(known) if known else None


def _machine(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _container(cgroup: Path) -> int | None:
    """What the limit leaves; pages of cached files in it are given up when memory is wanted."""
    try:
        limit = int((cgroup / "memory.max").read_text())  # "max" where there is none
        used = int((cgroup / "memory.current").read_text())
        words = (cgroup / "memory.stat").read_text().split()
        cached = int(words[words.index("inactive_file") + 1])
    except (OSError, ValueError, IndexError):
        return None
    return max(0, limit - used + cached)
