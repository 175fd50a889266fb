"""Where things stand in the user's files, and what their annotations mean."""

from __future__ import annotations

import ast
import difflib
import linecache
import os
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Def = ast.FunctionDef | ast.AsyncFunctionDef


def shown(path: str) -> str:
    """A file's path as a user reads it: relative where it lies below the working directory."""
    if path.startswith("<"):
        return path
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def caller(depth: int = 1) -> str:
    """`file:line` of the code `depth` frames above the function that asks."""
    frame = sys._getframe(depth + 1)
    return f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def enclosing_locals(cls: type, depth: int = 1) -> dict[str, Any]:
    """The local names around a class that is being made inside a function; empty for a class of a module."""
    if "<locals>" not in cls.__qualname__:
        return {}
    found: dict[str, Any] = {}
    frame: types.FrameType | None = sys._getframe(depth + 1)
    while frame is not None and frame.f_code.co_name != "<module>":
        if cls.__qualname__.startswith(f"{frame.f_code.co_qualname}.<locals>."):
            found = {**frame.f_locals, **found}
        frame = frame.f_back
    return found


@lru_cache(maxsize=256)
def _parsed(file: str, text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except SyntaxError:
        return None


def tree_of(file: str) -> ast.Module | None:
    """A file's syntax tree; None where there is no readable source (a prompt, generated code)."""
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    return _parsed(file, "".join(lines)) if lines else None


@dataclass(frozen=True, slots=True)
class ClassSource:
    """Lines of one class: of itself, of its attributes and of its methods; the module's name where no source
    is at hand.
    """

    cls: type
    file: str
    node: ast.ClassDef | None

    @classmethod
    def of(cls, owner: type) -> ClassSource:
        file = _file_of(owner)
        tree = tree_of(file) if file else None
        found = [node for name, node in _classes(tree) if name == owner.__qualname__] if tree else []
        lines = [fn.__code__.co_firstlineno for fn in vars(owner).values() if isinstance(fn, types.FunctionType)]
        inside = [node for node in found if any(node.lineno <= line <= (node.end_lineno or 0) for line in lines)]
        nodes = inside or found
        return cls(owner, file, nodes[-1] if nodes else None)

    def place(self, line: int | None) -> str:
        name = shown(self.file) if self.file else self.cls.__module__
        return f"{name}:{line}" if line else name

    @property
    def where(self) -> str:
        return self.place(self.node.lineno if self.node else None)

    def attribute(self, name: str) -> str:
        for item in self.node.body if self.node else ():
            targets = [item.target] if isinstance(item, ast.AnnAssign) else getattr(item, "targets", [])
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return self.place(item.lineno)
        return self.where


def function_node(fn: types.FunctionType) -> Def | None:
    """The `def` of a function in its file's syntax tree."""
    tree = tree_of(fn.__code__.co_filename)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == fn.__code__.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == fn.__code__.co_firstlineno:
                return node
    return None


def function_place(fn: types.FunctionType) -> str:
    """`file:line` of a function's `def`."""
    node = function_node(fn)
    return f"{shown(fn.__code__.co_filename)}:{node.lineno if node else fn.__code__.co_firstlineno}"


def _file_of(cls: type) -> str:
    for fn in vars(cls).values():
        code = getattr(fn, "__code__", None)
        if code is not None and fn.__module__ == cls.__module__ and not code.co_filename.startswith("<"):
            return str(code.co_filename)
    return str(getattr(sys.modules.get(cls.__module__), "__file__", "") or "")


def _classes(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.ClassDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield f"{prefix}{node.name}", node
            yield from _classes(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _classes(node, f"{prefix}{node.name}.<locals>.")
        else:
            yield from _classes(node, prefix)


class Unresolved(Exception):
    """An annotation that means nothing at run time: what was found and what to write."""

    def __init__(self, found: str, write: str) -> None:
        super().__init__(found)
        self.found, self.write = found, write


def resolve(raw: Any, names: dict[str, Any], local: dict[str, Any], file: str) -> Any:
    """What an annotation means, forward references and `from __future__ import annotations` included.

    Raises Unresolved.
    """
    holder = types.SimpleNamespace(__annotations__={"it": raw})
    try:
        return typing.get_type_hints(holder, names, local, include_extras=True)["it"]
    except NameError as error:
        text = raw if isinstance(raw, str) else getattr(raw, "__forward_arg__", str(raw))
        raise Unresolved(
            f"is annotated `{text}`, where `{error.name}` means nothing",
            _name_mend(error.name or "", names, local, file),
        ) from None
    except SyntaxError:
        raise Unresolved(f"is annotated `{raw}`, which is no Python", "write a type, e.g. list[str]") from None
    except Exception as error:  # whatever evaluating the user's annotation raises
        text = raw if isinstance(raw, str) else repr(raw)
        raise Unresolved(
            f"has an annotation that cannot be used, `{text}`: {error}", "write a type, e.g. list[str]"
        ) from None


def _name_mend(name: str, names: dict[str, Any], local: dict[str, Any], file: str) -> str:
    statement = _type_checking_import(name, file)
    if statement:
        return f"move `{statement}` out of `if TYPE_CHECKING:`, since the type is needed at run time"
    near = difflib.get_close_matches(name, [*local, *names], n=1, cutoff=0.7)
    if near:
        return f"write {near[0]}, or import {name}"
    return f"import {name}, or define it at the top level of the file"


def _type_checking_import(name: str, file: str) -> str:
    tree = tree_of(file) if file else None
    for block in ast.walk(tree) if tree else ():
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test):
            for node in block.body:
                imported = node.names if isinstance(node, ast.Import | ast.ImportFrom) else ()
                if any((alias.asname or alias.name) == name for alias in imported):
                    return ast.unparse(node)
    return ""
