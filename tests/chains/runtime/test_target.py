"""How another process finds the chain."""

from __future__ import annotations

from pathlib import Path

import pytest

from chains.dsl.chainlet import chainlet
from chains.dsl.graph import build, load
from chains.errors import SettingError
from chains.runtime.target import target_of
from tests.chains.runtime import chain_of_processes as chain


def test_a_chain_in_a_module_and_in_a_file(tmp_path: Path) -> None:
    assert target_of(build(chain.Front)) == f"{chain.__name__}:Front"
    file = tmp_path / "mine.py"
    file.write_text(
        "from chains import chainlet\n\n"
        "@chainlet(entry=True)\nclass Mine:\n    async def run(self) -> int:\n        return 1\n"
    )
    assert target_of(load(str(file))) == f"{file}:Mine"


def test_a_chain_that_no_other_process_can_find() -> None:
    @chainlet(entry=True)
    class Local:
        async def run(self) -> None: ...

    with pytest.raises(SettingError, match="top level of a module"):
        target_of(build(Local))
