"""Moments and ranges as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from chains.errors import InvalidValue
from chains.records.ranges import Range, moment, read
from chains.records.store import Store

NOW = 1_790_000_000_000.0


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("now", NOW),
        ("-30s", NOW - 30e3),
        ("-15m", NOW - 900e3),
        ("-1h", NOW - 3.6e6),
        ("-1.5d", NOW - 129.6e6),
        ("12", 12.0),
    ],
)
def test_moments_are_read(text: str, ms: float) -> None:
    assert moment(text, NOW) == ms


@pytest.mark.parametrize("text", ["", "1h", "-1w", "yesterday", "nan", "inf", "-5", "1e99", "9.3e12"])
def test_what_is_no_moment_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(InvalidValue, match="is no moment; write unix milliseconds, now"):
        moment(text, NOW)


def test_every_moment_can_be_looked_for(tmp_path: Path) -> None:
    """In nanoseconds, and in seconds, it is a number that the store can be asked with."""
    for text in ("0", "9.19e12", "-99999999999999999999d", "-" + "9" * 400 + "d", "now"):
        start = read(text, "", NOW)
        with Store.open(tmp_path / "t.sqlite") as store:
            store.connection.execute("SELECT ?, ?, ?", (start.start_ns, start.end_ns, start.buckets()[0])).fetchone()


def test_an_empty_end_is_open() -> None:
    assert read("", "", NOW) == Range(None, None)
    assert read("-1h", "", NOW) == Range(NOW - 3.6e6, None)
    assert Range(None, None).start_ns == 0 and Range(None, None).end_ns > 10**18


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(InvalidValue, match="exchange from and to"):
        read("now", "-1h", NOW)


def test_a_range_in_seconds_covers_it() -> None:
    assert Range(1_500.0, 60_500.0).buckets() == (1, 61)
