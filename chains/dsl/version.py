"""What tells one state of a chain from another: a digest over its sources and its settings."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from chains.dsl.nodes import Graph

DIGITS = 8


def version_of(graph: Graph, read: Callable[[Path], bytes] = Path.read_bytes) -> str:
    """Eight hex digits over the files in which the chainlets stand, and how they are set and put together.

    The same on every machine: no path of a file is in it, and what the code needs besides (libraries, weights) is not.
    """
    digest = hashlib.blake2b(digest_size=DIGITS // 2)
    for name, content in sorted(_sources(graph, read).items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    digest.update(json.dumps(_settings(graph), sort_keys=True, default=_named).encode())
    return digest.hexdigest()


def _sources(graph: Graph, read: Callable[[Path], bytes]) -> dict[str, bytes]:
    """The file of each chainlet; of a class without one (a notebook's), its source."""
    found: dict[str, bytes] = {}
    for name, node in graph.nodes.items():
        file = getattr(sys.modules.get(node.cls.__module__), "__file__", None)
        content = b""
        with suppress(OSError):
            content = read(Path(file)) if file else b""
        if not content:
            with suppress(OSError, TypeError):
                content = inspect.getsource(node.cls).encode()
        found[name] = content
    return found


def _settings(graph: Graph) -> dict[str, object]:
    """The graph as data without what differs between machines: where a method stands, and in which file."""
    plain = graph.to_json()
    for name, node in plain["nodes"].items():
        node |= {"class": graph.nodes[name].cls.__qualname__, "arguments": graph.nodes[name].arguments}
        for method in node["methods"].values():
            method.pop("where", None)
    return dict(plain)


def _named(value: object) -> str:
    """What JSON does not hold: a path as it is written, of others their kind, since they may show where they lie."""
    return str(value) if isinstance(value, Path) else type(value).__qualname__
