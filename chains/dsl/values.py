"""What may cross a hop: one Kind per sort of annotation, each checks, reads, writes and describes its values.

`check` is strict and gives the same object back; `parse` reads what came as JSON or from the codec; `dump` writes plain
JSON. A kind that refuses raises Wrong, which gathers the path to the fault on its way out.
"""

from __future__ import annotations

import base64
import binascii
import copy
import dataclasses
import enum
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from chains.errors import ChainsError, InvalidValue

DEPTH = 64
_BOUND_MEND = "send less deeply nested data"


class Wrong(Exception):
    """A value that does not fit: where inside it, what was found, what is expected, and perhaps how to mend it."""

    def __init__(self, found: str, expected: str, mend: str = "") -> None:
        super().__init__(found)
        self.path, self.found, self.expected, self.mend = "", found, expected, mend

    def under(self, step: str) -> Wrong:
        self.path = step + self.path
        return self

    def error(self, where: str) -> InvalidValue:
        return InvalidValue(f"{where}{self.path} is {self.found}, expected {self.expected}", mend=self.mend)


class Fields(dict[str, Any]):
    """A structure on its way between two processes: the fields by name, and what its class was called at the sender."""

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
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype} of shape {value.shape}"
    if isinstance(value, str | bytes | list | tuple | dict) and not isinstance(value, enum.Enum):
        return f"{type(value).__name__} of length {len(value)}"
    return type(value).__name__


class Kind:
    """One sort of value. `exact` are classes whose instances need no look inside; `arrays` says that arrays may be within."""

    exact: frozenset[type] = frozenset()
    arrays: bool = False
    structure: str = ""  # the name by which a union tells structures apart

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


class Plain(Kind):
    """str, bool, None and int. A subclass of str or int passes, a bool is no int."""

    def __init__(self, cls: type, schema: str) -> None:
        super().__init__("None" if cls is type(None) else cls.__name__)
        self.cls, self.kind = cls, schema
        self.exact = frozenset({cls})

    def check(self, value: Any) -> Any:
        if type(value) is self.cls or (isinstance(value, self.cls) and type(value) is not bool):
            return value
        mend = f"write {self.name}(value)" if isinstance(value, np.generic) else ""
        raise Wrong(described(value), self.name, mend)

    def parse(self, plain: Any, json: bool) -> Any:
        if json and self.cls is int and type(plain) is float and plain.is_integer():
            return int(plain)
        return self.check(plain)

    def dump(self, value: Any) -> Any:
        return value.value if isinstance(value, enum.Enum) else value

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        return {"type": self.kind}


