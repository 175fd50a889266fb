"""From an annotation to the Kind of its values, or to the reason why such a value cannot cross a hop."""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import datetime
import decimal
import enum
import types
import typing
import uuid
from typing import Any

import numpy as np

from chains.dsl import arrays, structures, values
from chains.dsl.kind import Kind

ASYNC_STREAMS = (abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator)
SYNC_STREAMS = (abc.Iterator, abc.Iterable, abc.Generator)
_SCALARS = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, uuid.UUID, decimal.Decimal)
_PLAIN = {str: "string", bool: "boolean", int: "integer", type(None): "null"}
_INSTEAD: dict[Any, str] = {
    set: "list[str]", frozenset: "list[str]", abc.Set: "list[str]", abc.Sequence: "list[str]",
    abc.Collection: "list[str]", abc.MutableSequence: "list[str]",
    abc.Mapping: "dict[str, str]", abc.MutableMapping: "dict[str, str]",
    bytearray: "bytes", memoryview: "bytes", complex: "tuple[float, float]",
}  # fmt: skip


class Unsupported(Exception):
    """An annotation whose values cannot cross a hop: what was found, and what to write."""

    def __init__(self, found: str, write: str) -> None:
        super().__init__(found)
        self.found, self.write = found, write


def written(annotation: Any) -> str:
    """An annotation as one writes it: `list[int] | None`, `NDArray[float32]`, `AsyncIterator[Text]`."""
    if annotation is type(None) or annotation is None:
        return "None"
    if annotation is ...:
        return "..."
    if annotation is Any:
        return "Any"
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return written(args[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(written(arg) for arg in args)
    if origin is typing.Literal:
        return f"Literal[{', '.join(repr(arg) for arg in args)}]"
    if origin is np.ndarray:
        scalar = typing.get_args(args[1]) if len(args) > 1 else ()
        return f"NDArray[{written(scalar[0])}]" if scalar else "NDArray"
    if origin is not None:
        inside = ", ".join(
            "[" + ", ".join(map(written, arg)) + "]" if isinstance(arg, list) else written(arg) for arg in args
        )
        name = getattr(origin, "__name__", str(origin))
        return f"{name}[{inside}]" if inside else name
    return getattr(annotation, "__name__", None) or str(annotation)


def stream_item(annotation: Any) -> tuple[str, Any] | None:
    """("async" | "sync", item's annotation) of a stream's annotation, None for a plain value's.

    The item of an unparametrised stream is Any.
    """
    while typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    origin = typing.get_origin(annotation) or annotation
    args = typing.get_args(annotation)
    if origin in ASYNC_STREAMS:
        return "async", args[0] if args else Any
    if origin in SYNC_STREAMS:
        return "sync", args[0] if args else Any
    return None


def kind_of(annotation: Any) -> Kind:
    """The Kind of an annotation. Raises Unsupported."""
    return _compile(annotation, {}, top=True)


def _compile(annotation: Any, memo: dict[Any, Kind], *, top: bool = False) -> Kind:
    if annotation in (Any, object):
        if top:
            raise Unsupported(f"is `{written(annotation)}`", "name the type that flows, e.g. str or a dataclass")
        return values.Anything("plain data")
    if annotation is None:
        annotation = type(None)
    origin = typing.get_origin(annotation)
    if origin is not None:
        return _generic(annotation, origin, typing.get_args(annotation), memo)
    if isinstance(annotation, typing.NewType):
        return _compile(annotation.__supertype__, memo, top=top)
    if type(annotation).__name__ == "TypeAliasType":
        return _compile(annotation.__value__, memo, top=top)
    if not isinstance(annotation, type):
        raise _unsupported(annotation)
    return _class(annotation, memo)


def _class(cls: type, memo: dict[Any, Kind]) -> Kind:
    if cls in memo:
        return memo[cls]
    if cls in _PLAIN:
        return values.Plain(cls, _PLAIN[cls])
    if cls is float:
        return values.Float("float")
    if cls is bytes:
        return values.Bytes("bytes")
    anything = values.Anything("plain data")
    if cls is list:
        return values.ListOf("list", anything)
    if cls is tuple:
        return values.TupleOf("tuple", (), anything)
    if cls is dict:
        return values.DictOf("dict", _key(str | int, memo), anything)
    if cls is np.ndarray:
        return arrays.Array("an array")
    if cls.__name__ == "Tensor" and cls.__module__.partition(".")[0] == "torch":
        return arrays.TorchTensor("a torch tensor")
    if issubclass(cls, enum.Enum):
        return values.Member(cls)
    if cls in _SCALARS:
        return structures.Pydantic(cls, model=False)
    if hasattr(cls, "__pydantic_root_model__") and cls.__pydantic_root_model__:
        inner = written(cls.model_fields["root"].annotation)  # type: ignore[attr-defined]
        raise Unsupported(f"is the root model `{cls.__name__}`", f"write {inner}")
    if hasattr(cls, "__pydantic_validator__") and hasattr(cls, "model_fields"):
        return structures.Pydantic(cls, model=True)
    if dataclasses.is_dataclass(cls) and not hasattr(cls, "__chainlet__"):
        return _record(cls, memo)
    raise _unsupported(cls)


def _record(cls: type, memo: dict[Any, Kind]) -> Kind:
    record = memo[cls] = structures.Record(cls)
    try:
        hints = typing.get_type_hints(cls, include_extras=True, localns=_local(cls))
    except Exception as error:  # whatever evaluating the user's annotations raises
        raise Unsupported(
            f"is `{cls.__name__}`, whose fields cannot be read: {error}",
            f"mend the annotations of {cls.__name__}",
        ) from None
    kinds = {}
    for name in record.names:
        try:
            kinds[name] = _compile(hints[name], memo)
        except Unsupported as error:
            raise Unsupported(f"is `{cls.__name__}`, whose field `{name}` {error.found}", error.write) from None
    record.fill(kinds)
    return record


def _local(cls: type) -> dict[str, Any]:
    """The class's own name, so that a structure of a function's inside may hold itself."""
    return {cls.__name__: cls}


def _generic(annotation: Any, origin: Any, args: tuple[Any, ...], memo: dict[Any, Kind]) -> Kind:
    name = written(annotation)
    if origin is typing.Annotated:
        inner = _compile(args[0], memo, top=True)
        constraints = [
            extra for extra in args[1:] if type(extra).__module__.partition(".")[0] in ("pydantic", "annotated_types")
        ]
        return structures.Constrained(annotation, inner) if constraints else inner
    if origin in (typing.Union, types.UnionType):
        return _union(name, tuple(_compile(arg, memo) for arg in args))
    if origin is typing.Literal:
        return values.Choice(name, args)
    if origin is list:
        return values.ListOf(name, _compile(args[0], memo))
    if origin is tuple:
        if len(args) == 2 and args[1] is ...:
            return values.TupleOf(name, (), _compile(args[0], memo))
        return values.TupleOf(name, tuple(_compile(arg, memo) for arg in args), None)
    if origin is dict:
        return values.DictOf(name, _key(args[0], memo), _compile(args[1], memo))
    if origin is np.ndarray:
        scalar = (typing.get_args(args[1]) or (None,))[0] if len(args) > 1 else None
        scalar = typing.get_origin(scalar) or scalar
        concrete = isinstance(scalar, type) and issubclass(scalar, np.generic) and scalar is not np.generic
        return arrays.Array(name, scalar if concrete else None)
    raise _unsupported(annotation)


def _key(annotation: Any, memo: dict[Any, Kind]) -> Kind:
    kind = _compile(annotation, memo)
    strings = isinstance(kind, values.Choice) and all(isinstance(value, str) for value in kind.values)
    if (kind.exact and kind.exact <= {str, int}) or strings or isinstance(kind, values.Anything):
        return kind
    raise Unsupported(f"has keys of `{written(annotation)}`", "use keys of str or int, e.g. dict[str, float]")


def _union(name: str, kinds: tuple[Kind, ...]) -> Kind:
    structures = [kind.structure for kind in kinds if kind.structure]
    if len(set(structures)) < len(structures):
        raise Unsupported(f"is `{name}`, two structures of one name", "give one of the two classes another name")
    return values.Union(name, kinds)


def _unsupported(annotation: Any) -> Unsupported:
    name, origin = written(annotation), typing.get_origin(annotation) or annotation
    if stream_item(annotation) is not None and origin is not abc.Iterable:
        return Unsupported(
            f"has a stream inside another type, `{name}`",
            "make the stream a parameter or a result of its own",
        )
    if origin in _INSTEAD:
        inside = [written(arg) for arg in typing.get_args(annotation)]
        outer = _INSTEAD[origin].partition("[")[0]
        return Unsupported(
            f"is `{name}`", f"write {outer}[{', '.join(inside)}]" if inside else f"write {_INSTEAD[origin]}"
        )
    if origin is abc.Iterable:
        return Unsupported(
            f"is `{name}`", f"write list[{', '.join(map(written, typing.get_args(annotation))) or 'str'}]"
        )
    if origin is abc.Callable:
        return Unsupported(f"is `{name}`: code cannot cross a hop", 'name what to do, e.g. Literal["upper", "lower"]')
    if isinstance(annotation, typing.TypeVar):
        return Unsupported(f"is the type variable `{name}`", "name the type that flows")
    if isinstance(annotation, type):
        return _class_mend(annotation)
    return Unsupported(
        f"is `{name}`, which cannot cross a hop",
        "send plain data: a dataclass, a pydantic model, list, dict, str",
    )


def _class_mend(cls: type) -> Unsupported:
    if hasattr(cls, "__chainlet__"):
        name = cls.__name__
        return Unsupported(
            f"is the chainlet `{name}`: it is no value",
            f"depend on it, {name.lower()}: {name} = depends({name})",
        )
    if typing.is_typeddict(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields")):
        return Unsupported(f"is `{cls.__name__}`", f"write it as a dataclass: @dataclass class {cls.__name__}")
    if issubclass(cls, np.generic):
        plain = "float" if issubclass(cls, np.floating) else "int" if issubclass(cls, np.integer) else "bool"
        return Unsupported(f"is `{cls.__name__}`, a scalar of numpy", f"write {plain}")
    return Unsupported(
        f"is `{cls.__name__}`, which cannot cross a hop",
        "send plain data: a dataclass, a pydantic model, list, dict, str",
    )
