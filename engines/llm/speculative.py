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
