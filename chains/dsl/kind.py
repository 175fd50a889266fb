"""What every sort of value has in common: it is checked, read, written and described; or refused, saying
where and why.
"""

from __future__ import annotations

import base64
import binascii
import enum
from typing import Any

import numpy as np

from chains.errors import InvalidValue

DEPTH = 64


class Wrong(Exception):
    """A value that does not fit: where inside it, what was found, what is expected, and perhaps how to mend
    it.
    """

    def __init__(self, found: str, expected: str, mend: str = "") -> None:
        super().__init__(found)
        self.path, self.found, self.expected, self.mend = "", found, expected, mend

    def under(self, step: str) -> Wrong:
        self.path = step + self.path
        return self

    def error(self, where: str) -> InvalidValue:
        return InvalidValue(f"{where}{self.path} is {self.found}, expected {self.expected}", mend=self.mend)


class Fields(dict[str, Any]):
    """A structure on its way between two processes: the fields by name, and what its class was called at the
    sender.
    """

    __slots__ = ("name",)

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.name = name


def described(value: object) -> str:
    """A value as an error names it: its type and size, never the words in it."""
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int | float) and not isinstance(value, enum.Enum):
        text = repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "a huge number"
        return f"{type(value).__name__} {text}"
    if isinstance(value, Fields):
        return f"a structure `{value.name[:80]}`"
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype} of shape {value.shape}"
    if isinstance(value, str | bytes | list | tuple | dict) and not isinstance(value, enum.Enum):
        return f"{type(value).__name__} of length {len(value)}"
    return type(value).__name__


class Kind:
    """One sort of value. `check` is strict and gives the same object back, `parse` reads what came as JSON or
    from the codec, `dump` writes plain JSON. What refuses raises Wrong, which gathers the path to the fault
    on its way out.

    Instances of `exact` classes need no look inside, neither to check nor to parse them; `types` are those
    that may fit; `arrays` says that arrays may be within; a `structure` has a name and `names` of fields, by
    which unions tell it apart.
    """

    exact: frozenset[type] = frozenset()
    types: frozenset[type] = frozenset()
    arrays: bool = False
    structure: str = ""
    names: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        self.name = name

    def check(self, value: Any) -> Any:
        if type(value) in self.exact:
            return value
        raise Wrong(described(value), self.name)

    def parse(self, plain: Any, json: bool) -> Any:
        return self.check(plain)

    def dump(self, value: Any) -> Any:
        return value

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        return {}


def from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Wrong(described(text), "base64", "encode the bytes as base64") from None
