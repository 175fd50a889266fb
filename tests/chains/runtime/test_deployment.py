"""What rooms above a runtime rely on: the in-process one offers all of it."""

from __future__ import annotations

import inspect

import pytest

from chains.runtime.deployment import Health, ReplicaLoad, Runtime
from chains.runtime.inprocess import InProcess

OFFERED = [name for name, member in vars(Runtime).items() if callable(member) or isinstance(member, property)]
METHODS = [name for name in OFFERED if name in ("handle", "open_call", "load", "health", "kill")]


def test_every_method_is_looked_at() -> None:
    public = {name for name in OFFERED if not name.startswith("_")}
    assert public == {*METHODS, "entry"}


@pytest.mark.parametrize("name", METHODS)
def test_signatures_are_the_same(name: str) -> None:
    asked = inspect.signature(getattr(Runtime, name)).parameters
    offered = inspect.signature(getattr(InProcess, name)).parameters
    assert [(p.name, p.kind, p.default) for p in asked.values()] == [
        (p.name, p.kind, p.default) for p in offered.values()
    ]


def test_a_load_of_nothing_is_nothing() -> None:
    load = ReplicaLoad("Ears", "Ears#0", "ready")
    assert (load.running, load.queued, load.streams, load.turns, load.draining) == (0, 0, 0, 0, 0)
    assert Health(True, "", (load,)).replicas[0] is load
