"""The project speaks of itself alone: no path of somebody's machine, no note that somebody meant to come back to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.shape.tree import name, tracked

FORBIDDEN = re.compile(
    "|".join(
        [
            r"/home/\w+/",
            r"/root/",
            r"/tmp/\w+/",
            r"\bissues? #?\d+\b",
            r"\b(?:TODO|FIXME|XXX)\b",
        ]
    ),
    re.IGNORECASE,
)


def test_a_forbidden_word_is_found() -> None:
    assert FORBIDDEN.search("see " + "/tmp" + "/w/notes.txt")
    assert not FORBIDDEN.search("issues a warning; /workers; an agent of the clinic")


@pytest.mark.parametrize("path", tracked(), ids=name)
def test_words(path: Path) -> None:
    if path == Path(__file__):
        return
    data = path.read_bytes()
    if b"\0" in data:
        return
    lines = enumerate(data.decode(errors="replace").splitlines(), start=1)
    found = [f"{name(path)}:{number}: {match[0]}" for number, line in lines if (match := FORBIDDEN.search(line))]
    assert not found
