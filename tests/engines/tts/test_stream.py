"""Clauses: the same however the text arrives, cut soon at first and never in the wrong place. Frames: no
word lost.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.tts.stream import (
    Clause,
    ClauseSettings,
    ClauseSplitter,
    SoundSettings,
    TtsSettingsError,
    frames,
    heard,
    trimmed,
)

TEXT = (
    "We are open Monday to Friday, from 8 in the morning until 6 in the evening. Dr. Smith is in at 9:30 a.m. "
    "on Mondays, and it costs $85.50 (or £70). Call 5 5 5, 0 1 4 2 now! Is that ok? We close at 6 p.m. On Sunday "
    'we rest. 😀 "Yes," he said... Then nothing.\nA list:\n1. One thing\n2. Another — the last, with 1,200 words '
    "and no end because it goes on and on until nobody knows what it was about or who had asked for it in the "
    "first place when it began; but it does end. He said no. No. 5 is alive."
)


def split(*deltas: str, settings: ClauseSettings | None = None) -> list[Clause]:
    splitter = ClauseSplitter(settings)
    return [clause for delta in deltas for clause in splitter.push(delta)] + splitter.finish()


def texts(text: str) -> list[str]:
    return [clause.text.strip() for clause in split(text)]


@given(st.lists(st.integers(0, len(TEXT)), max_size=60))
def test_however_the_text_arrives_the_clauses_are_the_same(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(TEXT)]
    deltas = [TEXT[a:b] for a, b in itertools.pairwise(places)]
    assert split(*deltas) == split(TEXT)


def test_character_by_character_too() -> None:
    assert split(*TEXT) == split(TEXT)


@given(st.text(alphabet="ab .,;:!?…—\n\"')1$DrSt", max_size=120), st.data())
def test_any_text_in_any_pieces_loses_nothing(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    clauses = split(text)
    assert split(text[:cut], text[cut:]) == clauses
    assert "".join(clause.text for clause in clauses) == text
    assert [clause.start for clause in clauses][1:] == [clause.end for clause in clauses][:-1]
    assert [clause.index for clause in clauses] == list(range(len(clauses)))


@pytest.mark.parametrize(
    "sentence",
    [
        "Please ask Dr. Smith.",
        "It is on Garden St. near you.",
        "It costs $85.50 now.",
        "Come at 9:30 a.m. on Monday.",
        "Call 5 5 5, 0 1 4 2.",
        "Call 555-123-4567 now.",
        "See www.example.com now.",
        "Version 2.5 is out.",
        "J. K. Rowling wrote it.",
        "It was 1,200 dollars.",
        "No. 5 is alive.",
    ],
)
def test_what_looks_like_an_end_is_none(sentence: str) -> None:
    assert texts("Good day to you. " + sentence) == ["Good day to you.", sentence]


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("Yes, we do. Come by.", ["Yes, we do.", "Come by."]),
        ("Well of course, we can do that.", ["Well of course,", "we can do that."]),
        ("We close at 6 p.m. On Sunday we rest.", ["We close at 6 p.m.", "On Sunday we rest."]),
        ("Is it ok? Yes! Good.", ["Is it ok?", "Yes!", "Good."]),
        ('He said "No." Then he left.', ['He said "No."', "Then he left."]),
        ("One thing\nanother", ["One thing", "another"]),
        (
            "We are open Monday to Friday from 8 in the morning.",
            ["We are open Monday to Friday", "from 8 in the morning."],
        ),
        ("", []),
        ("   ", [""]),
    ],
)
def test_clauses(text: str, clauses: list[str]) -> None:
    assert texts(text) == clauses


def test_the_first_clause_comes_before_the_sentence_is_complete() -> None:
    splitter = ClauseSplitter()
    assert splitter.push("Well of course, we") == [Clause(0, 0, 15, "Well of course,")]
    assert splitter.push(" can do that") == []
    assert splitter.push(". And") == [Clause(1, 15, 31, " we can do that.")]


def test_no_clause_grows_without_end() -> None:
    assert max(len(clause.text) for clause in split("word " * 2000)) < 250
    assert max(len(clause.text) for clause in split("x" * 5000)) <= 600


@pytest.mark.parametrize("bad", [{"first_words": 0}, {"first_limit": 2}, {"later_limit": 13}])
def test_clause_settings_that_make_no_sense_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(TtsSettingsError, match="must hold"):
        ClauseSettings(**bad)


@pytest.mark.parametrize("bad", [{"frame_ms": 0}, {"silence_db": 3.0}, {"lead_ms": -1}])
def test_sound_settings_that_make_no_sense_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(TtsSettingsError, match="must be a number from"):
        SoundSettings(**bad)


def test_silence_is_trimmed_on_both_sides() -> None:
    tone = 0.2 * np.sin(np.arange(2400) / 5).astype(np.float32)
    audio = np.concatenate((np.zeros(6000, np.float32), tone, np.zeros(9000, np.float32)))
    cut = trimmed(audio, 24_000, SoundSettings(lead_ms=10), pause_ms=60)
    assert abs(len(cut) - (240 + 2400 + 1440)) < 10
    assert len(trimmed(np.zeros(500, np.float32), 24_000, SoundSettings(), 60)) == 0


@given(st.text(min_size=1, max_size=80), st.integers(1, 60_000))
def test_frames_hold_all_samples_and_all_words(text: str, count: int) -> None:
    audio = np.linspace(-1, 1, count).astype(np.float32)
    found = list(frames(Clause(0, 7, 7 + len(text), text), audio, 24_000, SoundSettings()))
    assert sum(len(frame.samples) for frame in found) == count
    assert all(len(frame.samples) == 480 for frame in found[:-1])
    assert "".join(frame.text for frame in found) == text
    assert found[0].start == 7 and found[-1].end == 7 + len(text)


def test_what_was_heard_follows_from_what_was_played() -> None:
    text = "One two three four."
    audio = np.zeros(24_000, np.float32)
    found = frames(Clause(0, 0, len(text), text), audio, 24_000, SoundSettings())
    alignment = [(frame.end, len(frame.samples) / 24) for frame in found]
    assert heard(text, alignment, 0) == ""
    assert heard(text, alignment, 450) == "One two"
    assert heard(text, alignment, 999) == "One two three"
    assert heard(text, alignment, 1000) == text
    assert heard(text, alignment, 5000) == text
