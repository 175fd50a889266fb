"""The options of `chains trace`: moments, and lines that make no sense."""

from __future__ import annotations

import argparse

import pytest

from chains.cli.main import main
from chains.cli.trace import moment


@pytest.mark.parametrize(("text", "found"), [("30m", "-30m"), ("-2h", "-2h"), ("1.5d", "-1.5d"), ("90s", "-90s")])
def test_moments_before_now(text: str, found: str) -> None:
    assert moment(text) == found


def test_a_date() -> None:
    assert moment("2026-01-31T14:00+00:00") == "1769868000000"


@pytest.mark.parametrize("text", ["", "yesterday", "2", "h", "2w"])
def test_no_moment(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no moment; write 30m"):
        moment(text)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["trace", "diff", "a"], "diff compares two, here are 1"),
        (["trace", "a", "b"], "2 calls are too many to draw; chains trace diff a b"),
        (["trace", "delete"], "delete takes one call"),
        (["trace", "delete", "a", "--url", "http://127.0.0.1:1"], "no viewer answers at http://127.0.0.1:1"),
        (["trace", "--traces", "/no/such/file"], "no call has been kept in /no/such/file"),
    ],
)
def test_what_makes_no_sense_is_told(line: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line) == 2
    assert says in capsys.readouterr().err


def test_two_states_at_once() -> None:
    with pytest.raises(SystemExit):
        main(["trace", "--slow", "--failed"])
