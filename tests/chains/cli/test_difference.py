"""Two versions side by side in the terminal, from a real store."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from chains.cli import difference
from chains.cli.traces import opened
from tests.chains.records import made

SECOND = 1_000_000_000


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Version one, and version two, whose second TTS replica takes 80 ms more."""
    path = tmp_path / "traces.sqlite"
    made.stored(path, list(made.calls(20)), {**made.RESOURCE, "service.version": "one"})
    later = [made.phone_call(f"late-{i}", start=made.START + (1000 + i) * SECOND, slow="TTS-1") for i in range(20)]
    made.stored(path, [span for call in later for span in call], {**made.RESOURCE, "service.version": "two"})
    return path


def arguments(path: Path) -> argparse.Namespace:
    return argparse.Namespace(traces=str(path), url="", key="")


async def lines(path: Path, a: str, b: str, width: int = 120) -> list[str]:
    async with opened(arguments(path)) as traces:
        answer = await traces.get("/api/compare", a=a, b=b)
        calls = [await traces.call(one.removeprefix("call:")) for one in (a, b) if one.startswith("call:")]
    return [line.plain for line in difference.lines(answer, calls, width)]


async def test_the_hop_that_got_slower_is_named_with_its_part(store: Path) -> None:
    told = await lines(store, "version:one", "version:two")
    assert told[0].startswith("A  ") and "one" in told[0] and "two" in told[1]
    assert any("TTS.speak got slower" in line for line in told)
    row = next(line for line in told if line.startswith("TTS.speak "))
    assert "slower: compute +" in row
    assert next(line for line in told if line.startswith("STT.transcribe ")).endswith("  same")
    assert any(line.startswith("  p95, ms") and "+" in line for line in told)


async def test_two_calls_are_compared_turn_by_turn(store: Path) -> None:
    told = await lines(store, "call:call-1", "call:late-1")
    turns = [line for line in told if line.startswith("  turn ")]
    assert len(turns) == 6
    assert any("TTS.speak compute +" in line for line in turns)


async def test_lines_fit_the_terminal(store: Path) -> None:
    assert all(len(line) <= 60 for line in await lines(store, "version:one", "version:two", width=60))


async def test_a_side_without_calls_is_said_to_have_none(store: Path) -> None:
    told = await lines(store, "range:-1h..now", "version:one")
    assert told[2] == "  A (-1h to now) has no calls: there is nothing to compare with."
    assert not any("+0.0" in line or " 0.0" in line for line in told)
    assert sum("no calls" in line for line in told) == 1


async def test_each_figure_stands_under_its_heading(store: Path) -> None:
    told = await lines(store, "version:one", "version:two")
    head = next(line for line in told if line.startswith("hop (ms)"))
    row = next(line for line in told if line.startswith("TTS.speak "))
    assert head.index("what changed") == row.index("slower")
