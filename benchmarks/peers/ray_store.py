"""Ray's object store between two processes: put here, fetched and looked at by an actor there."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import ray


class Store:
    """A Ray of this process's own, with one actor. Close it at the end."""

    def __init__(self, memory: int) -> None:
        try:
            ray.init(
                num_cpus=1, include_dashboard=False, object_store_memory=memory, log_to_driver=False,
                configure_logging=False, logging_level=logging.ERROR,
            )  # fmt: skip
            self._actor: Any = ray.remote(_Reader).remote()
            self.put(np.zeros(1 << 20, np.float32))
        except BaseException:
            ray.shutdown()
            raise

    def put(self, array: np.ndarray[Any, Any]) -> float:
        """What the actor sees at both ends of the array."""
        return float(ray.get(self._actor.take.remote([ray.put(array)]), timeout=60))

    def close(self) -> None:
        ray.shutdown()


class _Reader:
    def take(self, references: list[Any]) -> float:
        array = ray.get(references[0])
        return float(array[0]) + float(array[-1])
