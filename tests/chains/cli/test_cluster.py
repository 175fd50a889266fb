"""The commands for a cluster from a shell: each error is one message with its mend; one round on a real cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest

CHAIN = """
import os
from chains import Environment, Resources, chainlet, depends

@chainlet(resources=Resources(cpu=1, gpu="L4"), environment=Environment(env={"MODE": "fast"}, secrets=["DESK_TOKEN"]))
class Brain:
    async def reply(self, text: str) -> str:
        print("asked", flush=True)
        return f"{text} {os.environ['MODE']} {os.environ['DESK_TOKEN']}"

@chainlet(entry=True, resources=Resources(cpu=0.1))
class Desk:
    brain: Brain = depends(Brain)
    async def run(self, text: str) -> str:
        return await self.brain.reply(text)
"""


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    """Of somebody who has no cluster."""
    without = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**without, "XDG_STATE_HOME": str(tmp_path), "RAY_TMPDIR": str(tmp_path)}


@pytest.fixture
def chain(tmp_path: Path) -> str:
    file = tmp_path / "desk.py"
    file.write_text(CHAIN)
    return str(file)


def chains(environ: Mapping[str, str], *line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "chains", *line], env=environ, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["status"], "no cluster runs on this machine; chains deploy starts one"),
        (["status", "--address", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1; check --address"),
        (["deploy", "{chain}", "--name", "a/b"], "--name 'a/b' is no name"),
        (["deploy", "{chain}", "--replicas", "Brian=2"], "--replicas Brian=2 names no chainlet; write Brain=N"),
        (["deploy", "{chain}", "--replicas", "Brain=x"], "write e.g. --replicas Brain=2"),
        (["deploy", "{chain}"], "Brain needs the secret DESK_TOKEN, which is not set here; export DESK_TOKEN=..."),
        (["deploy", "no_such.py"], "no_such.py does not exist"),
        (["scale", "desk", "Brain"], "Brain says no number; write Brain=3, or Brain=1-8"),
        (["scale", "desk", "Brain=8-1"], "8-1 replicas make no sense"),
        (["down"], "no cluster of `chains deploy` runs on this machine"),
    ],
)
def test_errors(line: list[str], says: str, environ: Mapping[str, str], chain: str) -> None:
    pytest.importorskip("ray")
    done = chains(environ, *(part.format(chain=chain) for part in line))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("chains: ") and says in done.stderr and "Traceback" not in done.stderr


def test_without_ray_it_says_how_to_get_it(environ: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('no', name='ray')\n")
    path = os.pathsep.join([str(tmp_path), environ.get("PYTHONPATH", "")])
    done = chains({**environ, "PYTHONPATH": path}, "deploy", "desk.py")
    assert done.returncode == 2
    assert (
        'ray is not installed, and a chain on a cluster needs it; run: pip install "chains-serve[ray]"' in done.stderr
    )


@pytest.fixture
def cluster(environ: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """What a cluster may be started in: sockets want a short path."""
    with tempfile.TemporaryDirectory(prefix="c", dir="/tmp", ignore_cleanup_errors=True) as folder:
        here = {**environ, "RAY_TMPDIR": folder, "DESK_TOKEN": "sesame-7"}
        try:
            yield here
        finally:
            chains(here, "down", "--yes")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_deploy_that_is_interrupted_leaves_nothing(cluster: Mapping[str, str], chain: str) -> None:
    pytest.importorskip("ray")
    slow = "    def load(self) -> None:\n        time.sleep(600)\n\n    async def reply"
    Path(chain).write_text("import time\n" + CHAIN.replace("    async def reply", slow))

    def interrupted(until: Callable[[str], bool]) -> tuple[int, str]:
        """The exit code, and what it said after Ctrl-C, which comes once that holds of a line."""
        command = [sys.executable, "-m", "chains", "deploy", chain, "--name", "desk", "--port", "0", "--grace", "1"]
        pipe = subprocess.PIPE
        heeds = partial(
            signal.signal, signal.SIGINT, signal.SIG_DFL
        )  # it is ignored where a shell started us behind itself
        with subprocess.Popen(
            command, env=cluster, text=True, stdout=pipe, stderr=subprocess.STDOUT, preexec_fn=heeds
        ) as process:
            assert process.stdout is not None
            heard: list[str] = []
            for line in process.stdout:
                heard.append(line)
                if until(line):
                    break
            else:
                raise AssertionError(f"it ended before its time, with {process.wait(60)}: {''.join(heard)}")
            process.send_signal(signal.SIGINT)
            said = process.stdout.read()
            return process.wait(60), said

    def starts(line: str) -> bool:
        if "starting a Ray cluster" not in line:
            return False
        while not of_ray():
            time.sleep(0.05)
        return True

    def of_ray() -> list[int]:
        lines = {one.pid: " ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])}
        return [pid for pid, line in lines.items() if cluster["RAY_TMPDIR"] in line]

    code, said = interrupted(starts)
    assert code == 130 and "Traceback" not in said and not of_ray()
    code, said = interrupted(lambda line: " s  Brain#" in line and "loading" in line)
    assert code == 130 and "stopping: what has not run before is taken away again" in said and "Traceback" not in said
    assert "nothing is deployed" in chains(cluster, "status").stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_deploy_look_scale_delete(cluster: Mapping[str, str], chain: str) -> None:
    pytest.importorskip("ray")
    store = str(Path(chain).parent / "t.sqlite")
    done = chains(cluster, "deploy", chain, "--name", "desk", "--port", "0", "--view-port", "0", "--traces", store)
    assert done.returncode == 0, done.stderr
    assert "starting a Ray cluster" in done.stdout and "Brain: cpu 1, 1 L4 -> cpu" in done.stdout
    assert "Desk answers at http://127.0.0.1:" in done.stdout and "/v1/call/run" in done.stdout
    assert "sesame" not in done.stdout + done.stderr

    shown = json.loads(chains(cluster, "status", "desk", "--json").stdout)
    (app,) = shown
    assert app["ok"] and {one["name"] for one in app["chainlets"]} == {"Brain", "Desk", "gateway"}
    answer = httpx.post(f"{app['urls'][0]}/v1/call/run", json={"text": "hello"}, timeout=30)
    assert answer.json() == {"result": "hello fast sesame-7"}
    link = next(line for line in done.stdout.splitlines() if line.startswith("where each call's time went: "))
    assert link in chains(cluster, "status").stdout
    kept = httpx.get(f"{link.rpartition(' ')[2]}api/info", timeout=30).json()
    assert [one["app"] for one in kept["chains"]] in ([], ["desk"])
    assert "] asked" in chains(cluster, "logs", "desk", "Brain", "-n", "5").stdout

    refused = chains(cluster, "deploy", chain, "--name", "other", "--profile", "production")
    assert refused.returncode == 2 and "(Brain) wants 1 cpu, 1 L4 for a replica, which no node has" in refused.stderr
    assert "did you mean desk?" in chains(cluster, "status", "dsk").stderr
    assert "nobody is there to be asked; add --yes" in chains(cluster, "delete", "desk").stderr
    gone = chains(cluster, "delete", "desk", "--yes").stdout
    assert gone.startswith("desk is gone\nso is the tracing page") and f"chains view --traces {store}" in gone
    assert json.loads(chains(cluster, "trace", "--traces", store, "--app", "desk", "--json").stdout)["total"] == 1
    assert "nothing is deployed" in chains(cluster, "status").stdout
    ended = chains(cluster, "down", "--yes")
    assert ended.returncode == 0 and "the cluster has ended" in ended.stdout
    assert "no cluster runs on this machine" in chains(cluster, "status").stderr
