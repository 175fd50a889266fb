"""What stands behind the ? is known and checked."""

from __future__ import annotations

import pytest
from starlette.datastructures import QueryParams

from chains.errors import InvalidValue
from chains.viewer.parameters import FILTER, Parameters


def given(query: str, *known: str) -> Parameters:
    return Parameters(QueryParams(query), known)


def test_values_are_read() -> None:
    found = given("a=7&b=1.5&c=two&d=", "a", "b", "c", "d", "e")
    assert (found.whole("a", 1), found.number("b"), found.text("c"), found.one_of("c", ("one", "two"), "one")) == (
        7, 1.5, "two", "two",
    )  # fmt: skip
    assert (found.whole("d", 3), found.number("e"), found.text("e", "x"), found.one_of("e", ("one",), "one")) == (
        3, None, "x", "one",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("z=1", "there is no parameter 'z'; there are a, b"),
        ("a=1&a=2", "a is given twice"),
        ("a=" + "9" * 2_001, "2000 are the most"),
    ],
)
def test_what_is_unknown_twice_or_too_long_is_refused(query: str, said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        given(query, "a", "b")


def test_where_nothing_is_known_that_is_said() -> None:
    with pytest.raises(InvalidValue, match="leave it out: there are none here"):
        given("a=1")


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "1e300", "one", "0x10", "9007199254740992"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="give a number from 0 on"):
        given(f"a={text}", "a").number("a")


def test_a_filter_is_read_whole() -> None:
    found = given("q=x&chain=C&hop=H&replica=R&turn=2&state=slow&min_ms=10&from=-1h&to=now", *FILTER).filter(7.2e6)
    assert (found.q, found.chain, found.hop, found.replica, found.turn, found.state) == ("x", "C", "H", "R", 2, "slow")
    assert (found.min_ms, found.range.start, found.range.end) == (10.0, 3.6e6, 7.2e6)
    assert given("", *FILTER).filter(0.0).turn is None