_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Float(Kind):
    """A float; an int passes too, a bool does not. JSON has no NaN or infinity: there they are the strings of their names."""

    exact = frozenset({float, int})

    def check(self, value: Any) -> Any:
        if type(value) is float or (isinstance(value, float | int) and type(value) is not bool):
            return value
        raise Wrong(described(value), self.name, "write float(value)" if isinstance(value, np.generic) else "")

    def parse(self, plain: Any, json: bool) -> Any:
        return _SPECIAL[plain] if json and type(plain) is str and plain in _SPECIAL else self.check(plain)

    def dump(self, value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return value

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        return {"type": "number"}


class Bytes(Kind):
    """bytes; in JSON base64."""

    exact = frozenset({bytes})

    def parse(self, plain: Any, json: bool) -> Any:
        return from_base64(plain) if json and isinstance(plain, str) else self.check(plain)

    def dump(self, value: Any) -> Any:
        return base64.b64encode(value).decode()

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        return {"type": "string", "contentEncoding": "base64"}


def from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Wrong(described(text), "base64", "encode the bytes as base64") from None


class Anything(Kind):
    """Any inside a container: plain data (None, bool, numbers, str, bytes, list, tuple, dict) and arrays."""

    exact = frozenset({type(None), bool, int, float, str, bytes})
    arrays = True

    def check(self, value: Any, depth: int = 0) -> Any:
        if type(value) in self.exact:
            return value
        if depth > DEPTH:
            raise Wrong("nested too deeply", f"at most {DEPTH} levels", _BOUND_MEND)
        if isinstance(value, np.ndarray):
            return Array("an array").check(value)
        if type(value) in (list, tuple):
            return rebuilt(value, [self._item(item, f"[{i}]", depth) for i, item in enumerate(value)])
        if type(value) is dict:
            for key in value:
                if not isinstance(key, str | int):
                    raise Wrong(f"a dict with a key of type {type(key).__name__}", "keys of str or int")
            items = [self._item(item, f"[{key!r}]", depth) for key, item in value.items()]
            return rebuilt_dict(value, items)
        if is_tensor(value) or isinstance(value, str | int | float):
            return value
        raise Wrong(described(value), "plain data", "name the type in the annotation")

    def _item(self, item: Any, step: str, depth: int) -> Any:
        try:
            return self.check(item, depth + 1)
        except Wrong as wrong:
            raise wrong.under(step) from None

    def dump(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self.dump(item) for item in value]
        if isinstance(value, dict):
            return {str(key): self.dump(item) for key, item in value.items()}
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        if isinstance(value, enum.Enum):
            return self.dump(value.value)
        if isinstance(value, float):
            return Float("float").dump(value)
        return dump_array(value) if isinstance(value, np.ndarray) or is_tensor(value) else value


def rebuilt(value: Any, items: list[Any]) -> Any:
    """The same list or tuple where nothing in it changed; otherwise a new one, so that the sender's stays as it was."""
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return type(value)(items)


def rebuilt_dict(value: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    if all(new is old for new, old in zip(items, value.values(), strict=True)):
        return value
    return dict(zip(value, items, strict=True))


class Choice(Kind):
    """Literal[...]: one of a few values, of the same type too (True is no 1)."""

    def __init__(self, name: str, values: tuple[Any, ...]) -> None:
        super().__init__(name)
        self.values = values

    def check(self, value: Any) -> Any:
        for choice in self.values:
            if type(value) is type(choice) and value == choice:
                return value
        raise Wrong(described(value), self.name)

    def parse(self, plain: Any, json: bool) -> Any:
        for choice in self.values:
            value = choice.value if isinstance(choice, enum.Enum) else choice
            if type(plain) is type(value) and plain == value:
                return choice
        return self.check(plain)

    def dump(self, value: Any) -> Any:
        return value.value if isinstance(value, enum.Enum) else value

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        return {"enum": [self.dump(value) for value in self.values]}


class Member(Kind):
    """A member of an Enum; outside it is its value."""

    def __init__(self, cls: type[enum.Enum]) -> None:
        super().__init__(cls.__name__)
        self.cls, self.exact = cls, frozenset({cls})

    def parse(self, plain: Any, json: bool) -> Any:
        if isinstance(plain, self.cls):
            return plain
        for member in self.cls:
            if type(member.value) is type(plain) and member.value == plain:
                return member
        values = " | ".join(repr(member.value) for member in self.cls)
        raise Wrong(described(plain), f"{self.name}: {values}")

    def dump(self, value: Any) -> Any:
        return value.value

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        return {"enum": [member.value for member in self.cls]}


class ListOf(Kind):
    """list[T]. A list of plain numbers or strings is checked at the speed of C."""

    def __init__(self, name: str, item: Kind) -> None:
        super().__init__(name)
        self.item, self.arrays = item, item.arrays

    def check(self, value: Any) -> Any:
        if type(value) is not list:
            raise Wrong(described(value), self.name, "write list(...)" if isinstance(value, tuple | set) else "")
        if set(map(type, value)) <= self.item.exact:
            return value
        items = _each(value, self.item.check)
        return rebuilt(value, items) if self.arrays else value

    def parse(self, plain: Any, json: bool) -> Any:
        if type(plain) is not list:
            raise Wrong(described(plain), self.name)
        return _each(plain, lambda item: self.item.parse(item, json))

    def dump(self, value: Any) -> Any:
        return [self.item.dump(item) for item in value]

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema(defs)}


class TupleOf(Kind):
    """tuple[A, B] with its own kind for each place, or tuple[T, ...]; in JSON a list."""

    def __init__(self, name: str, items: tuple[Kind, ...], rest: Kind | None) -> None:
        super().__init__(name)
        self.items, self.rest = items, rest
        self.arrays = any(kind.arrays for kind in (*items, *([rest] if rest else [])))

    def _kinds(self, value: Sequence[Any]) -> Sequence[Kind]:
        if self.rest is not None:
            return [self.rest] * len(value)
        if len(value) != len(self.items):
            raise Wrong(described(value), self.name)
        return self.items

    def check(self, value: Any) -> Any:
        if type(value) is not tuple:
            raise Wrong(described(value), self.name, "write tuple(...)" if isinstance(value, list) else "")
        if self.rest is not None and set(map(type, value)) <= self.rest.exact:
            return value
        items = _pairs(self._kinds(value), value, lambda kind, item: kind.check(item))
        return rebuilt(value, items) if self.arrays else value

    def parse(self, plain: Any, json: bool) -> Any:
        if not isinstance(plain, list if json else tuple):
            raise Wrong(described(plain), self.name)
        return tuple(_pairs(self._kinds(plain), plain, lambda kind, item: kind.parse(item, json)))

    def dump(self, value: Any) -> Any:
        return [kind.dump(item) for kind, item in zip(self._kinds(value), value, strict=True)]

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        if self.rest is not None:
            return {"type": "array", "items": self.rest.schema(defs)}
        places = [kind.schema(defs) for kind in self.items]
        return {"type": "array", "prefixItems": places, "minItems": len(places), "maxItems": len(places)}


def _each(values: Sequence[Any], act: Callable[[Any], Any]) -> list[Any]:
    out = []
    for index, item in enumerate(values):
        try:
            out.append(act(item))
        except Wrong as wrong:
            raise wrong.under(f"[{index}]") from None
    return out


def _pairs(kinds: Sequence[Kind], values: Sequence[Any], act: Callable[[Kind, Any], Any]) -> list[Any]:
    left = iter(kinds)
    return _each(values, lambda item: act(next(left), item))


class DictOf(Kind):
    """dict[str, T] or dict[int, T]; JSON's keys are strings."""

    def __init__(self, name: str, key: Kind, item: Kind) -> None:
        super().__init__(name)
        self.key, self.item, self.arrays = key, item, item.arrays

    def check(self, value: Any) -> Any:
        if type(value) is not dict:
            raise Wrong(described(value), self.name)
        if set(map(type, value)) <= self.key.exact and set(map(type, value.values())) <= self.item.exact:
            return value
        _each(list(value), self.key.check)
        items = [self._item(key, item, self.item.check) for key, item in value.items()]
        return rebuilt_dict(value, items) if self.arrays else value

    def parse(self, plain: Any, json: bool) -> Any:
        if type(plain) is not dict:
            raise Wrong(described(plain), self.name)
        return {
            self._key(key, json): self._item(key, item, lambda one: self.item.parse(one, json)) for key, item in plain.items()
        }

    def _key(self, key: Any, json: bool) -> Any:
        if json and int in self.key.exact and isinstance(key, str) and key.lstrip("-").isdecimal() and len(key) < 40:
            return int(key)
        try:
            return self.key.parse(key, json)
        except Wrong as wrong:
            raise wrong.under(" key") from None

    def _item(self, key: Any, item: Any, act: Callable[[Any], Any]) -> Any:
        try:
            return act(item)
        except Wrong as wrong:
            raise wrong.under(f"[{key!r}]" if len(repr(key)) < 40 else "[...]") from None

    def dump(self, value: Any) -> Any:
        return {str(self.key.dump(key)): self.item.dump(item) for key, item in value.items()}

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.item.schema(defs)}


