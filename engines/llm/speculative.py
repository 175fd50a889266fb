"""Guesses that cost nothing: what followed the same words earlier in the text. The model checks several at once."""

from __future__ import annotations

from collections.abc import Sequence

MATCH = (3, 2, 1)


def guess(tokens: Sequence[int], count: int, floor: int = 0) -> list[int]:
    """Up to `count` tokens that followed the last earlier occurrence of the text's end (three tokens, two, one).

    Looks no further back than `floor`. Answers repeat what the prompt said, so many guesses are right.
    """
    for size in MATCH:
        if count < 1 or len(tokens) - floor <= size:
            continue
        end = list(tokens[-size:])
        for start in range(len(tokens) - size - 1, floor - 1, -1):
            if list(tokens[start : start + size]) == end:
                return list(tokens[start + size : start + size + count])
    return []


class Lookup:
    """`guess` over a text that grows, at a constant cost a token: where each three, two or one tokens came last."""

    __slots__ = ("_ends", "_known")

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}
        self._known = 0

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        """What `guess(tokens, count)` gives. Only ever called with longer texts of the same beginning."""
        size = len(tokens)
        for end in range(self._known + 1, size):  # short of the text's end, which is what is looked for
            for length in MATCH:
                if length <= end:
                    self._ends[tuple(tokens[end - length : end])] = end
        self._known = max(self._known, size - 1)
        for length in MATCH:
            if count > 0 and size > length and (end := self._ends.get(tuple(tokens[size - length :]), 0)):
                return list(tokens[end : end + count])
        return []
