"""Nobody whose name is shown steers the terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chains.cli.plain import plain


@given(st.text())
def test_no_control_character_gets_through(text: str) -> None:
    shown = plain(text)
    assert len(shown) == len(text)
    assert not [letter for letter in shown if unicodedata.category(letter) in ("Cc", "Cf") and letter not in "\n\t"]


@pytest.mark.parametrize("text", ["Zähler.läuft → 東京", "one\n  two\tthree", ""])
def test_what_can_be_read_stays(text: str) -> None:
    assert plain(text) == text


def test_an_escape_sequence_is_none_any_more() -> None:
    assert plain("\x1b[31mred\x07\u202e") == "?[31mred??"
