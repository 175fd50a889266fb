"""What one class brings into a chain: its spec, methods, constructor and dependencies, and all faults of
these.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from dataclasses import dataclass, field
from typing import Any

from chains.dsl import source
from chains.dsl.annotations import Unsupported, written
from chains.dsl.chainlet import USE_SETTINGS, ChainletSpec, Dependency, is_chainlet, spec_of
from chains.dsl.draw import brief
from chains.dsl.reader import HOOKS, init_parameters, read
from chains.dsl.signature import EMPTY, Checker, Method
from chains.dsl.specs import closest, nearest
from chains.errors import Fault, InvalidValue

_VAR = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(slots=True)
class Plan:
    """One chainlet's class, read once however often it is used."""

    cls: type
    spec: ChainletSpec
    lines: source.ClassSource
    methods: dict[str, Method] = field(default_factory=dict)
    params: dict[str, inspect.Parameter] = field(default_factory=dict)
    attributes: dict[str, Dependency] = field(default_factory=dict)
    inits: dict[str, Dependency] = field(default_factory=dict)
    open_ended: bool = False
    lacking: dict[str, type] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def fault(self, where: str, name: str, found: str, write: str) -> None:
        self.faults.append(Fault(f"{where} ({self.spec.name}{'.' + name if name else ''})", found, write))

    @property
    def init_where(self) -> str:
        init = inspect.unwrap(self.cls.__init__)  # type: ignore[misc]
        has_code = inspect.isfunction(init) and not init.__code__.co_filename.startswith("<")
        return source.function_place(init) if has_code else self.lines.where

    def required(self) -> list[str]:
        """Constructor arguments that somebody has to give."""
        return [name for name, one in self.params.items() if one.default is EMPTY and name not in self.lacking]

    def resolve(self, raw: Any, names: dict[str, Any]) -> Any:
        """What an annotation means; EMPTY where it means nothing, which is no fault outside of methods."""
        try:
            return source.resolve(raw, names, self.spec.local or {}, "")
        except source.Unresolved:
            return EMPTY


def plan(cls: type) -> Plan:
    """Read a chainlet's class. `faults` holds all that is wrong with it, whoever uses it."""
    made = Plan(cls, spec_of(cls), source.ClassSource.of(cls))
    for found, write in made.spec.faults:
        made.fault(made.lines.where, "", found, write)
    if cls.__dictoffset__ == 0:
        made.fault(
            made.lines.where,
            "",
            "has __slots__ and no room for its dependencies",
            'leave __slots__ out, or add "__dict__" to it',
        )
    _constructor(made)
    _attributes(made)
    methods, faults = read(cls, made.spec.local or {})
    made.methods = methods
    made.faults += faults
    if not methods and not faults:
        made.fault(made.lines.where, "", "has no public method", "write e.g. async def run(self, text: str) -> str")
    return made


def _constructor(made: Plan) -> None:
    if inspect.iscoroutinefunction(made.cls.__init__):  # type: ignore[misc]
        mend = "write def __init__(self, ...), and await in async def load(self)"
        made.fault(made.init_where, "__init__", "is an `async def`, which nobody can await", mend)
    for one in init_parameters(made.cls):
        if one.kind in _VAR:
            made.open_ended = made.open_ended or one.kind is one.VAR_KEYWORD
            continue
        if one.kind is one.POSITIONAL_ONLY:
            made.fault(made.init_where, "__init__", f"takes `{one.name}` by position only", "leave out the `/`")
        made.params[one.name] = one
        if isinstance(one.default, Dependency):
            made.inits[one.name] = one.default
            continue
        annotation = made.resolve(one.annotation, _globals(made.cls)) if one.annotation is not EMPTY else EMPTY
        if is_chainlet(annotation):
            name = annotation.__name__
            default = "no default" if one.default is EMPTY else f"the default {one.default!r:.40}"
            made.lacking[one.name] = annotation
            if one.name in inspect.get_annotations(made.cls):
                continue  # a dataclass: the fault stands at its field
            mend = f"write {one.name}: {name} = depends({name})"
            made.fault(made.init_where, "__init__", f"has {default} for the chainlet `{one.name}`", mend)


def _globals(cls: type) -> dict[str, Any]:
    init = inspect.unwrap(cls.__init__)  # type: ignore[misc]
    if inspect.isfunction(init) and not init.__code__.co_filename.startswith("<"):
        return init.__globals__
    return dict(vars(sys.modules.get(cls.__module__) or object))


def _attributes(made: Plan) -> None:
    """Dependencies of the class and of those it inherits from."""
    for owner in reversed(made.cls.__mro__):
        hints = inspect.get_annotations(owner)
        names = dict(vars(sys.modules.get(owner.__module__) or object))
        lines = source.ClassSource.of(owner) if owner is not object else made.lines
        for name, raw in hints.items():
            value = inspect.getattr_static(made.cls, name, EMPTY)
            meant = made.resolve(raw, names) if "ClassVar" not in str(raw) else EMPTY
            if isinstance(value, Dependency):
                _annotated(made, name, meant, value)
            elif is_chainlet(meant) and name not in made.inits:
                default = "has no default" if value is EMPTY else f"has the default {value!r:.40}"
                made.lacking[name] = meant
                made.fault(
                    lines.attribute(name),
                    name,
                    default,
                    f"write {name}: {meant.__name__} = depends({meant.__name__})",
                )
        for name, value in vars(owner).items():
            if isinstance(value, Dependency) and inspect.getattr_static(made.cls, name, None) is value:
                _attribute(made, name, value)


