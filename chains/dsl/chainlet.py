"""What a user writes: @chainlet, @method, depends(...), Model(...). Faults are noted here and told all at
once by graph.build.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar, cast, overload

from chains.dsl import source
from chains.dsl.reader import MethodOptions
from chains.dsl.specs import Autoscaling, Batching, CallOptions, Environment, Limits, Placement, Resources, nearest
from chains.errors import SettingError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_UNSET: Any = type("Unset", (), {"__repr__": lambda self: "..."})()

Noted = tuple[tuple[str, str], ...]
"""Faults seen while a file is read: (found, write)."""


@dataclass(frozen=True, slots=True)
class ChainletSpec:
    """What @chainlet says of a class; it stands at `cls.__chainlet__`."""

    name: str
    owner: type
    entry: bool = False
    resources: Resources = field(default_factory=Resources)
    scaling: Autoscaling = field(default_factory=Autoscaling)
    limits: Limits = field(default_factory=Limits)
    placement: Placement = field(default_factory=Placement)
    environment: Environment = field(default_factory=Environment)
    local: Any = None
    faults: Noted = ()


@overload
def chainlet(cls: type[T], /) -> type[T]: ...
@overload
def chainlet(
    *,
    entry: bool = False,
    name: str | None = None,
    resources: Resources | None = None,
    scaling: Autoscaling | None = None,
    limits: Limits | None = None,
    placement: Placement | None = None,
    environment: Environment | None = None,
) -> Callable[[type[T]], type[T]]: ...
def chainlet(
    cls: Any = None,
    /,
    *,
    entry: Any = False,
    name: Any = None,
    resources: Any = None,
    scaling: Any = None,
    limits: Any = None,
    placement: Any = None,
    environment: Any = None,
    **unknown: Any,
) -> Any:
    """Make a class a chainlet: its public methods can be called over a hop, each use of it runs with its own
    settings.

    The class stays as it is. What is not given comes from the chainlet that it inherits from, if any. One
    class of a file is its `entry`. `name` is what it is called in the graph, the class's name otherwise.
    """
    settings = {
        "resources": resources,
        "scaling": scaling,
        "limits": limits,
        "placement": placement,
        "environment": environment,
    }

    def mark(cls: Any) -> Any:
        if not inspect.isclass(cls):
            named = f"`{cls.__name__}`" if inspect.isroutine(cls) else f"{cls!r:.80}"
            mend = "write @chainlet above a class, with a method for what is to be called"
            raise SettingError(f"@chainlet stands on {named}, which is no class", mend=mend)
        noted = [
            *_unknown("@chainlet", unknown, (*settings, "entry", "name")),
            *_kinds("@chainlet", settings),
        ]
        if name is not None and not (isinstance(name, str) and name.isidentifier()):
            noted.append((f"has @chainlet(name={name!r})", f'write a name like a class\'s, e.g. name="{cls.__name__}"'))
        if not isinstance(entry, bool):
            noted.append((f"has @chainlet(entry={entry!r})", "write entry=True"))
        above: ChainletSpec | None = getattr(cls, "__chainlet__", None)
        inherited = above or ChainletSpec(cls.__name__, cls)
        good: dict[str, Any] = {key: value for key, value in settings.items() if isinstance(value, _SETTINGS[key])}
        called = name if isinstance(name, str) and name else cls.__name__
        local = source.enclosing_locals(cls)
        good |= {"name": called, "owner": cls, "entry": entry is True, "local": local, "faults": tuple(noted)}
        spec = replace(inherited, **good)
        cls.__chainlet__ = spec  # type: ignore[attr-defined]
        return cls

    return mark if cls is None else mark(cls)


_SETTINGS: dict[str, type] = {
    "resources": Resources,
    "scaling": Autoscaling,
    "limits": Limits,
    "placement": Placement,
    "environment": Environment,
    "options": CallOptions,
}


def is_chainlet(cls: object) -> bool:
    """Whether this is a class that was decorated, or inherits from one that was."""
    return isinstance(cls, type) and isinstance(getattr(cls, "__chainlet__", None), ChainletSpec)


def spec_of(cls: type) -> ChainletSpec:
    """A chainlet's spec. A subclass without a decorator of its own has its parent's settings, but is no
    entry.
    """
    spec: ChainletSpec = cls.__chainlet__  # type: ignore[attr-defined]
    return spec if spec.owner is cls else replace(spec, name=cls.__name__, owner=cls, entry=False, faults=())


def _kinds(what: str, settings: dict[str, Any]) -> Noted:
    """Settings of another kind than they should be."""
    return tuple(
        (f"has {what}({name}={value!r:.60})", f"write {name}={_SETTINGS[name].__name__}(...)")
        for name, value in settings.items()
        if value is not None and not isinstance(value, _SETTINGS[name])
    )


def _unknown(what: str, unknown: dict[str, Any], known: tuple[str, ...]) -> Noted:
    return tuple((f"has an unknown setting {what}({name}=...)", nearest(name, known)) for name in unknown)


@overload
def method(fn: F, /) -> F: ...
@overload
def method(
    *, idempotent: bool = False, raises: Any = (), batch: Batching | None = None, prefix: str = ""
) -> Callable[[F], F]: ...
def method(
    fn: Any = None,
    /,
    *,
    idempotent: Any = False,
    raises: Any = (),
    batch: Any = None,
    prefix: Any = "",
    **unknown: Any,
) -> Any:
    """Options of one method. `idempotent`: it may be tried again though it had begun. `raises`: exceptions
    that reach the caller as themselves, not as RemoteError. `batch`: it is written on lists, and calls are
    gathered into one. `prefix`: the parameter that carries a model's prompt; calls whose prompts begin alike go where
    that beginning is cached.
    """
    noted = list(_unknown("@method", unknown, ("idempotent", "raises", "batch", "prefix")))
    listed = (raises,) if isinstance(raises, type) else tuple(raises) if isinstance(raises, tuple | list) else (raises,)
    errors = tuple(one for one in listed if isinstance(one, type) and issubclass(one, Exception))
    if len(errors) < len(listed):
        wrong = next(one for one in listed if one not in errors)
        shown = wrong.__name__ if isinstance(wrong, type) else f"{wrong!r:.60}"
        noted.append((f"lists {shown} in raises=, which is no exception", "write e.g. raises=(KeyError,)"))
    if not isinstance(idempotent, bool):
        noted.append((f"has @method(idempotent={idempotent!r:.60})", "write idempotent=True"))
    if batch is not None and not isinstance(batch, Batching):
        noted.append((f"has @method(batch={batch!r:.60})", "write batch=Batching(size=8, wait_ms=5)"))
    if not isinstance(prefix, str):
        noted.append((f"has @method(prefix={prefix!r:.60})", 'name a parameter, e.g. prefix="messages"'))
    good = batch if isinstance(batch, Batching) else None
    begins = prefix if isinstance(prefix, str) else ""
    options = MethodOptions(idempotent is True, errors, good, begins, tuple(noted))

    def mark(fn: F) -> F:
        fn.__chainlet_method__ = options  # type: ignore[attr-defined]
        return fn

    return mark if fn is None else mark(fn)


@overload
def remote(value: Iterator[T]) -> AsyncIterator[T]: ...  # type: ignore[overload-overlap]
@overload
def remote(value: T) -> Awaitable[T]: ...
def remote(value: Any) -> Any:
    """The same object, with the type that it has over a hop: for type checkers, which see only the plain `def`.

    `await remote(self.facts.find(text))` where `find` is a plain def, `async for x in remote(self.llm.reply(text))`
    where `reply` is a plain generator. Methods that are `async` need it not.
    """
    return value


@dataclass(frozen=True, eq=False)
class Dependency:
    """What depends(...) stands for until the graph is built: a chainlet and how it is used."""

    cls: Any
    options: CallOptions
    arguments: dict[str, Any]
    resources: Resources | None
    scaling: Autoscaling | None
    limits: Limits | None
    placement: Placement | None
    environment: Environment | None
    where: str
    faults: Noted
    fallback: Dependency | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "cls":
            raise AttributeError(name)
        used = getattr(self.cls, "__name__", self.cls)
        raise AttributeError(
            f"`{name}` was asked of depends({used}), which no runtime has filled in; "
            f"run the chain in one, or set this attribute on the instance yourself"
        )


def depends(
    cls: type[T],
    *,
    timeout: float | None = _UNSET,
    first: float | None = _UNSET,
    idle: float | None = _UNSET,
    retries: int = _UNSET,
    window: int = _UNSET,
    hedge: float | None = _UNSET,
    fallback: Any = None,
    options: CallOptions | None = None,
    resources: Resources | None = None,
    scaling: Autoscaling | None = None,
    limits: Limits | None = None,
    placement: Placement | None = None,
    environment: Environment | None = None,
    **arguments: Any,
) -> T:
    """Use another chainlet: `ears: Ears = depends(Ears, model="small.en", timeout=2.0)`, in the class or as
    default of an __init__ parameter. Settings of the call and of the replica here hold for this use; all else
    goes to its constructor. `fallback` is another chainlet (or a depends of one) that answers when this one does not.
    """
    noted: list[tuple[str, str]] = []
    given = {"timeout": timeout, "first": first, "idle": idle, "retries": retries, "window": window, "hedge": hedge}
    chosen = options if isinstance(options, CallOptions) else CallOptions()
    for name, value in given.items():
        if value is not _UNSET:
            try:
                chosen = replace(chosen, **{name: cast(Any, value)})
            except SettingError as error:
                found = error.message.replace("CallOptions", "depends").replace(" is not ", ", which is not ", 1)
                noted.append((f"has {found}", error.mend))
    settings = {
        "options": options,
        "resources": resources,
        "scaling": scaling,
        "limits": limits,
        "placement": placement,
        "environment": environment,
    }
    noted += _kinds("depends", settings)
    good: dict[str, Any] = {
        key: value if isinstance(value, _SETTINGS[key]) else None for key, value in settings.items()
    }
    del good["options"]
    where = source.caller()
    if fallback is not None and not isinstance(fallback, Dependency):
        plain = replace(chosen, hedge=None)
        fallback = Dependency(fallback, plain, {}, **dict.fromkeys(good), where=where, faults=())
    dependency: Any = Dependency(cls, chosen, arguments, **good, where=where, faults=tuple(noted), fallback=fallback)
    return dependency  # type: ignore[no-any-return]


CALL_SETTINGS = tuple(one.name for one in fields(CallOptions))
USE_SETTINGS = (*CALL_SETTINGS, "fallback", *_SETTINGS)


def Model(
    *,
    load: Callable[..., Any],
    predict: Callable[..., Any],
    name: str = "",
    batch: Batching | None = None,
    resources: Resources | None = None,
    scaling: Autoscaling | None = None,
    limits: Limits | None = None,
    placement: Placement | None = None,
    environment: Environment | None = None,
) -> Any:
    """A chainlet from two functions: `load(...)` gives a replica its model, `predict(model, ...)` answers.

    The chainlet's constructor takes what `load` takes, its one method `predict` has the signature of the
    function without the model. With `batch` the function is written on lists. `name` is the class's,
    CamelCase of predict's otherwise.
    """
    for what, fn in (("load", load), ("predict", predict)):
        if not inspect.isfunction(fn) or fn.__name__ == "<lambda>":
            raise SettingError(
                f"Model({what}={fn!r:.60}) is no function written with def",
                mend=f"write def {what}(...): ...",
            )
    title = name or "".join(part.title() for part in predict.__name__.split("_"))

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        self._arguments = inspect.signature(load).bind(*args, **kwargs)

    def load_now(self: Any) -> None:
        self._model = load(*self._arguments.args, **self._arguments.kwargs)

    async def load_async(self: Any) -> None:
        self._model = await load(*self._arguments.args, **self._arguments.kwargs)

    @functools.wraps(predict)
    def answer(self: Any, *args: Any, **kwargs: Any) -> Any:
        return predict(self._model, *args, **kwargs)

    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = inspect.signature(load)
    __init__.__signature__ = taken.replace(parameters=[me, *taken.parameters.values()])  # type: ignore[attr-defined]
    __init__.__wrapped__ = load  # type: ignore[attr-defined]
    body = {
        "__init__": __init__,
        "load": load_async if inspect.iscoroutinefunction(load) else load_now,
        "predict": method(batch=batch)(answer),
        "__module__": predict.__module__,
        "__doc__": predict.__doc__,
    }
    made = type(title, (), body)
    return chainlet(
        name=title,
        resources=resources,
        scaling=scaling,
        limits=limits,
        placement=placement,
        environment=environment,
    )(made)
