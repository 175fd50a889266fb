"""The step loop in a child: the same words across the wire, and an end for all when one side dies."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from engines.llm.config import ModelSource, Sampling
from engines.llm.engine import LLMEngine
from engines.llm.errors import EngineError, QueueFull, RequestFailed, SettingInvalid
from engines.llm.messages import Abort, Beat, Failure, Pin, Probed, Report, Submit
from engines.llm.process import ProcessLink, Wire, _Start
from engines.llm.scheduler import Stats
from engines.llm.seam import FinishEvent
from engines.llm.sequence import End, Request, SamplingCode, Token
from tests.engines.llm.test_engine import CHAT, SETTINGS, reply


def test_messages_cross_the_wire_as_they_are() -> None:
    one, other = (Wire(end) for end in socket.socketpair())
    request = Request(5, (1, 2, 3), 9, frozenset({0, 7}), SamplingCode(temperature=5), "a", "b", True, 4, True, (8, 9))
    beat = Beat(3, Stats(*range(9)), 1, "lost")
    token = Token(1, 5, -0.25, ((5, -0.25), (6, -3.0)), 2)
    messages = [
        Submit(request, ("regex", "a+")), Submit(request), Abort(5, "stop"), Pin((1, 2), "x"),
        Report([token], [Probed(1, (0.5,))], [End(1, "stop", 3, 1, 2)], [Failure(2, "QueueFull", "no", "wait")], beat),
    ]  # fmt: skip
    for message in messages:
        one.send(message)
        found = other.receive()
        assert found == message and type(found) is type(message)
    one.close()
    assert other.receive() is None
    other.close()


def test_the_loop_in_its_own_process(tiny_directory: Path) -> None:
    engine = LLMEngine.load(tiny_directory, SETTINGS)
    apart = LLMEngine.load(tiny_directory, replace(SETTINGS, process=True))
    try:
        assert apart.facts == engine.facts
        assert os.getsid(child_of(apart)) != os.getsid(0), "Ctrl-C at the terminal would reach it"
        sampling = {"max_tokens": 20, "temperature": 0.9, "top_p": 0.9, "seed": 4, "ignore_end": True}
        assert reply(apart, CHAT, **sampling)[:2] == reply(engine, CHAT, **sampling)[:2]
        assert apart.score(CHAT, ["a", "b"]) == engine.score(CHAT, ["a", "b"])
        assert apart.alive and apart.age == 0
        going = apart.generate(CHAT, Sampling(max_tokens=400, ignore_end=True))
        next(going)
        os.kill(child_of(apart), signal.SIGKILL)
        *_, end = going
        assert isinstance(end, FinishEvent) and end.reason == "error"
        assert "process has ended" in end.message
        assert not apart.alive
        with pytest.raises(RequestFailed, match="gone"):
            next(apart.generate(CHAT))
    finally:
        apart.close()
        engine.close()


def child_of(engine: LLMEngine) -> int:
    return int(engine._link.child.pid)  # type: ignore[attr-defined]


def test_a_model_that_cannot_be_loaded_says_why_across_processes(tmp_path: Path, tiny_directory: Path) -> None:
    for file in tiny_directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0 no header")
    for process in (False, True):
        with pytest.raises(EngineError) as found:
            LLMEngine.load(tmp_path, replace(SETTINGS, process=process))
        assert type(found.value).__name__ == "ModelBroken"
        assert "model.safetensors" in str(found.value)


PARENT = """
import sys
from pathlib import Path
from engines.llm.engine import LLMEngine
from tests.engines.llm.test_engine import SETTINGS
from dataclasses import asdict, replace
engine = LLMEngine.load(Path(sys.argv[1]), replace(SETTINGS, process=True))
print(engine._link.child.pid, flush=True)
sys.stdin.read()
"""


def test_a_child_does_not_outlive_its_parent(tiny_directory: Path) -> None:
    root = Path(__file__).parents[3]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tiny_directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root,
        env=dict(os.environ, PYTHONPATH=str(root)),
    )  # fmt: skip
    assert parent.stdout is not None and parent.stdin is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    parent.stdin.close()
    gone = threading.Event()
    for _ in range(600):
        if not running(child):
            gone.set()
            break
        threading.Event().wait(0.05)
    assert gone.is_set()


class Stopped:
    """A link whose child reads nothing, until `close` has ended it."""

    def __init__(self, directory: Path) -> None:
        self.gone = threading.Event()
        settings = replace(SETTINGS, process=True)
        source = ModelSource.resolve(directory)
        self.link = ProcessLink(source, settings, lambda _: None, lambda _: self.gone.set(), grace=0.3)
        os.kill(self.link.child.pid, signal.SIGSTOP)

    def within(self, seconds: float, call: Callable[[], None]) -> bool:
        """Whether the call is over in time; one that is not is let go by the child's end."""
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(seconds)
        late = thread.is_alive()
        if late:
            self.link.child.kill()
        return not late


def test_a_child_that_reads_nothing_holds_nobody_up(tiny_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = Stopped(tiny_directory)
    refused: list[QueueFull] = []

    def send() -> None:
        for id in range(100):
            try:
                stopped.link.send(Submit(Request(id, tuple(range(8000)), 1)))
            except QueueFull as error:
                refused.append(error)
            stopped.link.send(Abort(id))  # who leaves is heard all the same

    monkeypatch.setattr("engines.llm.process.MOST_UNSENT", 1_000_000)
    assert stopped.within(10, send)
    assert refused and "unread" in str(refused[0])
    assert stopped.within(10, stopped.link.close)
    assert stopped.gone.is_set() and stopped.link.child.returncode == -signal.SIGKILL
    with pytest.raises(RequestFailed, match="gone"):
        stopped.link.send(Abort(1))


@pytest.mark.parametrize("value", ["\ud800", 10**30, object()], ids=["surrogate", "huge", "odd"])
def test_what_no_message_can_hold_is_the_callers_error_and_nobody_elses(value: Any) -> None:
    one, other = (Wire(end) for end in socket.socketpair())
    for message in (Submit(Request(1, (1,), 1, tenant=value)), Submit(Request(2, (1, value), 1))):
        if not (isinstance(value, str) and message.request.id == 2):
            with pytest.raises(SettingInvalid, match="cannot be sent"):
                one.send(message)
    one.send(Abort(7))
    assert other.receive() == Abort(7)
    one.close()
    other.close()


@pytest.mark.parametrize("told", [True, False])
def test_a_child_whose_parent_leaves_while_it_loads_ends_without_a_word(tiny_directory: Path, told: bool) -> None:
    ours, theirs = socket.socketpair()
    child = subprocess.Popen(
        [sys.executable, "-c", f"from engines.llm.process import main; main({theirs.fileno()})"],
        pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=dict(os.environ, PYTHONPATH=str(Path(__file__).parents[3])),
    )  # fmt: skip
    theirs.close()
    wire = Wire(ours)
    if told:
        wire.send(_Start(str(tiny_directory), "", asdict(SETTINGS), logging.WARNING))
    wire.close()
    said, _ = child.communicate(timeout=60)
    assert (said, child.returncode) == ("", 0)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
