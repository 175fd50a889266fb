"""How another process finds a chain."""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import suppress

from chains.dsl.graph import Graph
from chains.errors import SettingError


def target_of(graph: Graph) -> str:
    """How another process finds this chain: "package.module:Class" or "file.py:Class". Raises SettingError."""
    cls = graph.nodes[graph.entry].cls
    if "<locals>" in cls.__qualname__ or "." in cls.__qualname__:
        raise SettingError(
            f"{cls.__qualname__} stands inside of a function or class",
            mend="move the chain to the top level of a module",
        )
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if module is None or not file:
        raise SettingError(f"{cls.__name__} stands in no file", mend="write the chain into a file, e.g. chain.py")
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(cls.__module__) if cls.__module__ != "__main__" else None
        if spec is not None and spec.origin == file and not cls.__module__.startswith("chain_"):
            return f"{cls.__module__}:{cls.__name__}"
    return f"{os.path.abspath(file)}:{cls.__name__}"
