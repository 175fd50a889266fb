"""What the layers ask of a checkpoint. Reading and checking files is another room's work."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Tensors(Protocol):
    """The tensors of a checkpoint, by the names that the files have."""

    def has(self, name: str) -> bool: ...

    def take(
        self, name: str, shape: tuple[int, ...], *, rows: slice = slice(None), columns: slice = slice(None)
    ) -> Tensor:
        """A view of the tensor's rows and columns. `shape` is that of the whole; another one is an error."""
        ...
