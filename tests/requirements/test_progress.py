"""The set-up's progress: short in a log, complete in its file, and an error is always shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.shape.tree import ROOT

PIP = """\
Installing build dependencies: started
Collecting numpy>=2.0 (from chains-serve)
  Downloading numpy-2.4.6-cp311-cp311-linux.whl (17 MB)
Installing collected packages: numpy
Successfully built chains-serve
Successfully installed numpy-2.4.6
"""


def shown(text: str, log: Path) -> str:
    command = [sys.executable, str(ROOT / "requirements" / "progress.py"), str(log)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def test_a_log_gets_the_milestones_and_the_file_gets_all(tmp_path: Path) -> None:
    lines = shown(PIP, tmp_path / "pip.log").splitlines()
    assert [line.split("packages")[1].strip() for line in lines] == ["unpacking, a minute or so", "installed"]
    assert (tmp_path / "pip.log").read_text() == PIP


def test_an_error_is_shown(tmp_path: Path) -> None:
    error = "ERROR: No matching distribution found for torch==2.13.0\n"
    assert error in shown("Collecting torch==2.13.0\n" + error, tmp_path / "pip.log")
