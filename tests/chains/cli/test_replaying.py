"""`chains replay` from the outside: a call that was recorded, a changed chain, what is printed and the exit code."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile

from chains.cli.main import main
from chains.dsl.graph import load
from chains.records.recordings import forget, summary
from chains.records.store import Store
from chains.runtime.inprocess import InProcess
from chains.serve import Server, recorder
from tests.chains.client.caller import VOICE, recorded_call
from tests.chains.viewer.taking import taking

Out = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three calls: one of questions in JSON, one that was not recorded, one of two sides who talk."""
    path = tmp_path_factory.mktemp("replays") / "traces.sqlite"
    asyncio.run(_asked(path, record=True))
    asyncio.run(_asked(path, record=False))
    return path


async def _asked(path: Path, record: bool) -> None:
    graph = load(str(VOICE))
    async with taking(path) as url:
        runtime = InProcess(graph, recorder=recorder(chain=graph.entry, version="old", viewer=url))
        served = Server(graph, port=0, runtime=runtime, record=record, viewer=url)
        async with served as server, httpx.AsyncClient() as client:
            answer = await client.post(f"{server.url}/v1/call/ask", json={"question": "when"})
            assert answer.json() == {"result": "when? answer 4"}


def calls(path: Path, recorded: bool = True) -> list[str]:
    with Store.open(path, readonly=True) as store:
        query = "SELECT call FROM calls WHERE recorded = ? AND call NOT LIKE 'replay%' ORDER BY id"
        return [call for (call,) in store.connection.execute(query, (int(recorded),))]


def replay(path: Path, *arguments: str) -> int:
    return main(["replay", *arguments, "--traces", str(path)])


def test_a_call_of_json_is_replayed_and_compared(traces: Path, capsys: Out) -> None:
    (call,) = calls(traces)
    assert replay(traces, call, "--chain", str(VOICE), "--set", "Brain.think_ms=150", "--version-name", "new") == 0
    out = capsys.readouterr().out
    assert f"replaying call {call} (ask," in out
    assert re.search(r"the trace .* \+1\d\d\.\d  Brain\.answer compute \+1\d\d\.\d", out)
    assert f"/compare?a=call:{call}&b=call:replay-of-{call}-" in out
    with Store.open(traces, readonly=True) as store:
        row, state = store.connection.execute(
            "SELECT id, recorded FROM calls WHERE call LIKE ? ORDER BY id DESC", (f"replay-of-{call}-%",)
        ).fetchone()
        assert state == 1 and summary(store.connection, row)["replay_of"] == call


def test_an_upgrade_that_is_slower_fails_the_build(traces: Path, capsys: Out) -> None:
    (call,) = calls(traces)
    slow = ("--chain", str(VOICE), "--set", "Brain.think_ms=400")
    assert replay(traces, call, *slow, "--fail-slower", "50%") == 3
    assert "slower by" in capsys.readouterr().err
    assert replay(traces, "last", "--chain", str(VOICE), "--fail-slower", "100000", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["of"] == call and answer["before_ms"] > 0 and "hops" in answer["compare"]


def test_what_cannot_be_replayed_is_said_with_its_mend(traces: Path, tmp_path: Path, capsys: Out) -> None:
    (call,), (plain,) = calls(traces), calls(traces, recorded=False)
    chain = ("--chain", str(VOICE))

    def refused(path: Path, *arguments: str) -> str:
        assert replay(path, *arguments) == 2
        return capsys.readouterr().err

    assert f"call {plain} was not recorded" in refused(traces, plain, *chain)
    assert "chains run FILE --record" in refused(traces, plain, *chain)
    assert call in refused(traces, call[:-2] + "zz", *chain)  # the nearest id
    assert "no call has been kept" in refused(tmp_path / "none.sqlite", call, *chain)
    assert "there is no chainlet Brian" in refused(traces, call, *chain, "--set", "Brian.think_ms=1")
    assert "did you mean think_ms?" in refused(traces, call, *chain, "--set", "Brain.thinkms=1")
    assert "does not exist" in refused(traces, call, "--chain", str(tmp_path / "no.py"))
    assert "no folder" in refused(traces, call, *chain, "--out", str(tmp_path / "no" / "x.wav"))
    assert "the recording says which" in refused(traces, call, "--url", "ws://127.0.0.1:1/v1/call/ask")
    assert "--chain FILE" in refused(traces, call, "--url", "ws://127.0.0.1:1", "--set", "Brain.think_ms=1")


def test_a_recording_with_a_gap_is_not_replayed(traces: Path, tmp_path: Path, capsys: Out) -> None:
    (call,) = calls(traces)
    copy = tmp_path / "copy.sqlite"
    with Store.open(traces, readonly=True) as store:
        store.connection.execute("VACUUM INTO ?", (str(copy),))
    with Store.open(copy) as store:
        row = store.connection.execute("SELECT id FROM calls WHERE call = ?", (call,)).fetchone()[0]
        store.connection.execute(
            "INSERT INTO recordings (call, seq, side, stream, at_ms, kind, turn, ms, rate, data)"
            " VALUES (?, 999, 0, 0, 0, 'event', 0, 0, 0, ?)",
            (row, b'{"event":"gap","items":7}'),
        )
    assert replay(copy, call, "--chain", str(VOICE)) == 2
    assert "is not whole: 7 items could not be kept" in capsys.readouterr().err
    with Store.open(copy) as store:
        forget(store.connection, row)
    assert replay(copy, call, "--chain", str(VOICE)) == 2
    assert "was not recorded" in capsys.readouterr().err


def test_a_chain_that_runs_already_is_called(traces: Path, capsys: Out) -> None:
    (call,) = calls(traces)

    async def served() -> int:
        graph = load(str(VOICE))
        async with taking(traces) as url:
            runtime = InProcess(graph, recorder=recorder(chain=graph.entry, version="up", viewer=url))
            async with Server(graph, port=0, runtime=runtime) as server:
                return await asyncio.to_thread(replay, traces, call, "--url", server.url)

    assert asyncio.run(served()) == 0
    assert "Brain.answer" in capsys.readouterr().out


@pytest.mark.slow
def test_a_talk_of_two_is_replayed_to_a_slower_chain(tmp_path: Path, capsys: Out) -> None:
    path, out = tmp_path / "traces.sqlite", tmp_path / "replay.wav"
    call = asyncio.run(recorded_call(path))
    slow = ("--chain", str(VOICE), "--set", "Brain.think_ms=500")
    assert replay(path, call[:8], *slow, "--out", str(out), "--fail-slower", "100") == 3
    told = capsys.readouterr()
    assert "note:" not in told.err
    lines = [line for line in told.out.splitlines() if line.strip().startswith("turn ")]
    assert len([line for line in lines if "Brain.answer" in line and "+" in line]) >= 2
    both, rate = soundfile.read(out, dtype="int16")
    assert rate == 16_000 and np.abs(both).max(axis=0).min() > 8000
