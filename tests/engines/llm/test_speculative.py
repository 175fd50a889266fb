"""Guesses repeat what followed before; what is remembered stays within its bound."""

from __future__ import annotations

from engines.llm.prefixes import PrefixStore, common_length
from engines.llm.speculative import guess


def test_a_guess_is_what_followed_the_same_words_before() -> None:
    assert guess([1, 2, 3, 4, 5, 9, 2, 3], 2) == [4, 5]
    assert guess([1, 2, 3], 4) == []
    assert guess([7, 7], 3) == [7]
    assert guess([1, 2, 1], 0) == []


def test_the_longest_and_latest_match_wins() -> None:
    assert guess([1, 2, 8, 3, 2, 9, 1, 2], 1) == [8]
    assert guess([2, 8, 2, 9, 2], 1) == [9]


class Counted:
    """A cache that is a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def crop(self, length: int) -> None:
        self.length = length

    def copy(self, length: int, room: int) -> Counted:
        return Counted(length)


def taken(store: PrefixStore, tokens: list[int]) -> int:
    cache = store.take(tokens, 0)
    return 0 if cache is None else cache.length


def test_the_longest_beginning_is_found_short_of_the_last_token() -> None:
    store = PrefixStore(100)
    store.put([1, 2, 3], Counted(3))
    store.put([1, 2, 3, 4, 5], Counted(5))
    assert taken(store, [1, 2, 3, 4, 9]) == 4
    assert taken(store, [1, 2, 3]) == 2
    assert taken(store, [8]) == 0
    assert common_length([1, 2], [1, 3]) == 1


def test_the_least_recently_used_goes_first_and_pinned_ones_stay() -> None:
    store = PrefixStore(6)
    store.put([1, 1], Counted(2), pinned=True)
    store.put([2, 2], Counted(2))
    store.put([3, 3], Counted(2))
    assert taken(store, [2, 2, 0]) == 2
    store.put([4, 4], Counted(2))
    assert taken(store, [3, 3, 0]) == 0
    assert [taken(store, [n, n, 0]) for n in (1, 2, 4)] == [2, 2, 2]
    assert store.tokens <= 6


def test_what_exceeds_the_bound_is_not_kept() -> None:
    store = PrefixStore(3)
    store.put([1, 2, 3, 4], Counted(4))
    assert store.tokens == 0
