"""The tree that the shape tests look at."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = (ROOT / "chains" / "wire" / "pb",)


def modules(*roots: str) -> list[Path]:
    """Every hand-written Python file below these top folders, in order."""
    files = (path for root in roots for path in sorted((ROOT / root).rglob("*.py")))
    return [path for path in files if not any(path.is_relative_to(folder) for folder in GENERATED)]


def name(path: Path) -> str:
    """The path as it is written in messages: from the root, with slashes."""
    return path.relative_to(ROOT).as_posix()


def tracked() -> list[Path]:
    """The files that belong to the project: known to git, or new and not ignored. Without git, all files."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive
        return sorted(path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts)
    return [path for path in (ROOT / entry for entry in listed.split("\0") if entry) if path.is_file()]
