"""Threads for the libraries of one process. Two that each take all cores make a call several times slower.

OpenMP, MKL and OpenBLAS read these variables when they load, so they are set before any replica loads a model.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, MutableMapping

from chains.dsl.specs import Resources

_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def share(cores: int, wants: Iterable[Resources]) -> int:
    """Threads for each of the chainlets that want a core or more, when all work at the same time. At least 1."""
    heavy = sum(1 for resources in wants if resources.cpu >= 1)
    return max(1, cores // max(1, heavy))


def settings(threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables to set. One that the user has set stays; idle threads sleep instead of spinning."""
    wanted = dict.fromkeys(_COUNTS, str(threads)) | {"OMP_WAIT_POLICY": "PASSIVE"}
    return {name: value for name, value in wanted.items() if name not in environ}


def share_out(wants: Iterable[Resources], environ: MutableMapping[str, str]) -> None:
    """Give this process's libraries their share of the cores that it may use."""
    environ.update(settings(share(len(os.sched_getaffinity(0)), wants), environ))
