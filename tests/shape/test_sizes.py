"""Small enough to read: files, functions, and no module that could hold anything."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.shape.tree import modules, name

FILE_LINES, FUNCTION_LINES = 450, 70
CATCH_ALL = {"utils", "util", "helpers", "helper", "common", "manager", "managers", "base", "misc"}


def long_functions(source: str, limit: int) -> list[str]:
    """`name (lines)` of each function longer than `limit`, docstring included."""
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    sizes = ((node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in nodes)
    return [f"{function} ({size} lines)" for function, size in sizes if size > limit]


def test_long_function_is_found() -> None:
    source = "class A:\n  async def f(self):\n" + "    x = 1\n" * 3 + "def g(): pass\n"
    assert long_functions(source, 3) == ["f (4 lines)"]


@pytest.mark.parametrize("path", modules("chains", "engines"), ids=name)
def test_file_fits(path: Path) -> None:
    source = path.read_text()
    assert source.count("\n") <= FILE_LINES, f"{name(path)}: over {FILE_LINES} lines; split it by what it decides"
    assert not long_functions(source, FUNCTION_LINES), f"{name(path)}: over {FUNCTION_LINES} lines a function"


def test_no_catch_all_modules() -> None:
    found = [
        name(path) for path in modules("chains", "engines", "examples") if {path.stem, path.parent.name} & CATCH_ALL
    ]
    assert not found, "name a module after what it knows"
