"""The methods of a chainlet, read from their resolved annotations, and the checks of what goes in and out."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chains.dsl.annotations import kind_of, written
from chains.dsl.kind import Kind, Wrong
from chains.dsl.specs import Batching
from chains.errors import InvalidValue

EMPTY = inspect.Parameter.empty


class Checker:
    """What one annotation admits. Raises annotations.Unsupported for one whose values cannot cross a hop."""

    __slots__ = ("_exact", "_kind", "annotation", "may_hold_arrays")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self._kind: Kind = kind_of(annotation)
        self._exact = self._kind.exact
        self.may_hold_arrays = self._kind.arrays

    def __repr__(self) -> str:
        return f"Checker({self.name})"

    @property
    def name(self) -> str:
        return written(self.annotation)

    def check(self, value: Any, where: str) -> Any:
        """The same object, with arrays in it as read-only views. Strict: nothing is converted.

        Raises InvalidValue: where, what was found, what is expected.
        """
        if type(value) in self._exact:
            return value
        try:
            return self._kind.check(value)
        except Wrong as wrong:
            raise wrong.error(where) from None
        except RecursionError:
            raise _too_deep(where) from None

    def parse(self, plain: Any, where: str) -> Any:
        """The value that plain JSON stands for: objects become structures, lists tuples, base64 bytes.
        InvalidValue if none.
        """
        return self._read(plain, where, json=True)

    def revive(self, tree: Any, where: str) -> Any:
        """The value that a codec's tree stands for; as strict as `check`, with structures as `kind.Fields`."""
        return self._read(tree, where, json=False)

    def _read(self, plain: Any, where: str, *, json: bool) -> Any:
        if type(plain) in self._exact:
            return plain
        try:
            return self._kind.parse(plain, json)
        except Wrong as wrong:
            raise wrong.error(where) from wrong.__cause__
        except RecursionError:
            raise _too_deep(where) from None

    def dump(self, value: Any) -> Any:
        """The value as plain JSON, such that `parse` gives it back."""
        try:
            return self._kind.dump(value)
        except Wrong as wrong:
            raise wrong.error("the value") from None
        except RecursionError:
            raise _too_deep("the value") from None

    def schema(self) -> dict[str, Any]:
        """The JSON schema of what `parse` reads, with shared parts under "$defs"."""
        defs: dict[str, Any] = {}
        own = self._kind.schema(defs)
        return {**own, "$defs": defs} if defs else own


def _too_deep(where: str) -> InvalidValue:
    return InvalidValue(f"{where} is nested too deeply, or holds itself", mend="send less deeply nested data")


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a method. `stream`: an iterator's items flow, and `checker` is the item's."""

    name: str
    annotation: Any
    checker: Checker
    stream: bool = False
    default: Any = EMPTY


@dataclass(frozen=True, slots=True)
class Method:
    """One method that can be called over a hop; `result` is the item's checker where it streams out.

    `blocking`: a plain `def`, to be run off the loop. With `batch` the checkers are those of one call; the
    method itself takes and gives lists of them. `prefix` names the parameter that carries a prompt.
    """

    chainlet: str
    name: str
    params: tuple[Param, ...]
    result: Checker
    streams_out: bool
    blocking: bool
    idempotent: bool = False
    raises: tuple[type[BaseException], ...] = ()
    batch: Batching | None = None
    prefix: str = ""
    where: str = ""
    doc: str = ""
    streams_in: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "streams_in", any(param.stream for param in self.params))

    @property
    def label(self) -> str:
        return f"{self.chainlet}.{self.name}"

    @property
    def shape(self) -> str:
        """The signature in one line: `transcribe(audio: stream of Audio) -> stream of Text`."""
        params = ", ".join(
            f"{param.name}: {'stream of ' if param.stream else ''}{param.checker.name}"
            + ("" if param.default is EMPTY else f" = {_brief(param.default)}")
            for param in self.params
        )
        return f"{self.name}({params}) -> {'stream of ' if self.streams_out else ''}{self.result.name}"

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, defaults filled in, each value checked (of a stream only that it is one).
        InvalidValue.
        """
        params = self.params
        if len(args) > len(params):
            raise InvalidValue(
                f"{self.label}() takes {len(params)} arguments, {len(args)} were given", mend=self._write()
            )
        bound: dict[str, Any] = {}
        named = 0
        for index, param in enumerate(params):
            name = param.name
            if index < len(args):
                value = args[index]
                if name in kwargs:
                    raise InvalidValue(f"{self.label}() was given `{name}` twice", mend=self._write())
            elif name in kwargs:
                value = kwargs[name]
                named += 1
            elif param.default is not EMPTY:
                bound[name] = param.default
                continue
            else:
                raise InvalidValue(f"{self.label}() was called without `{name}`", mend=self._write())
            if param.stream:
                bound[name] = self._stream(param, value)
            elif type(value) in param.checker._exact:
                bound[name] = value
            else:
                bound[name] = param.checker.check(value, f"{self.label}({name}=)")
        if named < len(kwargs):
            known = {param.name for param in params}
            unknown = next(name for name in kwargs if name not in known)
            raise InvalidValue(f"{self.label}() has no parameter `{unknown}`", mend=self._write())
        return bound

    def _stream(self, param: Param, value: Any) -> Any:
        if hasattr(value, "__aiter__") or hasattr(value, "__next__") or isinstance(value, list | tuple):
            return value  # a plain iterator is drawn from in a thread
        found = type(value).__name__
        raise InvalidValue(
            f"{self.label}({param.name}=) is {found}, expected a stream of {param.checker.name}",
            mend="pass an async iterator: another method's stream, or an `async def` that yields",
        )

    def _write(self) -> str:
        return f"write {self.shape.partition(' -> ')[0]}"

    def schema(self) -> dict[str, Any]:
        """What a gateway publishes: {"name", "doc", "params": {name: {"schema", "stream", "required"}},
        "result", ...}.
        """
        params = {
            param.name: {
                "schema": param.checker.schema(),
                "stream": param.stream,
                "required": param.default is EMPTY,
            }
            for param in self.params
        }
        result = {"schema": self.result.schema(), "stream": self.streams_out}
        return {
            "name": self.name,
            "doc": self.doc,
            "params": params,
            "result": result,
            "idempotent": self.idempotent,
        }


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
