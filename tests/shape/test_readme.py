"""What the documents show works: Python blocks run, and the commands in shell blocks exist.

A document's Python blocks run in order, each in a process of its own, in one temporary folder. A block whose
first line is a comment with a file name (`# call.py`) is written there under that name, for later blocks to
import. A block with the comment `# not run` is only compiled.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shape.tree import ROOT

DOCUMENTS = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if path.exists()]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"#\s*([\w/]+\.py)\b")
SHELL = {"console", "sh", "shell", "bash"}


def blocks(text: str, languages: set[str]) -> list[str]:
    return [body for language, body in FENCE.findall(text) if language in languages]


def commands(text: str) -> list[list[str]]:
    """The words of each command in the shell blocks: the lines after `$`, or all lines where none has it."""
    found = []
    for block in blocks(text, SHELL):
        lines = block.splitlines()
        prompted = [line[2:] for line in lines if line.startswith("$ ")]
        found += [line.split("#")[0].split() for line in prompted or lines if line.split("#")[0].strip()]
    return found


def run_python(document: str, folder: Path) -> None:
    """Run a document's Python blocks in `folder`; AssertionError shows the block that failed and why."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    for number, block in enumerate(blocks(document, {"python"}), start=1):
        titled = FILE_NAME.match(block)
        file = folder / (titled[1] if titled else f"block_{number}.py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block)
        if "# not run" in block:
            compile(block, str(file), "exec")
            continue
        command = [sys.executable, "-W", "error::ResourceWarning", str(file)]
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=90)
        assert result.returncode == 0, f"Python block {number} failed:\n{block}\n{result.stdout}{result.stderr}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_run(document: Path, tmp_path: Path) -> None:
    run_python(document.read_text(), tmp_path)


def test_a_failing_block_is_shown(tmp_path: Path) -> None:
    good = "```python\n# seven.py\nx = 7\n```\n```python\nfrom seven import x\nassert x == 7\n```\n"
    run_python(good, tmp_path)
    with pytest.raises(AssertionError, match="block 3 failed"):
        run_python(good + "```python\nraise SystemExit(1)\n```\n", tmp_path)
    with pytest.raises(SyntaxError):
        run_python("```python\n# not run\ndef:\n```\n", tmp_path)


def test_commands_are_read_from_shell_blocks() -> None:
    text = "```console\n$ chains run call.py  # serves\nlistening\n```\n```sh\nmake call\n```\n"
    assert commands(text) == [["chains", "run", "call.py"], ["make", "call"]]


SHOWN = sorted({(d.name, *words[:2]) for d in DOCUMENTS for words in commands(d.read_text()) if len(words) > 1})


def test_make_targets_and_scripts_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = [(name, verb) for name, program, verb in SHOWN if program == "make" and "=" not in verb]
    scripts = [(name, verb) for name, program, verb in SHOWN if program == "python" and "/" in verb]
    assert not [shown for shown in targets if not re.search(rf"^{re.escape(shown[1])}:", makefile, re.MULTILINE)]
    assert not [shown for shown in scripts if not (ROOT / shown[1]).exists()]


def test_subcommands_exist() -> None:
    code = "import sys; from chains.cli.main import main; sys.exit(main())"
    verbs = {verb: name for name, program, verb in SHOWN if program == "chains" and not verb.startswith("-")}
    for verb, document in verbs.items():
        command = [sys.executable, "-c", code, verb, "--help"]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert result.returncode == 0, f"{document} shows `chains {verb}`:\n{result.stderr}"