class Union(Kind):
    """A | B. Structures are told apart by their class; in JSON by a "type" that names it."""

    def __init__(self, name: str, kinds: tuple[Kind, ...]) -> None:
        super().__init__(name)
        self.kinds = kinds
        self.exact = frozenset().union(*(kind.exact for kind in kinds))
        self.arrays = any(kind.arrays for kind in kinds)
        named = [kind for kind in kinds if kind.structure]
        tagged = len(named) > 1 and not any(isinstance(kind, Record) and "type" in kind.names for kind in named)
        self.tags = {kind.structure: kind for kind in named} if tagged else {}
        self.structures = {kind.structure: kind for kind in named}

    def check(self, value: Any) -> Any:
        if type(value) in self.exact:
            return value
        return self._first(value, lambda kind: kind.check(value))

    def parse(self, plain: Any, json: bool) -> Any:
        if isinstance(plain, Fields):
            kind = self.structures.get(plain.name)
            if kind is None:
                raise Wrong(f"a structure `{plain.name[:80]}`", self.name)
            return kind.parse(plain, json)
        if json and self.tags and isinstance(plain, dict) and any(kind.structure for kind in self.kinds):
            tag = plain.get("type")
            if isinstance(tag, str) and tag in self.tags:
                return self.tags[tag].parse({key: item for key, item in plain.items() if key != "type"}, json)
        for kind in self.kinds:
            if type(plain) in kind.exact and not isinstance(kind, Float):
                return kind.parse(plain, json)
        return self._first(plain, lambda kind: kind.parse(plain, json))

    def _first(self, value: Any, act: Callable[[Kind], Any]) -> Any:
        deepest = None
        for kind in self.kinds:
            try:
                return act(kind)
            except Wrong as wrong:
                if wrong.path and (deepest is None or len(wrong.path) > len(deepest.path)):
                    deepest = wrong
        raise deepest or Wrong(described(value), self.name)

    def dump(self, value: Any) -> Any:
        for kind in self.kinds:
            try:
                kind.check(value)
            except Wrong:
                continue
            plain = kind.dump(value)
            return {"type": kind.structure, **plain} if kind.structure in self.tags else plain
        raise Wrong(described(value), self.name)

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        return {"anyOf": [self._tagged(kind, kind.schema(defs)) for kind in self.kinds]}

    def _tagged(self, kind: Kind, schema: dict[str, Any]) -> dict[str, Any]:
        if kind.structure not in self.tags:
            return schema
        tag = {"type": "object", "properties": {"type": {"const": kind.structure}}, "required": ["type"]}
        return {"allOf": [tag, schema]}


