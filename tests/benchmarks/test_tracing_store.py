"""The receiver's benchmark runs, and loses nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import tracing_store
from tests.shape.tree import ROOT


def test_rounds_are_of_other_calls() -> None:
    turns = tracing_store.rounds(1_000)
    first, second = next(turns), next(turns)
    assert len(first) == len(second) == 1_000 // tracing_store.BATCH + 1
    assert first[0].count(b"cala-") == second[0].count(b"calb-") == tracing_store.BATCH


def test_what_is_sent_is_stored(tmp_path: Path) -> None:
    with tracing_store.receiver(tmp_path) as side:
        bodies = next(tracing_store.rounds(1_000))
        outcome = side.send(bodies)
    assert outcome.stored == outcome.sent == len(bodies) * tracing_store.BATCH and outcome.rejected == 0
    assert 0 < outcome.cpu < outcome.seconds * 2 and outcome.bytes > 10_000


@pytest.mark.slow
def test_the_whole_of_it(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "tracing_store.py"), "--quick", "--json", str(rows)]
    subprocess.run(command, check=True, capture_output=True, timeout=110)
    found = {row["name"]: row for row in json.loads(rows.read_text())}
    assert found["bytes on disk: a span"]["met"] and len(found) == 8
