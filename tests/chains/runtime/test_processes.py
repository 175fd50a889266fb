"""A process for each replica: starts that fail, ends, crashes, and that no process outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from chains.dsl.chainlet import chainlet
from chains.dsl.graph import build, load
from chains.errors import NotFound, RemoteError, SettingError, StartError, Unavailable
from chains.runtime.processes import Processes, target_of
from chains.spans import hop_rows
from tests.chains.runtime import chain_of_processes as chain
from tests.chains.wire.hosted import eventually
from tests.shape.tree import ROOT


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_each_replica_has_its_process_and_none_is_left(capfd: pytest.CaptureFixture[str]) -> None:
    async with Processes(build(chain.Front), replicas={"Worker": 2}) as runtime:
        assert runtime.health().ok and [one.state for one in runtime.load()] == ["ready"] * 3
        async with runtime.open_call() as call:
            pids = await runtime.entry.pids()
            assert len({os.getpid(), *pids}) == 3
            assert await runtime.entry.both("hello") == "hello"
        record = runtime.recorder.find(call.id)
        assert record is not None
        rows = {row["hop"]: row["calls"] for row in hop_rows(record.hops)}
        assert rows == {"Front.pids": 1, "Front.both": 1, "Worker.pid": 1, "Worker.say": 2}, "hops of all processes"
        everybody = [process._process.pid for process in runtime._each() if process._process]
        with pytest.raises(NotFound, match="no chainlet Nobody"):
            runtime.handle("Nobody")
    assert not any(map(alive, everybody))
    assert "] said hello" in capfd.readouterr().err, "what a replica writes is seen under its name"


async def test_work_after_a_hop_is_done_in_its_process(tmp_path: Path) -> None:
    file = tmp_path / "after"
    async with Processes(build(chain.Front)) as runtime, runtime.open_call():
        await runtime.handle("Worker").leave(str(file))
        await eventually(lambda: not (not file.exists() or not file.read_text()))


async def test_a_method_that_exits_ends_its_hop_alone() -> None:
    async with Processes(build(chain.Front)) as runtime, runtime.open_call():
        with pytest.raises(RemoteError, match="SystemExit"):
            await runtime.handle("Worker").exit()
        assert await runtime.handle("Worker").say("still here") == "still here"


async def test_a_replica_that_does_not_start_says_why() -> None:
    with pytest.raises(StartError, match=r"Worker#0 did not start.*the weights are not there[\s\S]*chain_of_processes"):
        async with Processes(build(chain.NeedsBroken)):
            pass


async def test_a_process_that_dies_at_its_start_shows_its_stderr() -> None:
    with pytest.raises(StartError, match=r"Worker#0 ended with code 3[\s\S]*a library gives up"):
        async with Processes(build(chain.Exits)):
            pass


async def test_a_crash_in_mid_stream_with_a_stream_as_its_argument() -> None:
    async def numbers() -> AsyncIterator[int]:
        for n in range(100_000):
            yield n

    async with Processes(build(chain.Front), replicas={"Worker": 2}) as runtime:
        async with runtime.open_call():
            taken = []
            with pytest.raises(Unavailable, match="went away"):
                async for n in runtime.handle("Worker").crash(numbers()):
                    taken.append(n)
            assert taken in ([0, 1, 2], [0, 1], [0], []), "what had left before it died"
            assert await runtime.handle("Worker").say("on the other one") == "on the other one"
        line = runtime._line
        assert line is not None
        assert (len(line.tasks), len(line.lender)) == (0, 0)
        assert sorted(one.state for one in runtime.load()) == ["dead", "ready", "ready"]
        assert not any(remote.carried for node in runtime._nodes.values() for remote in node.remotes.values())  # type: ignore[attr-defined]


PARENT = """
import asyncio, sys
from chains.dsl.graph import build
from chains.runtime.processes import Processes
from tests.chains.runtime.chain_of_processes import Front

async def main():
    async with Processes(build(Front)) as runtime, runtime.open_call():
        print(*await runtime.entry.pids(), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def test_children_die_with_their_parent() -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environ
    ) as parent:
        assert parent.stdout is not None
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(children) == 2
        parent.send_signal(signal.SIGKILL)
    _, left = psutil.wait_procs(children, timeout=5.0)
    assert not left


# how another process finds the chain


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
        Processes(build(Local))


def test_unknown_replicas_are_refused() -> None:
    with pytest.raises(SettingError, match="give at least 1"):
        Processes(build(chain.Front), replicas={"Nobody": 1})


def test_it_has_to_be_started() -> None:
    with pytest.raises(Unavailable, match="async with Processes"):
        _ = Processes(build(chain.Front)).entry
