"""The arguments of `chains replay`: what they may be together."""

from __future__ import annotations

import argparse

import pytest

from chains.cli.replay import register


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    return parser.parse_args(["replay", *arguments])


def test_words_wait_unless_it_is_said_otherwise() -> None:
    found = parsed("last", "--chain", "call.py")
    assert (found.pace, found.fast, found.fail_slower) == ("aligned", False, None)
    assert parsed("last", "--chain", "call.py", "--as-recorded").pace == "as-recorded"
    assert parsed("last", "--url", "ws://x", "--fail-slower", "12.5%").fail_slower == 12.5
    assert parsed("last", "--url", "ws://x", "--store", "a.sqlite").traces == "a.sqlite"


@pytest.mark.parametrize(
    "wrong",
    [
        ["last"],
        ["last", "--chain", "a.py", "--url", "ws://x"],
        ["last", "--chain", "a.py", "--aligned", "--as-recorded"],
        ["last", "--chain", "a.py", "--fail-slower", "much"],
        ["last", "--chain", "a.py", "--fail-slower", "-3"],
        ["--chain", "a.py"],
    ],
)
def test_what_makes_no_sense_is_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(*wrong)
