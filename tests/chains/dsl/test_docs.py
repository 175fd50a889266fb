"""Each block of docs/dsl.md runs by itself, and those that define a chain make a graph."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from chains.dsl.chainlet import is_chainlet, spec_of
from chains.dsl.graph import build

PAGE = Path(__file__).parents[3] / "docs" / "dsl.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_runs_by_itself(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / f"block_{number}.py"
    file.write_text(BLOCKS[number])
    names = runpy.run_path(str(file), run_name=f"block_{number}")
    entries = [value for value in names.values() if is_chainlet(value) and spec_of(value).entry]
    for entry in entries:
        assert build(entry).entry == entry.__name__
    assert entries or "Checker" in names
    capsys.readouterr()


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 7
