"""The shared half of the benchmarks: options, sampling, percentiles, table and JSON."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.report import Row, arguments, compare, figure, interleave, percentile, report

KEYS = ["name", "ours", "peer", "ratio", "p50", "p99", "n", "goal", "met"]


def test_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = arguments("a benchmark", ["--quick", "--json", str(tmp_path / "x.json")])
    assert (options.quick, options.json) == (True, tmp_path / "x.json")
    assert arguments("a benchmark", []).json is None
    with pytest.raises(SystemExit):
        arguments("a benchmark", ["--quack"])
    assert "--quick" in capsys.readouterr().err


def test_interleave_measures_each_side_once_a_round_in_changing_order() -> None:
    seen: list[str] = []

    def side(name: str, value: float) -> float:
        seen.append(name)
        return value

    samples = interleave(40, {"a": lambda: side("a", 1), "b": lambda: side("b", 2)}, seed=3, warm=2)
    assert samples == {"a": [1.0] * 40, "b": [2.0] * 40}
    rounds = [tuple(seen[i : i + 2]) for i in range(0, len(seen), 2)]
    assert len(rounds) == 42 and set(rounds) == {("a", "b"), ("b", "a")}
    again: list[str] = []
    interleave(40, {"a": lambda: again.append("a"), "b": lambda: again.append("b")}, seed=3, warm=2)
    assert again == seen, "the same seed gives the same order"


def test_interleave_times_a_side_that_returns_nothing() -> None:
    ticks = iter(range(100))
    samples = interleave(3, {"a": lambda: None}, warm=0, clock=lambda: float(next(ticks)))
    assert samples == {"a": [1.0, 1.0, 1.0]}
    with pytest.raises(ValueError, match="at least one"):
        interleave(0, {"a": lambda: None})


def test_percentile() -> None:
    assert percentile([3, 1, 2], 50) == 2
    assert percentile(range(101), 99) == 99
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)


def test_compare_scales_and_judges_the_goal() -> None:
    row = compare("hop, us", [1e-6, 3e-6, 2e-6], [4e-6], goal=2.5, scale=1e6)
    assert (row.ours, row.peer, row.n, row.met) == (pytest.approx(2), pytest.approx(4), 3, True)
    assert row.ratio == pytest.approx(0.5)
    assert compare("hop", [3.0], goal=2.5).met is False
    assert compare("tokens/s", [3.0], goal=2.5, higher_is_better=True).met is True
    assert compare("watched", [3.0]).met is None
    assert compare("peer of zero", [3.0], [0.0]).ratio is None


def test_figures_are_readable() -> None:
    shown = [figure(value) for value in (None, 0.0, 0.01234567, 12.0, 123456.7, 1.5e-5)]
    assert shown == ["-", "0", "0.01235", "12", "123,457", "1.50e-05"]


def test_report_prints_and_writes_the_same_rows(tmp_path: Path) -> None:
    rows = [
        Row("hop [us]", 42.0, 84.0, 0.5, 41.0, 60.0, 500, 50, True),
        Row("slow", 9.0, goal=5, met=False, n=3),
    ]
    out, path = io.StringIO(), tmp_path / "deep" / "rows.json"
    report(rows, path, "CPU per hop [quiet]", console=Console(file=out, width=140))
    text = out.getvalue()
    assert "CPU per hop [quiet]" in text and "hop [us]" in text
    assert "MISSED" in text and "yes" in text and "500" in text
    assert "cores" in text and "GiB" in text and "python 3." in text and "numpy 2." in text
    written = json.loads(path.read_text())
    assert [list(row) for row in written] == [KEYS, KEYS]
    assert (written[0]["ours"], written[0]["met"], written[1]["peer"], written[1]["n"]) == (
        42.0,
        True,
        None,
        3,
    )


def test_what_is_no_number_is_null(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    report([Row("x", math.nan, ratio=math.inf)], path, "t", console=Console(file=io.StringIO()))
    assert json.loads(path.read_text())[0]["ours"] is None
