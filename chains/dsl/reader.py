"""Reads the methods and hooks of a chainlet's class, and collects every fault that it finds there."""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from chains.dsl import source
from chains.dsl.annotations import Unsupported, stream_item, written
from chains.dsl.signature import EMPTY, Checker, Method, Param
from chains.dsl.specs import Batching
from chains.errors import Fault

HOOKS = ("load", "warm", "close")


@dataclass(frozen=True, slots=True)
class MethodOptions:
    """What @method says of one method. `faults` are (found, write)."""

    idempotent: bool = False
    raises: tuple[type[BaseException], ...] = ()
    batch: Batching | None = None
    prefix: str = ""
    faults: tuple[tuple[str, str], ...] = ()


def functions(cls: type) -> dict[str, types.FunctionType]:
    """The functions that count as the chainlet's own: of itself and of the chainlets it inherits from, and of
    other bases those that are marked with @method.
    """
    found: dict[str, types.FunctionType] = {}
    for owner in reversed(cls.__mro__):
        for name, fn in vars(owner).items():
            if isinstance(fn, types.FunctionType) and (
                hasattr(owner, "__chainlet__") or hasattr(fn, "__chainlet_method__")
            ):
                found[name] = fn
            elif hasattr(owner, "__chainlet__"):
                found.pop(name, None)
    return found


def read(cls: type, local: dict[str, Any] | None = None) -> tuple[dict[str, Method], list[Fault]]:
    """The public methods of a chainlet by name, and the faults of its methods and hooks. `local` are names
    around the class.
    """
    name, methods, faults = cls.__chainlet__.name, {}, []  # type: ignore[attr-defined]
    for attribute, fn in functions(cls).items():
        if attribute.startswith("_"):
            continue
        reading = _Reading(name, attribute, fn, local or {})
        if attribute in HOOKS:
            reading.hook()
        else:
            method = reading.method()
            if method is not None:
                methods[attribute] = method
        faults += reading.faults
    return methods, faults


