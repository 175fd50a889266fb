"""Ranges of ranks cover the whole, once."""

from __future__ import annotations

import pytest

from engines.parallel import Ranks


def test_shares_cover_the_whole() -> None:
    shares = [Ranks(rank, 4).share(8, 3) for rank in range(4)]
    assert [index for share in shares for index in range(24)[share]] == list(range(24))
    assert Ranks().share(5) == slice(0, 5)


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="9 cannot be divided among 2 processes"):
        Ranks(0, 2).share(9)
    with pytest.raises(ValueError, match="ranks count from 0"):
        Ranks(2, 2)
