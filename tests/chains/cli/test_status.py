"""How a status reads. What stands in it: tests/chains/runtime/ray_serve/test_operate.py."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from chains.cli.status import _app
from chains.runtime.ray_serve.operate import AppStatus, ChainletStatus, ReplicaStatus

LOAD = {"running": 3.0, "queued": 1.0, "streams": 2.0, "draining": 0.0, "queue_wait_ms": 12.4}
GOOD = ReplicaStatus("Ears#a", "ready", "10.0.0.1", "10.0.0.1:50", 7, load=LOAD)
LOADING = ReplicaStatus("Ears#b", "loading", "10.0.0.2", pid=8)
FAILED = ReplicaStatus("Brain#c", "failed", why="Brain#c did not start: no weights; fetch them")
DOOR = ReplicaStatus("gateway#d", "ready", "10.0.0.1", "http://10.0.0.1:8000", 9, load={"calls": 0.0})


def test_counts_states_load_and_what_is_wrong() -> None:
    app = AppStatus(
        "desk",
        "unhealthy",
        False,
        "Brain: no weights",
        ("http://10.0.0.1:8000",),
        (
            ChainletStatus("Ears", 2, 1, 8, True, "", (GOOD, LOADING)),
            ChainletStatus("Brain", 1, 1, 1, False, "no weights", (FAILED,)),
            ChainletStatus("gateway", 1, 1, 1, True, "", (DOOR,)),
        ),
    )
    shown = [line.split() for line in _app(app)]
    assert [" ".join(line) for line in shown] == [
        "desk unhealthy http://10.0.0.1:8000 (Brain: no weights)",
        "Ears 1/2 ready (1-8), 1 starting",
        "Ears#a ready 10.0.0.1:50 running 3, queued 1, streams 2, wait 12 ms",
        "Ears#b loading 10.0.0.2",
        "Brain 0/1 ready, 1 failed no weights",
        "Brain#c failed Brain#c did not start: no weights; fetch them",
        "gateway 1/1 ready",
        "gateway#d ready http://10.0.0.1:8000 idle",
    ]
    assert app.to_json()["chainlets"][1]["failed"] == 1
