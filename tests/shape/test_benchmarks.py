"""Every benchmark is called the same way: `python benchmarks/NAME.py [--quick] [--json FILE]`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.shape.tree import ROOT, name

SCRIPTS = [path for path in sorted((ROOT / "benchmarks").glob("*.py")) if path.stem not in ("report", "__init__")]


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_help_shows_the_options(script: Path) -> None:
    result = subprocess.run([sys.executable, str(script), "--help"], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "--quick" in result.stdout
    assert "--json" in result.stdout
