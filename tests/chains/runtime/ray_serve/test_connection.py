"""Which cluster is meant, and what is said of one that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from chains.errors import SettingError, Unauthenticated, Unavailable

pytest.importorskip("ray")

from chains.runtime.ray_serve import connection


@pytest.fixture(autouse=True)
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return tmp_path


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "ray://127.0.0.1:1"])
def test_nobody_there(address: str) -> None:
    with pytest.raises(Unavailable, match=r"no Ray cluster answers at .*; check --address"):
        connection.connect(address)


@pytest.mark.parametrize("version", ["2.57.1", "2.61.0", "3.0.0", "1.13"])
def test_another_ray(version: str) -> None:
    with pytest.raises(
        SettingError, match=rf"Ray {version} is installed, and Ray 2.58 or newer, below 2.61, is needed"
    ):
        connection.check_version(version)
    connection.check_version("2.60.0")


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("Version mismatch: The cluster was started with:\n    Ray: 2.9.0", SettingError, "other versions"),
        ("InvalidAuthToken: Authentication token is missing", Unauthenticated, "RAY_AUTH_TOKEN_PATH"),
        (
            "Can't find a `node_ip_address.json` file",
            Unavailable,
            "no node of the cluster at h:1; use --address ray://",
        ),
        ("boom", Unavailable, "does not let this process in: boom"),
    ],
)
def test_what_ray_says_is_said_in_our_words(said: str, kind: type, words: str) -> None:
    told = connection._told("h:1", RuntimeError(said))
    assert isinstance(told, kind) and words in str(told)


def test_machines() -> None:
    node = {
        "NodeID": "ab",
        "NodeManagerAddress": "10.0.0.1",
        "Resources": {"CPU": 8.0, "memory": 2.0**33, "GPU": 2.0, "accelerator_type:L4": 1.0, "node:10.0.0.1": 1.0},
    }
    assert str(connection._machine(node)) == "10.0.0.1: 8 cpu, 8.0 GiB, 2 L4"


def test_what_a_node_warns_of_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = pytest.importorskip("ray._private.worker")
    warning = {"lines": ["WARNING: 8 PYTHON worker processes have been started"], "pid": "raylet", "is_err": False}
    monkeypatch.setattr(worker, "_worker_logs_enabled", True)
    worker.print_to_stdstream(warning, ignore_prefix=False)
    assert "PYTHON worker" in capsys.readouterr().out
    connection._no_warnings()
    worker.print_to_stdstream(dict(warning, lines=["WARNING: 9 others"]), ignore_prefix=False)
    assert capsys.readouterr() == ("", "")
