"""`chains check` prints a graph or faults; `chains run` serves, as a real process, until Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest

from chains.cli.main import main

PARLOUR = str(Path(__file__).parents[1] / "gateway" / "parlour.py")


def test_check_prints_the_graph(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    drawing = tmp_path / "out.svg"
    assert main(["check", PARLOUR, "--svg", str(drawing)]) == 0
    out = capsys.readouterr().out
    assert "Parlour" in out and "shout(text: str, times: int = 1) -> str" in out
    assert drawing.read_text().lstrip().startswith("<svg")


def test_check_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["check", PARLOUR, "--json"]) == 0
    graph = json.loads(capsys.readouterr().out)
    assert graph["ok"] and graph["entry"] == "Parlour"
    (tmp_path / "two.py").write_text(
        "from chains import chainlet, depends\n"
        "@chainlet(entry=True)\n"
        "class A:\n"
        "    other = depends(int)\n"
        "    def run(self, x): ...\n"
    )
    assert main(["check", str(tmp_path / "two.py"), "--json"]) == 2
    faults = json.loads(capsys.readouterr().out)
    assert not faults["ok"] and len(faults["faults"]) >= 2
    assert all(re.search(r":\d+", fault["where"]) for fault in faults["faults"])


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """`chains run` as a process, and the lines it printed until it answered."""
    line = [sys.executable, "-m", "chains", "run", *arguments]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            for text in process.stdout:
                lines.append(text)
                if "answers at" in text:
                    break
            yield process, lines
        finally:
            process.kill()


def test_run_shows_progress_serves_and_ends_on_ctrl_c() -> None:
    with running(PARLOUR, "--port", "0", "--profile") as (process, lines):
        assert any(re.search(r"Parlour#0\s+loading", line) for line in lines)
        assert any(re.search(r"Parlour#0\s+ready", line) for line in lines)
        found = re.search(r"http://127\.0\.0\.1:\d+", lines[-1])
        assert found, lines
        answer = httpx.post(f"{found[0]}/v1/call/shout", json={"text": "soup"})
        assert answer.json() == {"result": "SOUP"}
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        rest = process.stdout.read()
        assert process.wait(10) == 0
    assert f"curl {found[0]}/v1/call/shout" in rest
    assert "Parlour.shout" in rest  # the table of the call
    assert "stopping" in rest
    assert "Traceback" not in rest and "soup" not in rest.lower()


OWN = """
import os
from chains import Autoscaling, Environment, chainlet, depends

@chainlet(environment=Environment(pip=["six"], env={"MODE": "fast"}))
class Worker:
    async def pid(self) -> tuple[int, str]:
        return os.getpid(), os.environ.get("MODE", "")

@chainlet(scaling=Autoscaling(min=2, max=4))
class Twin:
    async def run(self) -> None: ...

@chainlet(entry=True, scaling=Autoscaling(min=0, max=2))
class Front:
    worker: Worker = depends(Worker)
    twin: Twin = depends(Twin)
    async def run(self) -> tuple[int, int, str]:
        return os.getpid(), *(await self.worker.pid())
