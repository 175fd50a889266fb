"""Guesses repeat what followed before."""

from __future__ import annotations

import random

from engines.llm.speculative import Lookup, guess


def test_a_guess_is_what_followed_the_same_words_before() -> None:
    assert guess([1, 2, 3, 4, 5, 9, 2, 3], 2) == [4, 5]
    assert guess([1, 2, 3], 4) == []
    assert guess([7, 7], 3) == [7]
    assert guess([1, 2, 1], 0) == []


def test_the_longest_and_latest_match_wins() -> None:
    assert guess([1, 2, 8, 3, 2, 9, 1, 2], 1) == [8]
    assert guess([2, 8, 2, 9, 2], 1) == [9]


def test_the_lookup_gives_the_same_guesses_as_a_text_grows() -> None:
    chance = random.Random(3)
    for alphabet in (2, 4, 20):
        lookup, tokens = Lookup(), [chance.randrange(alphabet)]
        for _ in range(200):
            assert lookup.guess(tokens, 4) == guess(tokens, 4)
            tokens += [chance.randrange(alphabet) for _ in range(chance.choice((1, 1, 3)))]
    assert lookup.guess(tokens, 0) == []
