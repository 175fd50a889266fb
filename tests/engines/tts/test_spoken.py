"""Written English to words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.tts.spoken import cardinal, ordinal, spoken


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("It costs $85.50.", "It costs eighty-five dollars and fifty cents."),
        ("$60, or $1,200.", "sixty dollars, or one thousand two hundred dollars."),
        ("$1 and $0.05, £1.01", "one dollar and five cents, one pound and one penny"),
        ("€1.2 million", "one point two million euros"),
        ("We open at 9:30.", "We open at nine thirty."),
        ("at 9:05 a.m. on Monday", "at nine oh five a.m. on Monday"),
        ("10 AM to 7:00 pm", "ten a.m. to seven p.m."),
        ("9am-5pm", "nine a.m. to five p.m."),
        ("at 8:00", "at eight o'clock"),
        ("Call 555-0142.", "Call five five five, zero one four two."),
        ("(555) 123-4567", "five five five, one two three, four five six seven"),
        ("5 5 5, 0 1 4 2", "five five five, zero one four two"),
        ("12 Garden St., next to Dr. Smith", "twelve Garden Street, next to Doctor Smith"),
        ("St. Mary's, 1205 Elm Ave.", "Saint Mary's, twelve oh five Elm Avenue"),
        ("1 Sunset Dr. is near", "one Sunset Drive is near"),
        ("in 2026, 1998 and 2005", "in twenty twenty-six, nineteen ninety-eight and two thousand five"),
        ("Mon-Fri 8-6, Tue. too", "Mon-Fri eight to six, Tuesday too"),
        ("the 22nd, 30th and 1st", "the twenty-second, thirtieth and first"),
        ("3.5 hours, 1/2 hour, 24/7", "three point five hours, one half hour, twenty-four seven"),
        ("50% off & free", "fifty percent off and free"),
        ("jane@example.com", "jane at example.com"),
        ("-5 degrees", "minus five degrees"),
        ("**bold** 😀 text", "bold text"),
    ],
)
def test_reading(written: str, words: str) -> None:
    assert spoken(written) == words


@pytest.mark.parametrize("text", ["", " ", "…", "---", "😀🎉", "* * *", "\n\n", "?!", "\u200b"])
def test_what_cannot_be_said_is_nothing(text: str) -> None:
    assert spoken(text) == ""


@given(st.text())
def test_any_text_becomes_letters_and_punctuation(text: str) -> None:
    said = spoken(text)
    assert all(letter.isalpha() or letter in " .,;:!?'-" for letter in said)
    assert said == "" or any(letter.isalpha() for letter in said)


@given(st.integers(0, 10**12 - 1))
def test_numbers_have_names(number: int) -> None:
    assert cardinal(number)
    assert ordinal(number).endswith(("th", "st", "nd", "rd"))


@given(st.from_regex(r"[$#]?[0-9,.:/-]{1,20}( ?[ap]m)?", fullmatch=True))
def test_any_jumble_of_digits_can_be_said(text: str) -> None:
    assert not any(letter.isdigit() for letter in spoken(text))
