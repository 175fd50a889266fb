"""Which texts are no numbers of an option."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from chains.cli import values


@pytest.mark.parametrize(
    ("read", "good", "bad"),
    [
        (values.count, {"0": 0, "12": 12}, ["-1", "1.5", "", "x", "²"]),
        (values.some, {"1": 1}, ["0", "-1", "x"]),
        (values.seconds, {"0.5": 0.5, "600": 600.0}, ["0", "-1", "nan", "inf", "1e9", "x", ""]),
        (values.grace, {"0": 0.0, "30": 30.0}, ["-1", "nan", "inf", "-inf", "x"]),
        (values.port, {"1": 1, "65535": 65_535}, ["0", "-1", "65536", "http"]),
        (values.any_port, {"0": 0, "8000": 8000}, ["-1", "65536", "8000.0"]),
    ],
)
def test_what_makes_sense(read: Callable[[str], float], good: dict[str, float], bad: list[str]) -> None:
    assert {text: read(text) for text in good} == good
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError):
            read(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1048576", 1 << 20),
        ("500M", 500 << 20),
        ("2G", 2 << 30),
        ("2gib", 2 << 30),
        ("1.5G", 3 << 29),
        ("3MB", 3 << 20),
    ],
)
def test_sizes(text: str, found: int) -> None:
    assert values.size(text) == found


@pytest.mark.parametrize("text", ["", "G", "100", "-2G", "nan", "2X", "9999T", "1e"])
def test_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no size; give at least 1M"):
        values.size(text)


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "week"])
def test_no_days(text: str) -> None:
    assert values.days("0.5") == 0.5
    with pytest.raises(argparse.ArgumentTypeError, match="is no number of days"):
        values.days(text)
