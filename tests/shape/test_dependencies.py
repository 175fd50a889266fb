"""What the code imports, the project names: a package that only another one brings along today is missing tomorrow."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.shape.tree import ROOT, modules, name

OURS = {"chains", "engines", "examples", "benchmarks", "tests"}
DEEPEST = 4
"""Folders below each other that are looked into: a name that several packages share ends before."""
BY_HAND = {"sounddevice", "TTS", "triton", "uvloop"}
"""Looked for where they may be missing: the microphone, another voice, a GPU's compiler, a quicker loop."""


def declared(*extras: str) -> set[str]:
    """The packages that an installation with these extras asks for by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    return {canonicalize_name(Requirement(one).name) for one in asked}


@cache
def owners() -> dict[str, set[str]]:
    """Which packages bring a module, by its dotted name; a folder that several share, as google, is several's."""
    found: dict[str, set[str]] = {}
    for package in distributions():
        called = canonicalize_name(package.name)
        for line in (package.read_text("RECORD") or "").splitlines():
            path = line.partition(",")[0]
            if path.endswith((".py", ".so")) and path.count("/") < DEEPEST:
                *folders, file = path.split("/")
                stem = file.partition(".")[0]
                parts = folders if stem == "__init__" else [*folders, stem]
                for depth in range(1, len(parts) + 1):
                    found.setdefault(".".join(parts[:depth]), set()).add(called)
    return found


def imported(path: Path) -> Iterator[str]:
    """Modules of others that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        wanted: list[str] = []
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            wanted = [f"{node.module}.{alias.name}" for alias in node.names]
        for one in wanted:
            top = one.partition(".")[0]
            if top not in sys.stdlib_module_names and top not in OURS | BY_HAND:
                yield one


def brought(module: str) -> set[str]:
    """Who brings the module, or what holds the name that is imported from it; nobody: it is not installed."""
    while module:
        if module in owners():
            return owners()[module]
        module = module.rpartition(".")[0]
    return set()


@pytest.mark.parametrize(
    ("root", "extras"),
    [
        ("chains", ("wire", "ray")),
        ("engines", ("speech", "llm", "grammar")),
        ("examples", ("speech", "llm", "wire", "ray")),
    ],
)
def test_what_is_imported_is_declared(root: str, extras: tuple[str, ...]) -> None:
    known = declared(*extras)
    missing = {
        f"{name(path)} imports {module}, which {' or '.join(sorted(brought(module)))} brings"
        for path in modules(root)
        for module in imported(path)
        if brought(module) and not brought(module) & known
    }
    assert not missing, sorted(missing)


def test_a_package_that_another_brings_is_found_out() -> None:
    """google.rpc is a folder of its own below a name that several packages share."""
    assert brought("google.rpc.status_pb2") == {"googleapis-common-protos"}
    assert "protobuf" in brought("google.protobuf.json_format")