@dataclass
class _Reading:
    """One function on its way to a Method, and the faults found on the way."""

    chainlet: str
    name: str
    fn: types.FunctionType
    local: dict[str, Any]
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        inner = inspect.unwrap(self.fn)
        self.inner = inner if isinstance(inner, types.FunctionType) else self.fn
        self.where = source.function_place(self.inner)
        self.options: MethodOptions = getattr(self.fn, "__chainlet_method__", MethodOptions())
        self.asynchronous = inspect.iscoroutinefunction(self.inner) or inspect.isasyncgenfunction(self.inner)
        self.yields = inspect.isgeneratorfunction(self.inner) or inspect.isasyncgenfunction(self.inner)

    def fault(self, found: str, write: str) -> None:
        self.faults.append(Fault(f"{self.where} ({self.chainlet}.{self.name})", found, write))

    def hook(self) -> None:
        if self.parameters():
            self.fault(
                f"takes arguments, but `{self.name}` is a hook that is called without any",
                f"write {self._def()}{self.name}(self)",
            )
        if self.yields:
            self.fault(
                f"yields, but `{self.name}` is a hook that is called once",
                "return instead, or call the method otherwise",
            )
        if hasattr(self.fn, "__chainlet_method__"):
            self.fault(
                f"is marked @method, but `{self.name}` is a hook and never called from outside",
                "call the method otherwise",
            )

    def parameters(self) -> list[inspect.Parameter]:
        """All but the first, which is self."""
        return list(inspect.signature(self.inner).parameters.values())[1:]

    def method(self) -> Method | None:
        for found, write in self.options.faults:
            self.fault(found, write)
        if not inspect.signature(self.inner).parameters:
            self.fault("has no `self`", f"write {self._def()}{self.name}(self)")
            return None
        self._missing()
        params = [param for parameter in self.parameters() if (param := self._param(parameter)) is not None]
        result = self._result()
        self._prefix([param.name for param in params if not param.stream])
        if self.faults or result is None:
            return None
        checker, streams_out, blocking = result
        return Method(
            self.chainlet,
            self.name,
            tuple(params),
            checker,
            streams_out,
            blocking,
            idempotent=self.options.idempotent,
            raises=self.options.raises,
            batch=self.options.batch,
            prefix=self.options.prefix,
            where=self.where,
            doc=inspect.getdoc(self.fn) or "",
        )

    def _prefix(self, names: list[str]) -> None:
        """What carries the prompt is one of these parameters."""
        if self.options.prefix and self.options.prefix not in names:
            found = f"has @method(prefix={self.options.prefix!r}), which is no parameter that carries a prompt"
            self.fault(found, f"name one of {', '.join(names)}" if names else "leave it out")

    def _def(self) -> str:
        return "async def " if self.asynchronous else "def "

    def _missing(self) -> None:
        """One fault for all annotations that a method lacks, with its whole first line as it should be."""
        lacking = [f"`{one.name}`" for one in self.parameters() if one.annotation is EMPTY and one.kind not in _STARS]
        missing = [f"no annotation on {', '.join(lacking)}"] if lacking else []
        if self.inner.__annotations__.get("return", EMPTY) is EMPTY:
            missing.append("no return annotation")
        if missing:
            self.fault(
                f"has {' and '.join(missing)}",
                f"write {self._fixed()}, or name it _{self.name} to keep it private",
            )

    def _fixed(self) -> str:
        """The `def` line with every annotation in place; what cannot be guessed is `str`."""
        parts = ["self"]
        for parameter in self.parameters():
            if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
                parts.append("*")
            hint = parameter.annotation
            if hint is EMPTY:
                default = parameter.default
                hint = type(default).__name__ if default is not EMPTY and default is not None else "str"
            text = f"{parameter.name}: {hint if isinstance(hint, str) else written(hint)}"
            parts.append(text if parameter.default is EMPTY else f"{text} = {parameter.default!r}")
        result = self.inner.__annotations__.get("return", EMPTY)
        shown = self._guessed() if result is EMPTY else result if isinstance(result, str) else written(result)
        return f"{self._def()}{self.name}({', '.join(parts)}) -> {shown}"

    def _guessed(self) -> str:
        if self.yields:
            return "AsyncIterator[str]" if self.asynchronous else "Iterator[str]"
        node = source.function_node(self.inner)
        returns = [one for one in ast.walk(node) if isinstance(one, ast.Return) and one.value] if node else [None]
        return "str" if returns else "None"

    def _resolved(self, raw: Any, what: str) -> Any:
        """What an annotation means, EMPTY where it means nothing (the fault is noted)."""
        names, file = self.inner.__globals__, self.inner.__code__.co_filename
        try:
            return source.resolve(raw, names, self.local, file)
        except source.Unresolved as error:
            self.fault(f"{what} {error.found}", error.write)
            return EMPTY

    def _param(self, parameter: inspect.Parameter) -> Param | None:
        name, what = parameter.name, f"parameter `{parameter.name}`"
        if parameter.kind in _STARS:
            star = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            self.fault(f"takes `{star}{name}`", "name each parameter, or take a list or a dict")
            return None
        if parameter.kind is parameter.POSITIONAL_ONLY:
            self.fault(f"{what} is positional only", "leave out the `/`, since arguments travel by name")
        if parameter.annotation is EMPTY:
            return None
        annotation = self._resolved(parameter.annotation, what)
        if annotation is EMPTY:
            return None
        stream = stream_item(annotation)
        if stream is not None:
            self._stream_param(what, stream, annotation, parameter)
        item = self._listed(annotation, what) if stream is None else stream[1]
        checker = self._checker(item, what, streamed="takes" if stream else "")
        if checker is None:
            return None
        if stream is None and parameter.default is not EMPTY:
            self._default(checker, parameter)
        return Param(name, annotation, checker, stream is not None, parameter.default)

    def _default(self, checker: Checker, parameter: inspect.Parameter) -> None:
        if self.options.batch is not None:
            return
        try:
            checker.check(parameter.default, "")
        except Exception:
            default = parameter.default
            plain = f"{type(default).__name__} = {default!r:.60}"
            typed = f"{checker.name} | None = None" if default is None else plain
            self.fault(
                f"parameter `{parameter.name}` is `{checker.name}`, its default {parameter.default!r:.60}",
                f"write {parameter.name}: {typed}",
            )

    def _stream_param(self, what: str, stream: tuple[str, Any], annotation: Any, parameter: inspect.Parameter) -> None:
        side, item = stream
        inner = written(item) if item is not Any else "Audio"
        result = self._plain_result()
        reads_async = self.asynchronous or (result is not None and result[0] == "async")
        if reads_async and side == "sync":
            self.fault(
                f"{what} is `{written(annotation)}`, which an `async def` cannot read without blocking",
                f"write {parameter.name}: AsyncIterator[{inner}]",
            )
        elif not reads_async and side == "async":
            self.fault(
                f"{what} is `{written(annotation)}`, which a plain `def` cannot read",
                f"write {parameter.name}: Iterator[{inner}], or make it async def {self.name}",
            )
        if self.options.batch is not None:
            self.fault(f"{what} is a stream, but the method is batched", "take lists, or leave out batch=")

    def _plain_result(self) -> tuple[str, Any] | None:
        raw = self.inner.__annotations__.get("return", EMPTY)
        try:
            return stream_item(source.resolve(raw, self.inner.__globals__, self.local, ""))
        except source.Unresolved:
            return None

    def _result(self) -> tuple[Checker, bool, bool] | None:
        raw = self.inner.__annotations__.get("return", EMPTY)
        annotation = EMPTY if raw is EMPTY else self._resolved(raw, "result")
        if annotation is EMPTY:
            return None
        stream = stream_item(annotation)
        self._yield_faults(stream, annotation)
        if stream is None:
            checker = self._checker(self._listed(annotation, "result"), "result")
        else:
            checker = self._checker(stream[1], "result", streamed="yields")
        blocking = not self.asynchronous and (stream is None or stream[0] == "sync")
        return None if checker is None else (checker, stream is not None, blocking)

    def _yield_faults(self, stream: tuple[str, Any] | None, annotation: Any) -> None:
        shown, wanted = written(annotation), "AsyncIterator" if self.asynchronous else "Iterator"
        inner = typing.get_args(annotation)[0] if typing.get_origin(annotation) is list else annotation
        item = written(inner) if stream is None else written(stream[1]) if stream[1] is not Any else "str"
        if self.yields and stream is None:
            self.fault(f"yields, but its result is `{shown}`", f"write -> {wanted}[{item}]")
        elif self.yields and stream is not None and (stream[0] == "async") != self.asynchronous:
            kind = "an `async def` that yields" if self.asynchronous else "a plain `def` that yields"
            mend = f"write -> {wanted}[{item}]" + ("" if self.asynchronous else f", or make it async def {self.name}")
            self.fault(f"is {kind}, but its result is `{shown}`", mend)
        elif not self.yields and stream is not None and self.asynchronous:
            self.fault(
                f"is an `async def` without `yield`, but its result is `{shown}`",
                f"yield the items, or write def {self.name}",
            )
        if stream is not None and self.options.batch is not None:
            self.fault("streams its result, but the method is batched", "return a list, or leave out batch=")

    def _listed(self, annotation: Any, what: str) -> Any:
        """A batched method is written on lists; its callers give and get one item of them."""
        if self.options.batch is None:
            return annotation
        if typing.get_origin(annotation) is list:
            return typing.get_args(annotation)[0]
        self.fault(
            f"is batched, but its {what} is `{written(annotation)}`",
            f"write list[{written(annotation)}], one item a call",
        )
        return annotation

    def _checker(self, annotation: Any, what: str, streamed: str = "") -> Checker | None:
        if streamed and (annotation in (Any, object) or stream_item(annotation) is not None):
            one = f"`{written(annotation)}`" if stream_item(annotation) is None else "a stream of streams"
            subject = f"{what} {streamed}" if streamed == "takes" else streamed
            self.fault(f"{subject} {one}", "stream a message type, e.g. AsyncIterator[Audio]")
            return None
        try:
            return Checker(annotation)
        except Unsupported as error:
            self.fault(f"{what} {error.found}", error.write)
        except Exception as error:  # pydantic, on a type that it has no schema for
            self.fault(f"{what} is `{written(annotation)}`, which has no schema: {error}", "send plain data")
        return None


_STARS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def init_parameters(cls: type) -> Iterator[inspect.Parameter]:
    """The constructor's parameters after self; none where a class has no __init__ of its own."""
    if cls.__init__ is object.__init__:  # type: ignore[misc]
        return iter(())
    return iter(list(inspect.signature(cls.__init__).parameters.values())[1:])  # type: ignore[misc]
