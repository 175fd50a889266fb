"""Who may import whom: the contracts of pyproject.toml hold, and each catches what it is there for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shape.tree import ROOT


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """import-linter over the packages in `folder`, in a process of its own since it imports them by name."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    # -P keeps nothing of this checkout on the path but what PYTHONPATH says.
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)


def test_contracts_hold() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


VIOLATIONS = {
    "chains never knows engines": ("chains/cli/main.py", "import engines.llm.engine"),
    "the rooms of chains": ("chains/messages.py", "import chains.call"),
    "nobody imports the facade": ("chains/call.py", "from chains import current"),
    "only the Ray runtime imports ray": ("chains/runtime/inprocess.py", "import ray"),
    "only the wire and the OTLP receiver import grpc": ("chains/client.py", "import grpc"),
    "imports no model library": ("chains/runtime/inprocess.py", "import torch"),
    "the rooms of engines": ("engines/asr/model.py", "import engines.llm.engine"),
    "inside llm": ("engines/llm/config.py", "import engines.llm.engine"),
    "touch chains": ("engines/asr/model.py", "from chains.messages import Audio"),
    "gateway protocols are alternatives": ("chains/gateway/native.py", "import chains.gateway.openai"),
    "runtimes are alternatives": ("chains/runtime/inprocess.py", "import chains.runtime.ray_serve"),
    "a room that nobody planned": ("chains/toolbox.py", ""),
}
SMALL_TREE = [
    "chains/errors.py",
    "chains/messages.py",
    "chains/call.py",
    "chains/client.py",
    "chains/cli/main.py",
    "chains/wire/server.py",
    "chains/runtime/inprocess.py",
    "chains/runtime/ray_serve.py",
    "chains/gateway/native.py",
    "chains/gateway/openai.py",
    "engines/asr/model.py",
    "engines/asr/chainlet.py",
    "engines/llm/engine.py",
    "engines/llm/config.py",
    "examples/call.py",
]


def plant(folder: Path) -> None:
    """A small tree of empty modules under the real contracts, with the imports that are allowed."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    for entry in SMALL_TREE:
        path = folder / entry
        path.parent.mkdir(parents=True, exist_ok=True)
        for package in (path.parent, path.parent.parent):
            if package != folder:
                (package / "__init__.py").touch()
        path.touch()
    (folder / "chains/runtime/ray_serve.py").write_text("import ray\n")
    (folder / "chains/wire/server.py").write_text("import grpc\nimport torch\n")
    (folder / "engines/asr/chainlet.py").write_text("from chains import chainlet\nfrom chains.errors import X\n")


def test_allowed_imports_pass(tmp_path: Path) -> None:
    plant(tmp_path)
    result = lint(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("rule", VIOLATIONS)
def test_contract_catches(rule: str, tmp_path: Path) -> None:
    plant(tmp_path)
    file, line = VIOLATIONS[rule]
    (tmp_path / file).write_text(f"{line}\n")
    result = lint(tmp_path)
    assert result.returncode == 1, f"{line!r} in {file} passed"
    assert line == "" or "BROKEN" in result.stdout, result.stdout
