"""Settings of a chainlet and of a use of it. Each checks itself when made: SettingError says what to write."""

from __future__ import annotations

import difflib
import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args

from chains.errors import SettingError

T = TypeVar("T")

_UNITS = {
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB|TiB|KB|MB|GB|TB)")


def closest(name: str, known: Iterable[str]) -> str:
    """The known name that was most likely meant, "" if none is near."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)), "")


def nearest(name: str, known: tuple[str, ...]) -> str:
    """The advice for a name that is not known: the one that was meant, or all there are."""
    near = closest(name, known)
    if near:
        return f"write {near}=..."
    return f"known are {', '.join(known)}" if known else "leave it out, there are none"


def _knows_its_settings(cls: type[T]) -> type[T]:
    """A dataclass that refuses an unknown setting with SettingError, which names the one that was meant."""
    made, known = cls.__init__, tuple(one.name for one in fields(cls))  # type: ignore[arg-type]

    @functools.wraps(made)
    def init(self: Any, *args: Any, **settings: Any) -> None:
        for name in settings:
            if name not in known:
                raise SettingError(f"{cls.__name__} has no setting {name!r}", mend=nearest(name, known))
        made(self, *args, **settings)

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


@_knows_its_settings
@dataclass(frozen=True, slots=True)
class Resources:
    """What one replica needs: CPU cores, memory ("2GiB"), a kind of GPU ("L4") and how many of it, fractions
    allowed.

    A named `gpu` without `gpus` means one.
    """

    cpu: float = 1.0
    memory: str = ""
    gpu: str = ""
    gpus: float = 0.0

    def __post_init__(self) -> None:
        _number(self, "cpu", self.cpu, 0.0, "cores, e.g. cpu=0.5")
        _number(self, "gpus", self.gpus, 0.0, "GPUs, fractions allowed, e.g. gpus=0.5")
        _text(self, "memory", self.memory, 'memory="2GiB"')
        _text(self, "gpu", self.gpu, f'gpu="L4" for a kind, gpus={self.gpu} for how many')
        if self.memory and not _MEMORY.fullmatch(self.memory):
            raise SettingError(
                f"Resources(memory={self.memory!r}) is no amount of memory",
                mend='write a number and a unit, e.g. memory="2GiB"',
            )
        if self.gpu and not self.gpus:
            object.__setattr__(self, "gpus", 1.0)
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise SettingError(
                f"Resources(gpus={self.gpus}) is more than one GPU and a part of another",
                mend=f"write a part of one, e.g. gpus=0.5, or whole ones, e.g. gpus={math.ceil(self.gpus)}",
            )

    @property
    def memory_bytes(self) -> int:
        """`memory` in bytes; 0 where none is asked for."""
        found = _MEMORY.fullmatch(self.memory)
        return int(float(found[1]) * _UNITS[found[2]]) if found else 0


@_knows_its_settings
@dataclass(frozen=True, slots=True)
class Autoscaling:
    """How many replicas: between `min` and `max`, aiming at `target_streams` active turns a replica and
    `target_wait_ms` of queueing; `up_delay` and `down_delay` are seconds a need must last, `spares` replicas
    stand warm beyond it.
    """

    min: int = 1
    max: int = 1
    target_streams: float = 8.0
    target_wait_ms: float = 100.0
    up_delay: float = 2.0
    down_delay: float = 30.0
    spares: int = 0

    def __post_init__(self) -> None:
        _whole(self, "min", self.min, 0)
        _whole(self, "max", self.max, 1)
        _whole(self, "spares", self.spares, 0)
        _number(
            self,
            "target_streams",
            self.target_streams,
            0.0,
            "turns per replica, e.g. target_streams=8",
            above=True,
        )
        _number(
            self,
            "target_wait_ms",
            self.target_wait_ms,
            0.0,
            "milliseconds, e.g. target_wait_ms=100",
            above=True,
        )
        _number(self, "up_delay", self.up_delay, 0.0, "seconds, e.g. up_delay=2")
        _number(self, "down_delay", self.down_delay, 0.0, "seconds, e.g. down_delay=30")
        if self.min > self.max:
            raise SettingError(
                f"Autoscaling(min={self.min}, max={self.max}) has its least above its most",
                mend=f"write Autoscaling(min={self.min}, max={self.min}) or more",
            )


Prefer = Literal["spread", "pack"]
MOST_PER_NODE = 100
"""Above so many replicas on a node a limit is none: it is also the most that Ray Serve takes."""


@_knows_its_settings
@dataclass(frozen=True, slots=True)
class Placement:
    """On which machines replicas stand: `prefer` "spread" over them or "pack"ed on few, never more than `per_node` on
    one (0: no limit), `with_caller` on the machine of the chainlet that uses this one. `per_node` is kept always, the
    others as far as there is room.
    """

    prefer: Prefer = "spread"
    per_node: int = 0
    with_caller: bool = False

    def __post_init__(self) -> None:
        if self.prefer not in get_args(Prefer):
            _refuse(self, "prefer", self.prefer, '"spread" or "pack"', 'write prefer="spread" or prefer="pack"')
        _whole(self, "per_node", self.per_node, 0)
        if self.per_node > MOST_PER_NODE:
            _refuse(
                self, "per_node", self.per_node, f"at most {MOST_PER_NODE}", f"write per_node={MOST_PER_NODE}, or less"
            )
        _flag(self, "with_caller", self.with_caller)


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@_knows_its_settings
@dataclass(frozen=True, slots=True)
class Environment:
    """What a replica's process has besides the others': packages as pip takes them, environment variables, and
    `secrets`, the names of variables whose values are taken where the chain is deployed and shown nowhere.
    """

    pip: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name, write in (("pip", 'pip=["torch==2.13.0"]'), ("secrets", 'secrets=["HF_TOKEN"]')):
            given: Any = getattr(self, name)
            if not isinstance(given, list | tuple) or not all(isinstance(one, str) and one.strip() for one in given):
                _refuse(self, name, given, "a list of texts", f"write {write}")
            object.__setattr__(self, name, tuple(given))
        env: Any = self.env
        if not isinstance(env, Mapping) or not all(isinstance(value, str) for value in env.values()):
            _refuse(self, "env", env, "a dict of texts", 'write env={"HF_HOME": "/models"}')
        object.__setattr__(self, "env", dict(env))
        names: list[Any] = [*env, *self.secrets]
        for name in names:
            if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
                raise SettingError(
                    f"Environment names {name!r}, which is no name of a variable",
                    mend="write letters, digits and _, e.g. HF_HOME",
                )
        twice = sorted(set(self.env) & set(self.secrets))
        if twice:
            raise SettingError(f"Environment has {twice[0]} in env and in secrets", mend="leave it in one of them")

    def __hash__(self) -> int:
        return hash((tuple(self.pip), tuple(sorted(self.env.items())), tuple(self.secrets)))


@_knows_its_settings
@dataclass(frozen=True, slots=True)
class Limits:
    """Hard caps of one replica: calls running at once, and calls waiting; what comes on top is refused at
    once.
    """

    running: int = 32
    queued: int = 64

    def __post_init__(self) -> None:
        _whole(self, "running", self.running, 1)
        _whole(self, "queued", self.queued, 0)


@_knows_its_settings
@dataclass(frozen=True, slots=True)
class CallOptions:
    """How a use of a chainlet calls it. Seconds, or None for no limit.

    `timeout` until a unary result; of a stream `first` until its first item and `idle` between items;
    `retries` are FURTHER attempts after the first; `window` is the bytes of credit per stream and direction. An
    idempotent method that gave nothing for `hedge` seconds is asked of a second replica too; the first answer counts.
    """

    timeout: float | None = 60.0
    first: float | None = None
    idle: float | None = None
    retries: int = 1
    window: int = 262_144
    hedge: float | None = None

    def __post_init__(self) -> None:
        for name in ("timeout", "first", "idle", "hedge"):
            value = getattr(self, name)
            if value is not None:
                _number(self, name, value, 0.0, f"seconds, e.g. {name}=2.0, or None for no limit", above=True)
        _whole(self, "retries", self.retries, 0)
        _whole(self, "window", self.window, 1)
        if self.hedge is not None and self.timeout is not None and self.hedge >= self.timeout:
            raise SettingError(
                f"CallOptions(hedge={self.hedge}, timeout={self.timeout}) asks a second replica when the time is up",
                mend=f"write hedge={self.timeout / 4:g} or less than the timeout",
            )


@_knows_its_settings
@dataclass(frozen=True, slots=True)
class Batching:
    """Calls are gathered into one of up to `size`; the first waits at most `wait_ms` for the others."""

    size: int = 8
    wait_ms: float = 5.0

    def __post_init__(self) -> None:
        _whole(self, "size", self.size, 1)
        _number(self, "wait_ms", self.wait_ms, 0.0, "milliseconds, e.g. wait_ms=5")


def _number(spec: Any, name: str, value: object, least: float, write: str, *, above: bool = False) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or (value <= least if above else value < least):  # type: ignore[operator]
        _refuse(spec, name, value, f"a number {'above' if above else 'of at least'} {least:g}", f"write {write}")


def _whole(spec: Any, name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        _refuse(spec, name, value, f"a whole number of at least {least}", f"write e.g. {name}={max(least, 1)}")


def _flag(spec: Any, name: str, value: object) -> None:
    if not isinstance(value, bool):
        _refuse(spec, name, value, "True or False", f"write {name}=True")


def _text(spec: Any, name: str, value: object, write: str) -> None:
    if not isinstance(value, str):
        _refuse(spec, name, value, "text", f"write e.g. {write}")


def _refuse(spec: Any, name: str, value: object, wanted: str, write: str) -> None:
    raise SettingError(f"{type(spec).__name__}({name}={value!r}) is not {wanted}", mend=write)
