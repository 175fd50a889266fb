"""A call in the terminal: bars to scale, parts by character, sums that hold, whatever the width."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from chains.cli.traces import opened
from chains.cli.waterfall import Scale, became, draw, rows, seconds, short
from tests.chains.records import made


@pytest.fixture
async def detail(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "traces.sqlite"
    made.stored(path, made.phone_call("call-1", states=("answered", "interrupted", "dropped")))
    async with opened(argparse.Namespace(traces=str(path), url="", key="")) as traces:
        return await traces.call("call-1")


def test_a_bar_shows_in_each_column_what_fills_most_of_it() -> None:
    scale = Scale(0.0, 10.0, 10)
    segments = [("wire", 0.0, 2.0, ""), ("queue", 2.0, 1.0, ""), ("compute", 3.0, 4.6, ""), ("wait", 7.6, 0.4, "")]
    assert scale.bar(1.0, segments).plain == " ──░█████ "


def test_what_is_too_short_for_a_column_has_one_all_the_same() -> None:
    assert Scale(0.0, 1000.0, 10).bar(455.0, [("compute", 0.0, 0.5, "")]).plain == "    █     "
    assert Scale(0.0, 1000.0, 10).bar(1500.0, [("compute", 0.0, 0.5, "")]).plain == " " * 10
    assert Scale(0.0, 1000.0, 10).bar(455.0, []).plain == " " * 10


def test_what_goes_on_outside_is_cut_visibly() -> None:
    assert Scale(100.0, 200.0, 10).bar(0.0, [("wait", 0.0, 500.0, "")]).plain == "◂········▸"


async def test_each_turn_has_its_path_and_sums(detail: dict[str, Any]) -> None:
    told = [line.plain for line in draw(detail, 110)]
    titles = [line for line in told if line.startswith("turn ")]
    assert len(titles) == len(detail["turns"]) == 6
    assert any("interrupted by the caller" in line for line in titles)
    assert any("thrown away unheard" in line for line in titles)
    sums = [float(found[1]) for line in told if (found := re.match(r"  = ([\d.]+) ms: ", line))]
    assert sums == pytest.approx([turn["latency_ms"] for turn in detail["turns"] if turn["path"]], abs=0.06)
    for line in told:
        if found := re.match(r"  = ([\d.]+) ms: (.*)", line):
            parts = [float(part.rpartition(" ")[2]) for part in found[2].split(", ")]
            assert sum(parts) == pytest.approx(float(found[1]), abs=0.3)


@pytest.mark.parametrize("width", [40, 80, 200])
async def test_lines_fit(detail: dict[str, Any], width: int) -> None:
    bars = [line.plain for line in draw(detail, width) if "█" in line.plain and "compute" not in line.plain]
    assert bars and max(map(len, bars)) <= max(width, 64)


async def test_one_turn_alone(detail: dict[str, Any]) -> None:
    titles = [line.plain for line in draw(detail, 100, 2) if line.plain.startswith("turn ")]
    assert len(titles) == 1 and titles[0].startswith("turn 2: ")


async def test_a_trace_of_others_is_drawn_too(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    spans = made.foreign_trace(4, spans=60)
    made.stored(path, spans, {"service.name": "shop"})
    async with opened(argparse.Namespace(traces=str(path), url="", key="")) as traces:
        detail = await traces.call("last")
    told = [line.plain for line in draw(detail, 100)]
    assert any(line.startswith("the trace: ") for line in told)
    assert any(re.match(r"  and \d+ shorter ones", line) for line in told)
    assert len(rows(detail)) == 60


def test_words() -> None:
    assert [seconds(ms) for ms in (0.4, 999, 1500, 119_000, 150_000)] == [
        "0 ms",
        "999 ms",
        "1.5 s",
        "119.0 s",
        "2.5 min",
    ]
    assert short("Ears.hear", "Ears#1") == "#1" and short("Ears.hear", "other") == "other"


@pytest.mark.parametrize("width", range(12, 60))
def test_no_figure_of_the_ruler_touches_another(width: int) -> None:
    for ms in (3.0, 504.0, 8_317.0, 123_456.0):
        line = Scale(0.0, ms, width).ruler()
        known = ["0 ms", *(f"{ms * quarter / 4:.0f}" for quarter in (1, 2, 3))]
        assert len(line) == width and all(word in known for word in re.findall(r"0 ms|\S+", line))


@pytest.mark.parametrize(
    ("outcome", "reason", "told"),
    [
        ("done", "", "done"),
        ("cancelled", "hang-up", "the caller hung up"),
        ("cancelled", "the server stops", "cancelled: the server stops"),
        ("error", "boom", "error: boom"),
        ("lost", "", "lost sight of"),
    ],
)
def test_what_came_of_a_call(outcome: str, reason: str, told: str) -> None:
    assert became({"live": False, "outcome": outcome, "reason": reason}) == told
    assert became({"live": True, "outcome": "live", "reason": ""}) == "goes on"
