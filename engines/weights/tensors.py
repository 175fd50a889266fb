"""Named tensors that a model is built of: each is taken once by its name and wanted shape, and none may be left."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import torch

from engines.weights.errors import WeightsInvalid

WHOLE = slice(None)
SHOWN = 5
WEIGHT_TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn)
OTHER_MODEL = "check that config.json belongs to these weights"


def refuse_extra(names: Sequence[str]) -> None:
    """Raises WeightsInvalid with these names of tensors that no part of the model asked for, if there are any."""
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        raise WeightsInvalid(
            f"the model has no place for {len(names)} of the tensors: {', '.join(names[:SHOWN])}{more}",
            mend=OTHER_MODEL,
        )


class NamedTensors(ABC):
    """Names, shapes, and the account of what was taken. Where the numbers come from is the subclass's affair."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Every tensor's name, in the order in which they lie in the files."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape. Raises WeightsInvalid when there is none of this name."""

    @abstractmethod
    def dtype(self, name: str) -> torch.dtype:
        """A tensor's type. Raises WeightsInvalid when there is none of this name, or its type is not known."""

    @abstractmethod
    def _rows(self, name: str, first: int, end: int) -> torch.Tensor:
        """The rows from `first` to before `end` (of a vector: its elements)."""

    def has(self, name: str) -> bool:
        return name in self.names()

    def take(self, name: str, shape: Sequence[int], *, rows: slice = WHOLE, columns: slice = WHOLE) -> torch.Tensor:
        """The tensor, or its rows and columns, as a view that must not be written to; it counts as used.

        `shape` is that of the whole tensor. Raises WeightsInvalid for one that is missing, misshapen or of a type
        that weights do not have.
        """
        wanted = tuple(shape)
        self.check(name, wanted)
        first, end, _ = rows.indices(wanted[0]) if wanted else (0, 1, 1)
        tensor = self._rows(name, first, end)
        self._taken.add(name)
        return tensor if columns == WHOLE else tensor[:, columns]

    def check(self, name: str, shape: Sequence[int]) -> None:
        """Raises WeightsInvalid when the tensor is missing, misshapen, or of a type that weights do not have."""
        found, wanted = self.shape(name), tuple(shape)
        if found != wanted:
            raise WeightsInvalid(
                f"the tensor {name} has the shape {list(found)}, wanted is {list(wanted)}", mend=OTHER_MODEL
            )
        kind = self.dtype(name)
        if kind not in WEIGHT_TYPES:
            raise WeightsInvalid(
                f"the tensor {name} is of type {kind}; weights are float64, float32, float16, bfloat16 or e4m3",
                mend="write the checkpoint again in one of these types",
            )

    def finish(self, allowed: Iterable[str] = ()) -> None:
        """All that the model needs was taken: what is left must match one of the patterns `allowed` ("*.inv_freq").

        Raises WeightsInvalid with the names of what nothing asked for.
        """
        patterns = tuple(allowed)
        left = [name for name in self.names() if name not in self._taken]
        refuse_extra([name for name in left if not any(fnmatchcase(name, pattern) for pattern in patterns)])

    def _missing(self, name: str) -> WeightsInvalid:
        stem = name.rpartition(".")[0]
        beside = [other for other in self.names() if stem and other.startswith(stem + ".")][:SHOWN]
        near = f" (beside it: {', '.join(beside)})" if beside else ""
        return WeightsInvalid(f"the tensor {name} is missing{near}", mend=OTHER_MODEL)


class MemoryTensors(NamedTensors):
    """Tensors that are in memory already."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._tensors = dict(tensors)

    def names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._found(name).shape)

    def dtype(self, name: str) -> torch.dtype:
        return self._found(name).dtype

    def _rows(self, name: str, first: int, end: int) -> torch.Tensor:
        tensor = self._found(name)
        return tensor[first:end] if tensor.dim() else tensor

    def _found(self, name: str) -> torch.Tensor:
        if name not in self._tensors:
            raise self._missing(name)
        return self._tensors[name]
