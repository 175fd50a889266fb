"""Brings Debian's Chromium for the tests of the page, where apt is at hand.

python tests/browser/fetch.py

Prints one line and leaves with 0 whatever happens: without a browser the tests that need one are skipped and say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess

NAMES = ("chromium", "chromium-browser", "google-chrome")
_TIMEOUT_S = 300


def browser() -> str | None:
    """The browser's path; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def fetch() -> str:
    """Installs the browser where it is missing; says what came of it."""
    if found := browser():
        return f"the browser for the tests is {found}"
    if not shutil.which("apt-get"):
        return "no apt-get here: tests in a browser will be skipped (install chromium yourself to run them)"
    as_root = _as_root()
    if as_root is None:
        return "chromium needs root: tests in a browser will be skipped (sudo apt-get install chromium runs them)"
    try:
        _run([*as_root, "apt-get", "-q", "update"])
        _run([*as_root, "apt-get", "-qy", "install", "--no-install-recommends", "chromium"])
    except (OSError, subprocess.SubprocessError) as error:
        return f"chromium could not be installed ({_short(error)}): tests in a browser will be skipped"
    return f"the browser for the tests was installed: {browser()}"


def _as_root() -> list[str] | None:
    """What goes before a command so that it runs as root without a password; None: nothing does."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n"]
    return None


def _run(command: list[str]) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment)


def _short(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stderr).strip().splitlines()
        return f"apt-get: {lines[-1] if lines else error.returncode}"
    return f"{type(error).__name__}"


if __name__ == "__main__":
    print(fetch())
