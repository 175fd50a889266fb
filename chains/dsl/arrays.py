"""Arrays and tensors as values: read-only on arrival, and what they are in JSON."""

from __future__ import annotations

import base64
import sys
from typing import Any

import numpy as np

from chains.dsl.kind import Kind, Wrong, described, from_base64


class Array(Kind):
    """A numpy array without Python objects, of one scalar type if the annotation names it; it arrives
    read-only.
    """

    types = frozenset({np.ndarray})
    arrays = True

    def __init__(self, name: str, scalar: type[np.generic] | None = None) -> None:
        super().__init__(name)
        self.scalar = scalar

    def check(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            raise Wrong(described(value), self.name, "write numpy.asarray(...)" if isinstance(value, list) else "")
        if value.dtype.hasobject:
            raise Wrong("an array of Python objects", self.name, "give it a dtype, e.g. dtype=numpy.float32")
        if self.scalar is not None and not issubclass(value.dtype.type, self.scalar):
            raise Wrong(described(value), self.name, f"write .astype(numpy.{self.scalar.__name__})")
        if not value.flags.writeable:
            return value
        view = value.view()
        view.flags.writeable = False
        return view

    def parse(self, plain: Any, json: bool) -> Any:
        return self.check(load_array(plain, self.scalar) if json and isinstance(plain, list | dict) else plain)

    def dump(self, value: Any) -> Any:
        return dump_array(value)

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        text = {"type": "string"}
        shape = {"type": "array", "items": {"type": "integer"}}
        packed = {"dtype": text, "shape": shape, "base64": {"type": "string", "contentEncoding": "base64"}}
        return {"anyOf": [{"type": "array"}, {"type": "object", "properties": packed, "required": list(packed)}]}


class TorchTensor(Array):
    """A torch tensor, known by its class's name: torch is not imported for it. Torch has no read-only
    tensors.
    """

    types = frozenset()

    def check(self, value: Any) -> Any:
        if not is_tensor(value):
            raise Wrong(
                described(value),
                self.name,
                "write torch.from_numpy(...)" if isinstance(value, np.ndarray) else "",
            )
        return value

    def parse(self, plain: Any, json: bool) -> Any:
        if not (json and isinstance(plain, list | dict)):
            return self.check(plain)
        torch = sys.modules.get("torch")
        if torch is None:
            raise Wrong(described(plain), self.name, "import torch in the chain's file")
        return torch.from_numpy(load_array(plain, None).copy())


def is_tensor(value: object) -> bool:
    """Whether this is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def dump_array(value: Any) -> dict[str, Any]:
    """An array in JSON: {"dtype", "shape", "base64"}, little-endian, C order. A tensor goes through numpy
    (bfloat16 as float32).
    """
    if is_tensor(value):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    little = np.ascontiguousarray(value.astype(value.dtype.newbyteorder("<"), copy=False))
    return {
        "dtype": value.dtype.name,
        "shape": list(value.shape),
        "base64": base64.b64encode(little.tobytes()).decode(),
    }


def load_array(plain: Any, scalar: type[np.generic] | None) -> np.ndarray[Any, Any]:
    """An array from JSON: the object that dump_array writes, or nested lists of numbers."""
    try:
        if isinstance(plain, list):
            concrete = scalar is not None and not scalar.__subclasses__()
            array: np.ndarray[Any, Any] = np.array(plain, dtype=scalar if concrete else None)
            if array.dtype.kind not in "biuf":
                raise Wrong("a list of something else than numbers", "an array")
            return array
        dtype = np.dtype(str(plain["dtype"])).newbyteorder("<")
        if dtype.hasobject or dtype.itemsize == 0:
            raise Wrong(f"an array of {dtype}", "an array of numbers")
        return np.frombuffer(from_base64(plain["base64"]), dtype).reshape([int(size) for size in plain["shape"]])
    except (KeyError, TypeError, ValueError, OverflowError, SyntaxError) as error:
        more = 'write nested lists of numbers, or {"dtype": "float32", "shape": [2, 3], "base64": "..."}'
        raise Wrong(f"no array ({type(error).__name__})", "an array", more) from None