"""


def test_run_with_a_process_for_each_replica_and_what_is_not_kept(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    file = tmp_path / "own.py"
    file.write_text(OWN)
    with running(str(file), "--port", "0", "--processes") as (process, lines):
        url = re.search(r"http://127\.0\.0\.1:\d+", lines[-1])
        assert url, lines
        front, worker, mode = httpx.post(f"{url[0]}/v1/call/run", json={}, timeout=30).json()["result"]
        assert len({front, worker, process.pid}) == 3 and mode == "fast"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert any("note: Worker runs without packages of its own (six)" in line for line in lines)
    assert not any("without its variables" in line for line in lines)
    assert {f"Twin#{n}" for n in (0, 1)} == {line.split()[2] for line in lines if "Twin#" in line and "ready" in line}
    assert any("note: Twin does not scale up to 4 replicas; chains deploy does that" in line for line in lines)
    assert any("note: Front does not scale up to 2 replicas" in line for line in lines)
    with running(str(file), "--port", "0") as (process, lines):
        assert any("note: Worker runs without its variables MODE; --processes sets them" in line for line in lines)
        assert any("note: Twin has 1 replica and not 2; --processes starts them" in line for line in lines)


def _ends(process: subprocess.Popen[str]) -> str:
    """What it still says after Ctrl-C."""
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    rest = process.stdout.read()
    assert process.wait(20) == 0
    return rest


def test_run_gives_one_link_under_which_each_call_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(tmp_path / "traces.sqlite")
    options = ("--port", "0", "--view-port", "0", "--traces", store, "--version-name", "blue")
    with running(PARLOUR, *options) as (process, lines):
        assert process.stdout is not None
        link = re.search(r"http://127\.0\.0\.1:\d+/", _until("where each call's time went", process.stdout))
        found = re.search(r"http://127\.0\.0\.1:\d+", lines[-1])
        assert link and found
        assert httpx.get(link[0], timeout=30).headers["content-type"].startswith("text/html")
        assert httpx.post(f"{found[0]}/v1/call/shout", json={"text": "soup"}).json() == {"result": "SOUP"}
        rest = _ends(process)
    assert "Traceback" not in rest and "recorded" not in rest
    assert main(["trace", "--traces", store, "--version", "blue", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["chain"], row["method"], row["outcome"]) == ("Parlour", "Parlour.shout", "done")
    assert not row["recorded"]
    with pytest.raises(httpx.ConnectError):
        httpx.get(link[0])


def test_run_without_a_page_starts_nothing_and_keeps_nothing(tmp_path: Path) -> None:
    store = tmp_path / "traces.sqlite"
    with running(PARLOUR, "--port", "0", "--no-view", "--traces", str(store)) as (process, _):
        rest = _ends(process)
    assert "where each call" not in rest and not store.exists()


def test_run_sends_to_the_viewer_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAINS_VIEWER", "http://127.0.0.1:9")
    with running(PARLOUR, "--port", "0") as (process, _):
        rest = _ends(process)
    assert "where each call's time went: http://127.0.0.1:9/" in rest


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--no-view", "--record"], "--record needs the store that --no-view leaves out"),
        (["--redact", "a:b"], "--redact without --record"),
    ],
)
def test_what_cannot_be_kept_is_told_before_anything_loads(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", PARLOUR, *options]) == 2
    assert says in capsys.readouterr().err


def test_run_on_a_port_in_use_says_so_before_anything_loads() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        line = [sys.executable, "-m", "chains", "run", PARLOUR, "--port", port]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"port {port} is in use" in done.stderr and "--port" in done.stderr
    assert "loading" not in done.stdout


HANGS = """
import time
from chains import chainlet, depends

def hang() -> None:
    print("begun", flush=True)
    while True:
        time.sleep(0.05)

@chainlet
class Quick:
    async def run(self) -> str:
        return ""

@chainlet(entry=True)
class Slow:
    quick: Quick = depends(Quick)
    {load}

    async def run(self) -> str:
        return ""
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("load", ["def load(self): hang()", "async def load(self): hang()"], ids=["thread", "loop"])
def test_a_load_that_hangs_is_named_at_the_first_signal_and_ended_by_the_second(
    tmp_path: Path, number: signal.Signals, load: str
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS.replace("{load}", load))
    line = [sys.executable, "-m", "chains", "run", str(tmp_path / "hangs.py"), "--port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            _until("begun", process.stdout)
            process.send_signal(number)
            assert "Slow#0" in _until("still loading", process.stdout)
            process.send_signal(number)
            assert process.wait(5) == 128 + number
            assert "Traceback" not in process.stdout.read()
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_loads_ends_it_when_the_load_ends(tmp_path: Path, number: signal.Signals) -> None:
    gate = tmp_path / "gate"
    load = f"def load(self):\n        print('begun', flush=True)\n        open({str(gate)!r}).read()"
    (tmp_path / "waits.py").write_text(HANGS.replace("{load}", load))
    os.mkfifo(gate)
    line = [sys.executable, "-m", "chains", "run", str(tmp_path / "waits.py"), "--port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            _until("begun", process.stdout)
            process.send_signal(number)
            _until("still loading: Slow#0", process.stdout)
            gate.write_text("go on")
            rest = process.stdout.read()
            assert process.wait(5) == 128 + number
            assert "answers at" not in rest and "Traceback" not in rest
        finally:
            process.kill()


def test_a_call_that_hangs_is_ended_by_the_third_signal(tmp_path: Path) -> None:
    method = "def hang(self) -> str: hang()"
    (tmp_path / "hangs.py").write_text(HANGS.replace("{load}", method))
    with running(str(tmp_path / "hangs.py"), "--port", "0") as (process, lines):
        assert process.stdout is not None
        found = re.search(r":(\d+)", lines[-1])
        assert found, lines
        with socket.create_connection(("127.0.0.1", int(found[1]))) as caller:
            caller.sendall(b"POST /v1/call/hang HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")
            _until("begun", process.stdout)
            process.send_signal(signal.SIGINT)
            _until("stopping: 1 call has 10 s to end", process.stdout)
            process.send_signal(signal.SIGINT)
            caller.recv(1000)  # the second: the call is cancelled
            process.send_signal(signal.SIGINT)
            assert process.wait(5) == 130


def _until(words: str, lines: IO[str]) -> str:
    """Read on to the line with these words."""
    for line in lines:
        if words in line:
            return line
    raise AssertionError(f"it ended without {words!r}")
