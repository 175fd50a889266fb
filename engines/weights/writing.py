"""Writing a checkpoint: tensors as they come, in shards, with their index."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from engines.weights.headers import INDEX, SINGLE

SHARD_BYTES = 4_000_000_000


class ShardWriter:
    """Writes model.safetensors, or several shards and their index, into a directory. Holds one shard in memory.

    The files have their names and the index is there only after `close`. Raises OSError as the disk does.
    """

    def __init__(self, directory: Path, shard_bytes: int = SHARD_BYTES) -> None:
        self._directory, self._limit = directory, shard_bytes
        self._waiting: dict[str, torch.Tensor] = {}
        self._bytes = self._total = 0
        self._written: list[tuple[Path, list[str]]] = []

    def add(self, name: str, tensor: torch.Tensor) -> None:
        if self._waiting and self._bytes + tensor.nbytes > self._limit:
            self._flush()
        whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
        self._waiting[name] = tensor if whole else tensor.clone(memory_format=torch.contiguous_format)
        self._bytes += tensor.nbytes
        self._total += tensor.nbytes

    def close(self) -> None:
        """Write what is left, give the files their names, and write the index if there are several."""
        self._flush()
        if len(self._written) == 1:
            self._written[0][0].rename(self._directory / SINGLE)
            return
        named: dict[str, str] = {}
        for number, (file, names) in enumerate(self._written, start=1):
            final = f"model-{number:05d}-of-{len(self._written):05d}.safetensors"
            file.rename(self._directory / final)
            named |= dict.fromkeys(names, final)
        index = {"metadata": {"total_size": self._total}, "weight_map": named}
        (self._directory / INDEX).write_text(json.dumps(index, indent=1))

    def _flush(self) -> None:
        from safetensors.torch import save_file

        if not self._waiting:
            return
        file = self._directory / f"shard-{len(self._written)}.safetensors"
        save_file(self._waiting, file, metadata={"format": "pt"})
        self._written.append((file, list(self._waiting)))
        self._waiting, self._bytes = {}, 0