class Record(Kind):
    """A dataclass, or a message of ours: checked field by field, except that messages answer for themselves.

    A subclass is refused: over a process boundary it would lose what it adds.
    """

    MESSAGES: ClassVar[str] = "chains.messages"

    def __init__(self, cls: type) -> None:
        super().__init__(cls.__name__)
        self.cls, self.structure = cls, cls.__name__
        self.names = tuple(field.name for field in dataclasses.fields(cls) if field.init)
        self.kinds: dict[str, Kind] = {}
        self.message = cls.__module__ == self.MESSAGES
        if self.message:
            self.exact = frozenset({cls})

    def fill(self, kinds: dict[str, Kind]) -> None:
        """Give the fields their kinds; apart from making it, so that a structure may hold its own kind."""
        self.kinds = kinds
        self.arrays = not self.message and any(kind.arrays for kind in kinds.values())

    def check(self, value: Any) -> Any:
        if type(value) is not self.cls:
            more = f"write {type(value).__name__} in the annotation" if isinstance(value, self.cls) else ""
            raise Wrong(described(value), self.name, more)
        if self.message:
            return value
        changed: dict[str, Any] = {}
        for name, kind in self.kinds.items():
            old = getattr(value, name)
            new = _field(name, lambda kind=kind, old=old: kind.check(old))  # type: ignore[misc]
            if new is not old:
                changed[name] = new
        if not changed:
            return value
        twin = copy.copy(value)
        for name, new in changed.items():
            object.__setattr__(twin, name, new)
        return twin

    def parse(self, plain: Any, json: bool) -> Any:
        if not isinstance(plain, dict):
            raise Wrong(described(plain), f"{self.name} (an object with {', '.join(self.names)})" if json else self.name)
        values = {}
        for name, item in plain.items():
            kind = self.kinds.get(name)
            if kind is None:
                raise Wrong(f"given an unknown field `{str(name)[:80]}`", f"the fields {', '.join(self.names) or 'of ' + self.name}")
            values[name] = _field(name, lambda kind=kind, item=item: kind.parse(item, json))  # type: ignore[misc]
        try:
            return self.cls(**values)
        except TypeError:
            missing = [name for name in self._required() if name not in values]
            if not missing:
                raise Wrong("refused by its own __init__", self.name) from None
            raise Wrong("without " + ", ".join(f"`{name}`" for name in missing), self.name) from None
        except ChainsError as error:
            raise Wrong(f"refused ({error.message})", self.name, error.mend) from None
        except Exception as error:  # the user's __post_init__
            raise Wrong(f"refused by its own __post_init__ ({type(error).__name__})", self.name) from error

    def _required(self) -> list[str]:
        empty = dataclasses.MISSING
        fields = [field for field in dataclasses.fields(self.cls) if field.init]
        return [field.name for field in fields if field.default is empty and field.default_factory is empty]

    def dump(self, value: Any) -> Any:
        return {name: kind.dump(getattr(value, name)) for name, kind in self.kinds.items()}

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        if self.name not in defs:
            defs[self.name] = {}
            defs[self.name] = {
                "type": "object",
                "properties": {name: kind.schema(defs) for name, kind in self.kinds.items()},
                "required": self._required(),
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{self.name}"}


def _field(name: str, act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Wrong as wrong:
        raise wrong.under(f".{name}") from None


class Pydantic(Kind):
    """A pydantic model (checked when it was made), or a plain type that pydantic reads and writes, such as a date."""

    def __init__(self, cls: type, *, model: bool) -> None:
        super().__init__(cls.__name__)
        self.cls, self.model, self.exact = cls, model, frozenset({cls})
        self.structure = cls.__name__ if model else ""
        self._adapter: Any = None

    @property
    def adapter(self) -> Any:
        if self._adapter is None:
            from pydantic import TypeAdapter

            self._adapter = TypeAdapter(self.cls)
        return self._adapter

    def check(self, value: Any) -> Any:
        if type(value) is self.cls:
            return value
        more = f"write {type(value).__name__} in the annotation" if isinstance(value, self.cls) else ""
        raise Wrong(described(value), self.name, more)

    def parse(self, plain: Any, json: bool) -> Any:
        if type(plain) is self.cls:
            return plain
        if not isinstance(plain, dict if self.model else str):
            raise Wrong(described(plain), self.name)
        from pydantic import ValidationError

        try:
            options = {} if json or not self.model else {"by_alias": True, "by_name": True}
            return self.adapter.validate_python(dict(plain) if self.model else plain, **options)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
            raise Wrong("refused: " + first["msg"][:1].lower() + first["msg"][1:], self.name).under(path) from None
        except Exception as error:  # a validator of the user's that raises something else
            raise Wrong(f"refused by a validator ({type(error).__name__})", self.name) from error

    def dump(self, value: Any) -> Any:
        return self.adapter.dump_python(value, mode="json", by_alias=True)

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = self.adapter.json_schema(ref_template="#/$defs/{model}")
        defs.update(own.pop("$defs", {}))
        if not self.model:
            return own
        defs.setdefault(self.name, own)
        return {"$ref": f"#/$defs/{self.name}"}


class Constrained(Kind):
    """Annotated[T, Field(ge=0)]: T, and what pydantic's constraints say."""

    def __init__(self, annotation: Any, inner: Kind) -> None:
        super().__init__(inner.name)
        self.inner, self.arrays = inner, inner.arrays
        from pydantic import ConfigDict, TypeAdapter

        self.adapter: Any = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))

    def check(self, value: Any) -> Any:
        value = self.inner.check(value)
        from pydantic import ValidationError

        try:
            self.adapter.validate_python(value)
        except ValidationError as error:
            message = error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"]
            raise Wrong(described(value), f"{self.name} ({message[:1].lower()}{message[1:]})") from None
        return value

    def parse(self, plain: Any, json: bool) -> Any:
        return self.check(self.inner.parse(plain, json))

    def dump(self, value: Any) -> Any:
        return self.inner.dump(value)

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = self.adapter.json_schema(ref_template="#/$defs/{model}")
        defs.update(own.pop("$defs", {}))
        return own


class Array(Kind):
    """A numpy array without Python objects, of one scalar type if the annotation names it; it arrives read-only."""

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
    """A torch tensor, known by its class's name: torch is not imported for it. Torch has no read-only tensors."""

    def check(self, value: Any) -> Any:
        if not is_tensor(value):
            raise Wrong(described(value), self.name, "write torch.from_numpy(...)" if isinstance(value, np.ndarray) else "")
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
    """An array in JSON: {"dtype", "shape", "base64"}, little-endian, C order. A tensor goes through numpy (bfloat16 as float32)."""
    if is_tensor(value):
        value = value.detach().cpu()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    little = np.ascontiguousarray(value.astype(value.dtype.newbyteorder("<"), copy=False))
    return {"dtype": value.dtype.name, "shape": list(value.shape), "base64": base64.b64encode(little.tobytes()).decode()}


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
