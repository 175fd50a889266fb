"""Plain values and containers: one Kind per sort of annotation."""

from __future__ import annotations

import base64
import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chains.dsl.arrays import Array, dump_array, is_tensor
from chains.dsl.kind import DEPTH, Fields, Kind, Wrong, described, from_base64


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
    """A float; an int passes too, a bool does not. JSON has no NaN or infinity: there they are the strings of
    their names.
    """

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


class Anything(Kind):
    """Any inside a container: plain data (None, bool, numbers, str, bytes, list, tuple, dict) and arrays."""

    exact = frozenset({type(None), bool, int, float, str, bytes})
    types = frozenset({list, tuple, dict, np.ndarray})
    arrays = True

    def check(self, value: Any, depth: int = 0) -> Any:
        if type(value) in self.exact:
            return value
        if depth > DEPTH:
            raise Wrong("nested too deeply", f"at most {DEPTH} levels", "send less deeply nested data")
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
    """The same list or tuple where nothing in it changed; otherwise a new one, so that the sender's stays as
    it was.
    """
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
        self.types = frozenset(map(type, values))

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

    types = frozenset({list})

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
        if set(map(type, plain)) <= self.item.exact:
            return plain
        return _each(plain, lambda item: self.item.parse(item, json))

    def dump(self, value: Any) -> Any:
        return [self.item.dump(item) for item in value]

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema(defs)}


class TupleOf(Kind):
    """tuple[A, B] with its own kind for each place, or tuple[T, ...]; in JSON a list."""

    types = frozenset({tuple})

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
        if self.rest is not None and set(map(type, plain)) <= self.rest.exact:
            return tuple(plain)
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

    types = frozenset({dict})

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
            self._key(key, json): self._item(key, item, lambda one: self.item.parse(one, json))
            for key, item in plain.items()
        }

    def _key(self, key: Any, json: bool) -> Any:
        if json and self.key.exact == {int} and isinstance(key, str) and key.lstrip("-").isdecimal() and len(key) < 40:
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
        self.types = frozenset().union(*(kind.types | kind.exact for kind in kinds))
        self.arrays = any(kind.arrays for kind in kinds)
        named = [kind for kind in kinds if kind.structure]
        tagged = len(named) > 1 and not any("type" in kind.names for kind in named)
        self.structures = {kind.structure: kind for kind in named}
        self.tags = self.structures if tagged else {}
        fitting = {cls: [kind for kind in kinds if cls in kind.types | kind.exact] for cls in self.types}
        self.only = {cls: found[0] for cls, found in fitting.items() if len(found) == 1}

    def check(self, value: Any) -> Any:
        if type(value) in self.exact:
            return value
        if type(value) in self.only:
            return self.only[type(value)].check(value)
        return self._first(value, lambda kind: kind.check(value))

    def parse(self, plain: Any, json: bool) -> Any:
        if type(plain) in self.exact:
            return plain
        if isinstance(plain, Fields):
            if plain.name not in self.structures:
                raise Wrong(described(plain), self.name)
            return self.structures[plain.name].parse(plain, json)
        tag = plain.get("type") if json and self.tags and isinstance(plain, dict) else None
        if isinstance(tag, str) and tag in self.tags:
            return self.tags[tag].parse({key: item for key, item in plain.items() if key != "type"}, json)
        return self._first(plain, lambda kind: kind.parse(plain, json))

    def _first(self, value: Any, act: Callable[[Kind], Any]) -> Any:
        """What the first kind that takes it makes of a value; the error of the one that came furthest otherwise."""
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
