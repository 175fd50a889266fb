"""The cluster of this machine alone: whose processes it has. Started and ended: tests/chains/cli/test_cluster.py."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from chains.errors import StartError
from chains.runtime import local_ray as local


def test_only_processes_of_its_session_and_folder_are_its_own(tmp_path: Path) -> None:
    wait = [sys.executable, "-c", "import sys; sys.stdin.read()", str(tmp_path)]
    with subprocess.Popen(wait, stdin=subprocess.PIPE, start_new_session=True) as process:
        ours = local.Local("127.0.0.1:1", process.pid, "token", str(tmp_path))
        assert ours.processes == [process.pid]
        assert local.Local("127.0.0.1:1", process.pid, "token", "/another/folder").processes == []
        assert local.Local("127.0.0.1:1", os.getsid(0), "token", str(tmp_path)).processes == []
        assert local._end(process.pid, str(tmp_path), 5.0)
    assert ours.processes == []


def test_what_ray_says_when_it_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(StartError, match=r"Ray did not start on this machine; all it said is in .*start\.log"):
        local.start()
    token = tmp_path / "chains" / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600 and len(token.read_text()) > 30
    assert local.running() is None


def test_what_is_left_of_one_that_is_dead_is_ended_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    wait = [sys.executable, "-c", "import sys; sys.stdin.read()", str(tmp_path)]
    with subprocess.Popen(wait, stdin=subprocess.PIPE, start_new_session=True) as rest:
        local.state_folder().mkdir()
        dead = local.Local("127.0.0.1:1", rest.pid, "token", str(tmp_path))
        (local.state_folder() / "cluster.json").write_text(json.dumps(asdict(dead)))
        assert local.running() == dead and local.find() == "", "its head answers nobody"
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(StartError, match="Ray did not start"):
            local.start()
        assert rest.wait(5.0) == -signal.SIGTERM and local.running() is None


@pytest.mark.parametrize("name", ["XDG_STATE_HOME", "RAY_TMPDIR"])
def test_a_folder_that_cannot_be_made(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(name, str(tmp_path / "file"))
    with pytest.raises(StartError, match=f"cannot be made: .*; set {name} to a"):
        local.start()


@pytest.fixture
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return tmp_path


def test_the_address_that_is_named_wins(nothing_here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert local.find() == ""
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert local.find() == "10.0.0.1:6379"
    assert local.find("ray://head:10001") == "ray://head:10001"


def test_one_that_ray_start_began_is_found_while_it_answers(nothing_here: Path) -> None:
    (nothing_here / "ray").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        (nothing_here / "ray" / "ray_current_cluster").write_text(address)
        assert local.find() == address
    assert local.find() == ""


def test_one_of_ours_that_has_gone_is_forgotten(nothing_here: Path) -> None:
    (nothing_here / "chains").mkdir()
    (nothing_here / "chains" / "cluster.json").write_text(
        '{"address": "127.0.0.1:1", "session": 1, "token": "x", "logs": "/no/such/folder"}'
    )
    assert local.running() is None and local.find() == ""
