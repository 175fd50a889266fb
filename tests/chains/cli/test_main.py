"""The command line: what goes wrong is one message with its mend, exit code 2, no traceback unless --debug."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from chains.cli.main import main, parser

PARLOUR = str(Path(__file__).parents[1] / "gateway" / "parlour.py")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["run", "no_such.py"], "no_such.py does not exist"),
        (["check", "no_such.py"], "no_such.py does not exist"),
        (["check", "{folder}/plain.py"], "holds no chainlet"),
        (["check", "{folder}/broken.py"], "broken.py:1"),
        (["run", "{parlour}:Parlor"], "Parlour"),
        (["run", "{parlour}", "--port", "70000"], "port is 70000"),
        (["run", "{parlour}", "--host", "0.0.0.0"], "--insecure"),
        (["check", "{parlour}", "--svg", "/no/such/folder/out.svg"], "cannot be written"),
        (["dial", "ws://127.0.0.1:1", "--wav", "{folder}/tone.wav"], "chains run"),
        (["dial", "ws://127.0.0.1:1", "--wav", "no.wav"], "no.wav does not exist"),
        (["dial", "ws://127.0.0.1:1", "--wav", "{folder}/plain.py"], "cannot be read as audio"),
        (["dial", "ftp://x", "--wav", "{folder}/tone.wav"], "no address"),
        (["dial", "ws://127.0.0.1:1", "--wav", "{folder}/tone.wav", "--rate", "7"], "--rate is 7"),
    ],
)
def test_what_goes_wrong_is_said_in_one_message(
    line: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], tone: Path
) -> None:
    (tmp_path / "plain.py").write_text("x = 1\n")
    (tmp_path / "broken.py").write_text("def (:\n")
    arguments = [part.format(folder=tmp_path, parlour=PARLOUR) for part in line]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("chains: ") and says in error
    assert "Traceback" not in error


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "no_such.py", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("line", [[], ["fly"], ["run"], ["dial", "ws://x"], ["dial", "ws://x", "--wav", "a", "--mic"]])
def test_a_line_that_makes_no_sense_is_exit_2_with_usage(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(line)
    assert left.value.code == 2
    assert "usage: chains" in capsys.readouterr().err


def test_version_and_module_entry() -> None:
    done = subprocess.run([sys.executable, "-m", "chains", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("chains ")


def test_the_command_line_alone_loads_no_server_and_no_numpy() -> None:
    code = (
        "import sys; from chains.cli.main import main\n"
        "try: main(['--version'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('numpy', 'uvicorn', 'starlette', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_commands_of_other_packages_are_added_and_a_broken_one_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "greeting_commands.py").write_text(
        "def register(commands):\n"
        "    greet = commands.add_parser('greet')\n"
        "    greet.set_defaults(command=lambda arguments: print('hello') or 0)\n"
    )
    info = tmp_path / "greeting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[chains.commands]\ngreet = greeting_commands:register\nlost = no_such_module:register\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    assert main(["greet"]) == 0
    assert "hello" in capsys.readouterr().out
    assert "lost (ModuleNotFoundError" in (parser().epilog or "")
