"""The public face: every name resolves, is documented and known to type checkers, and cheap to import."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import time

import pytest

import chains
from tests.shape.tree import ROOT

HEAVY = ("torch", "ray", "grpc", "transformers", "onnxruntime", "ctranslate2", "starlette", "uvicorn")


@pytest.mark.parametrize("name", chains.__all__)
def test_public_name_resolves_and_has_a_docstring(name: str) -> None:
    value = getattr(chains, name)
    assert inspect.getdoc(value), f"chains.{name} has no docstring"
    if inspect.isclass(value):
        generated = (value.__doc__ or "").startswith(f"{value.__name__}(")  # what @dataclass writes by itself
        assert not generated, f"chains.{name} has only the docstring that @dataclass made up"


def test_type_checkers_see_the_same_names() -> None:
    module = ast.parse((ROOT / "chains" / "__init__.py").read_text())
    guard = next(node for node in module.body if isinstance(node, ast.If))
    seen = [alias.name for node in guard.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(seen) == sorted(chains.__all__)


def test_dir_lists_exactly_the_public_names() -> None:
    assert dir(chains) == sorted(chains.__all__)


def test_unknown_name_says_which_there_are() -> None:
    with pytest.raises(AttributeError, match=r"'Chainlet'; its names are .*chainlet"):
        chains.Chainlet  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("statement", ["import chains", "from chains import *"])
def test_import_loads_no_heavy_library(statement: str) -> None:
    code = f"{statement}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(HEAVY) & set(loaded.stdout.split())


def test_import_takes_under_300_ms() -> None:
    def seconds(code: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
        return time.perf_counter() - started

    # The best of five, against a bare interpreter: what other processes do at that moment is not counted.
    bare = min(seconds("pass") for _ in range(5))
    assert min(seconds("import chains") for _ in range(5)) - bare < 0.3
