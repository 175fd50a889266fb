"""The version of a chain changes with its sources and settings, and with nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from chains.dsl.graph import load
from chains.dsl.specs import Limits
from chains.dsl.version import version_of
from tests.shape.tree import ROOT

CHAIN = """
from chains import chainlet, depends

@chainlet
class Ears:
    def __init__(self, model: str = "tiny") -> None:
        self.model = model
    async def hear(self, text: str) -> str:
        return text

@chainlet(entry=True)
class Desk:
    ears: Ears = depends(Ears, model="small")
    async def run(self, text: str) -> str:
        return await self.ears.hear(text)
"""


def version(folder: Path, source: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "desk.py").write_text(source)
    return version_of(load(str(folder / "desk.py")))


def test_the_same_source_has_the_same_version_wherever_it_lies(tmp_path: Path) -> None:
    first = version(tmp_path / "a", CHAIN)
    assert first == version(tmp_path / "b", CHAIN)
    assert len(first) == 8 and int(first, 16) >= 0
    code = "import sys; from chains.dsl.graph import load; from chains.dsl.version import version_of; "
    shutil.copy(tmp_path / "a" / "desk.py", tmp_path / "other.py")
    command = [sys.executable, "-c", code + f"print(version_of(load({str(tmp_path / 'other.py')!r})))"]
    other = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert other == first  # another process, another hash seed, another name of the file


def test_another_line_is_another_version(tmp_path: Path) -> None:
    first = version(tmp_path / "a", CHAIN)
    assert first != version(tmp_path / "b", CHAIN.replace("return text", "return text.strip()"))
    assert first != version(tmp_path / "c", CHAIN.replace('model="small"', 'model="base"'))


def test_another_setting_is_another_version(tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text(CHAIN)
    graph = load(str(tmp_path / "desk.py"))
    assert version_of(graph) != version_of(graph.changed({"Ears": {"limits": Limits(queued=7)}}))


def test_a_file_that_has_gone_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text(CHAIN)
    graph = load(str(tmp_path / "desk.py"))

    def gone(path: Path) -> bytes:
        raise OSError(path)

    assert len(version_of(graph, gone)) == 8