def _annotated(made: Plan, name: str, meant: Any, dependency: Dependency) -> None:
    protocol = getattr(meant, "_is_protocol", False)
    if (
        meant is not Any  # what a Model(...) gives has no name for a type checker
        and isinstance(meant, type)
        and isinstance(dependency.cls, type)
        and not protocol
        and not issubclass(dependency.cls, meant)
    ):
        used = dependency.cls.__name__
        made.fault(
            dependency.where,
            name,
            f"is annotated `{written(meant)}`, but depends on {used}",
            f"write {name}: {used} = depends({used})",
        )


def _attribute(made: Plan, name: str, dependency: Dependency) -> None:
    if name in made.inits and made.inits[name] is dependency:
        return  # a dataclass: the attribute is its constructor's default
    if name in HOOKS:
        made.fault(
            dependency.where,
            name,
            f"is a dependency by the name of the hook `{name}`",
            "give it another name",
        )
    elif name in made.params:
        made.fault(dependency.where, name, f"is also a parameter `{name}` of __init__", "rename one of the two")
    made.attributes[name] = dependency


def use_faults(parent: Plan, attribute: str, dependency: Dependency, used: Plan) -> list[Fault]:
    """The faults of one use: settings and constructor arguments."""
    where, name = f"{dependency.where} ({parent.spec.name}.{attribute})", used.spec.name
    faults = []
    for argument, value in dependency.arguments.items():
        if argument in used.params:
            wrong = _argument_fault(used, argument, value)
            if wrong is not None:
                faults.append(Fault(where, f"gives {name} {wrong[0]}", wrong[1]))
        elif not used.open_ended:
            known = (*used.params, *USE_SETTINGS)
            faults.append(Fault(where, f"gives {name} an unknown argument `{argument}`", nearest(argument, known)))
    hedgeable = [one for one in used.methods.values() if one.idempotent and not one.streams_in]
    if dependency.options.hedge is not None and used.methods and not hedgeable:
        found = f"hedges {name}, none of whose methods may run twice at once"
        faults.append(
            Fault(where, found, "write @method(idempotent=True) above one that reads no stream, or leave out hedge=")
        )
    misspelt = {closest(name, used.params) for name in dependency.arguments if name not in used.params}
    for missing in used.required():
        if missing not in dependency.arguments and missing not in misspelt:
            mend = f"write depends({used.cls.__name__}, {missing}=...)"
            faults.append(Fault(where, f"does not give `{missing}`, which {name} needs", mend))
    for clash in [one for one in used.params if one in USE_SETTINGS]:
        place = f"{used.init_where} ({name}.__init__)"
        faults.append(
            Fault(
                place,
                f"has a parameter `{clash}`, which depends() keeps for itself",
                f"rename it, e.g. {clash}_",
            )
        )
    return faults


def fallback_faults(where: str, used: Plan, spare: Plan) -> list[Fault]:
    """What keeps `spare` from answering for `used`: it needs each of its methods, with the same signature."""
    faults = []
    for name, method in used.methods.items():
        other = spare.methods.get(name)
        if other is None and not spare.faults:
            found = f"falls back on {spare.spec.name}, which has no method {name}"
            faults.append(Fault(where, found, f"write {method.shape} in {spare.spec.name}"))
        elif other is not None and _plain_shape(other) != _plain_shape(method):
            found = f"falls back on {spare.spec.name}, whose {name} is {other.shape}"
            faults.append(Fault(where, found, f"write {method.shape} there"))
    return faults


def _plain_shape(method: Method) -> Any:
    """What a call of it looks like; defaults are filled in before."""
    params = [(param.name, param.stream, param.checker.name) for param in method.params]
    return params, method.streams_out, method.result.name


def _argument_fault(used: Plan, argument: str, value: Any) -> tuple[str, str] | None:
    parameter = used.params[argument]
    if isinstance(value, Dependency) or parameter.annotation is EMPTY:
        return None
    meant = used.resolve(parameter.annotation, _globals(used.cls))
    if is_chainlet(meant):
        found = f"{argument}={brief(argument, value)}, where it takes a chainlet"
        return found, f"write {argument}=depends({meant.__name__})"
    if meant is EMPTY or _is_a(value, meant):
        return None
    try:
        Checker(meant).check(value, "")
    except InvalidValue as error:
        found = error.message.removeprefix(" is ")
        return f"{argument}={brief(argument, value)}: {found}", f"write a value of `{written(meant)}`"
    except Unsupported:
        origin = typing.get_origin(meant)
        if isinstance(origin, type) and origin is not types.UnionType:
            classes: tuple[Any, ...] = (origin,)  # an abstract collection: its items are the class's own affair
            if isinstance(value, origin):
                return None
        else:
            classes = typing.get_args(meant) or (meant,)
        if all(isinstance(one, type) and not getattr(one, "_is_protocol", False) for one in classes):
            shown = f"{argument}={brief(argument, value)}: {type(value).__name__}, expected {written(meant)}"
            return shown, f"write {argument}={classes[0].__name__}(...)"
    return None


def _is_a(value: Any, meant: Any) -> bool:
    """Whether a plain isinstance says so. What this leaves open is for a Checker, which knows that a bool is no int."""
    if meant in (Any, object):
        return True
    if typing.get_origin(meant) in (typing.Union, types.UnionType):
        return any(_is_a(value, one) for one in typing.get_args(meant))
    if meant in (int, float) or typing.get_origin(meant) is not None or not isinstance(meant, type):
        return False
    try:
        return isinstance(value, meant)
    except TypeError:  # a protocol that cannot be asked at run time
        return True
