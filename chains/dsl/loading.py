"""Imports the file or module of a chain. Whatever is wrong with it becomes a GraphError that names file and
line.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import linecache
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from chains.dsl import source
from chains.errors import ChainsError, Fault, GraphError, how_to_install


def module_of(target: str) -> tuple[ModuleType, str]:
    """The module that "file.py", "file.py:Class" or "package.module:Class" names, and the class or ""."""
    place, _, wanted = target.rpartition(":") if ":" in target else (target, "", "")
    if place.endswith(".py") or os.sep in place or os.path.exists(place):
        return _file(Path(place)), wanted
    if not all(part.isidentifier() for part in place.split(".")):
        _refuse(target, "is neither a file nor a module", "write chain.py, chain.py:Class or package.module:Class")
    return _module(place), wanted


def no_such_class(module: ModuleType, target: str, wanted: str, known: tuple[str, ...]) -> Fault:
    """The fault of a target that names a class which is not there or is no chainlet."""
    place = f"{source.shown(str(module.__file__))}:1"
    cls = vars(module).get(wanted)
    if isinstance(cls, type):
        where = source.ClassSource.of(cls).where
        return Fault(f"{where} ({wanted})", "is no chainlet", f"write @chainlet(entry=True) above class {wanted}")
    near = difflib.get_close_matches(wanted, known, n=1)
    mend = f"write {target.rpartition(':')[0]}:{near[0]}" if near else f"its chainlets are {', '.join(known) or 'none'}"
    return Fault(place, f"has no chainlet `{wanted}`", mend)


def _file(path: Path) -> ModuleType:
    if path.is_dir():
        _refuse(str(path), "is a folder", f"name the chain's file, e.g. {path / 'call.py'}")
    if not path.exists():
        beside = [one.name for one in path.parent.glob("*.py")] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, beside, n=1)
        _refuse(
            str(path),
            "does not exist",
            f"write {path.parent / near[0]}" if near else "write the path of a chain's file",
        )
    if path.suffix != ".py":
        _refuse(str(path), "is no Python file", "name a file that ends in .py")
    path = path.resolve()
    name = f"chain_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        _refuse(str(path), "cannot be imported", "name a file that ends in .py")
    linecache.checkcache(str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _first_on_path(path.parent):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        _explain(str(path), error)
    return module


def _module(name: str) -> ModuleType:
    try:
        with _first_on_path(Path.cwd()):
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        _explain(name, error)


@contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    """What stands beside the chain's file can be imported by its plain name, as when Python runs the file."""
    entry = str(folder)
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _refuse(target: str, found: str, write: str) -> NoReturn:
    raise GraphError([Fault(target, found, write)])


def _explain(target: str, error: BaseException) -> NoReturn:
    """One GraphError from whatever importing the user's file raised."""
    if isinstance(error, GraphError):
        raise error
    if isinstance(error, SyntaxError):
        text = (error.text or "").strip()
        where = f"{source.shown(error.filename or target)}:{error.lineno or 1}"
        shown = f": `{text}`" if text else ""
        raise GraphError([Fault(where, f"is no valid Python ({error.msg}){shown}", "mend this line")]) from error
    where = _where(target, error)
    if isinstance(error, ChainsError):
        raise GraphError([Fault(where, error.message, error.mend)]) from error
    if isinstance(error, UnicodeDecodeError):
        raise GraphError([Fault(where, "is not UTF-8", "save the file as UTF-8")]) from error
    if isinstance(error, SystemExit):
        mend = 'put what runs the program under `if __name__ == "__main__":`'
        raise GraphError([Fault(where, "ends the program while it is imported", mend)]) from error
    raise GraphError([Fault(where, f"cannot be imported ({type(error).__name__}: {error})", _mend(error))]) from error


def _where(target: str, error: BaseException) -> str:
    """The last line of the user's own code on the way to the error; no line of ours or of a library."""
    frames = traceback.extract_tb(error.__traceback__)
    home = os.path.dirname(os.path.dirname(__file__)) + os.sep
    for frame in reversed(frames):
        library = f"{os.sep}site-packages{os.sep}" in frame.filename or frame.filename.startswith(
            ("<", home, _stdlib())
        )
        if not library:
            return f"{source.shown(frame.filename)}:{frame.lineno}"
    return f"{source.shown(target)}:1" if target.endswith(".py") else target


def _stdlib() -> str:
    return os.path.dirname(os.__file__) + os.sep


def _mend(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"{how_to_install(error.name)}, or put {error.name}.py beside the chain's file"
    if isinstance(error, ImportError) and "relative import" in str(error):
        return "import what stands beside the file by its plain name, without the dot"
    if isinstance(error, NameError) and getattr(error, "name", None):
        return f"import {error.name}, or define it above this line"
    return "mend this line"
