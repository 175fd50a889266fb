"""Bringing the browser never fails a run: it says in one line what came of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FETCH = Path(__file__).with_name("fetch.py")


def fetch(folder: Path) -> subprocess.CompletedProcess[str]:
    """fetch.py with the programs of `folder` alone."""
    environment = {**os.environ, "PATH": str(folder)}
    return subprocess.run([sys.executable, str(FETCH)], env=environment, capture_output=True, text=True)


def program(folder: Path, name: str, does: str = "exit 0") -> None:
    """A program that stands in for one of the machine's."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)


def test_a_browser_that_is_there_is_named(tmp_path: Path) -> None:
    program(tmp_path, "chromium")
    result = fetch(tmp_path)
    assert result.returncode == 0
    assert result.stdout == f"the browser for the tests is {tmp_path}/chromium\n"


def test_without_apt_it_says_what_is_skipped(tmp_path: Path) -> None:
    result = fetch(tmp_path)
    assert result.returncode == 0
    assert result.stdout.startswith("no apt-get here: tests in a browser will be skipped")
    assert result.stdout.count("\n") == 1


def test_an_apt_that_fails_is_quoted(tmp_path: Path) -> None:
    program(tmp_path, "apt-get", "echo 'E: no network' >&2; exit 100")
    program(tmp_path, "sudo", 'shift; [ "$1" = true ] && exit 0; exec "$@"')
    result = fetch(tmp_path)
    assert result.returncode == 0
    assert (
        "chromium could not be installed (apt-get: E: no network): tests in a browser will be skipped" in result.stdout
    )
