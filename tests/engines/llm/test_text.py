"""Text and tokens: no half characters, no stop strings, typed results with clear errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from engines.llm.errors import ResultInvalid
from engines.llm.text import HALF, Detokenizer, StopStrings, parse
from tests.engines.llm.conftest import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
TEXTS = st.text(alphabet=st.sampled_from("ab .é漢字か🙂👩🏽‍🚀\n"), max_size=60)


def decode(ids: Sequence[int]) -> str:
    return str(TOKENIZER.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


@given(TEXTS)
def test_streamed_text_is_the_whole_text_in_whole_characters(text: str) -> None:
    streamed = Detokenizer(decode)
    pieces = [streamed.push(token) for token in TOKENIZER.encode(text, add_special_tokens=False)]
    assert "".join(pieces) == text
    assert not any(HALF in piece for piece in pieces)
    assert streamed.flush() == ""


def test_a_character_that_never_was_completed_is_shown_at_the_end() -> None:
    streamed = Detokenizer(decode)
    first = TOKENIZER.encode("漢", add_special_tokens=False)[0]
    assert streamed.push(first) == ""
    assert streamed.flush() == HALF


def until_stop(text: str, stops: list[str]) -> str:
    """What a stream must show: the text before the first stop string that is complete."""
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return text


@given(
    st.lists(st.text("abc.", min_size=1, max_size=4), max_size=12),
    st.lists(st.text("abc.", min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_a_stop_string_is_never_shown_however_the_text_is_cut(pieces: list[str], stops: list[str]) -> None:
    letters = [letter for piece in pieces for letter in piece]
    watcher = StopStrings(stops)
    shown = "".join(watcher.push(letter) for letter in letters)
    assert shown + watcher.flush() == until_stop("".join(letters), stops)


@given(st.lists(st.text("abc.", max_size=4), max_size=12), st.text("abc.", min_size=1, max_size=3))
def test_pieces_of_any_size_give_the_same_text(pieces: list[str], stop: str) -> None:
    watcher = StopStrings([stop])
    shown = "".join(watcher.push(piece) for piece in pieces)
    assert shown + watcher.flush() == until_stop("".join(pieces), [stop])


def test_what_could_begin_a_stop_string_waits() -> None:
    watcher = StopStrings(["END"])
    assert watcher.push("abE") == "ab"
    assert watcher.push("N") == ""
    assert watcher.push("x") == "ENx"


def test_an_included_stop_string_ends_the_text() -> None:
    watcher = StopStrings([". "], include=True)
    assert watcher.push("One") + watcher.push(". Two") == "One. "
    assert watcher.stopped


class Booking(BaseModel):
    service: str
    day: Literal["Monday", "Tuesday"]


@dataclass
class Slot:
    hour: int


def test_typed_results() -> None:
    assert parse('Sure: {"service": "checkup", "day": "Monday"} ok', Booking) == Booking(
        service="checkup", day="Monday"
    )
    assert parse('{"hour": 9}', Slot) == Slot(9)
    assert parse(" Yes. ", Literal["yes", "no"]) == "yes"
    assert parse("[1, 2]", list[int]) == [1, 2]
    assert parse("3", int) == 3
    assert parse(" hi ", str) == "hi"


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("perhaps", Literal["yes", "no"], ("'perhaps'", "one of 'yes', 'no'")),
        ("no idea", Booking, ("'no idea'", "Booking", "no JSON")),
        ('{"service": "x", "day": "Friday"}', Booking, ("Friday", "Booking", "day")),
        ('{"hour": "late"}', Slot, ("late", "Slot", "hour")),
        ("", int, ("''", "int")),
    ],
)
def test_a_wrong_result_says_what_was_written_and_what_was_expected(
    text: str, kind: type, words: tuple[str, ...]
) -> None:
    with pytest.raises(ResultInvalid) as caught:
        parse(text, kind)
    assert all(word in str(caught.value) for word in words)
    assert caught.value.text == text
