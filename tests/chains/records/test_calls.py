"""The list of calls: filters, search, pages."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chains.errors import InvalidValue
from chains.records import calls
from chains.records.calls import CallFilter
from chains.records.ranges import Range
from chains.records.store import Store
from tests.chains.records import made

SECOND = 1_000_000_000


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Eight phone calls a second apart: call-2 failed, call-3 was interrupted, call-4 dropped a turn, call-5 still
    runs, call-6 is of another version, call-7 is slow; and a trace of somebody else's.
    """
    path = tmp_path / "t.sqlite"
    for number in range(8):
        more: dict[str, Any] = {
            2: {"outcome": "error"},
            3: {"states": ("answered", "interrupted")},
            4: {"states": ("dropped",)},
            7: {"slow": "STT-0", "slow_ms": 900.0, "replicas": 1, "turns": 3},
        }.get(number, {})
        spans = made.phone_call(f"call-{number}", **{"turns": 2, "start": made.START + number * SECOND, **more})
        if number == 5:
            spans = [span for span in spans if span.name != "call"]
        version = {"service.version": "newer"} if number == 6 else {}
        made.stored(path, spans, {**made.RESOURCE, **version})
    made.stored(path, made.foreign_trace(start=made.START + 9 * SECOND), {"service.name": "shop"})
    with Store.open(path, readonly=True) as store:
        yield store.connection


def ids(connection: sqlite3.Connection, **wanted: Any) -> list[str]:
    rows = calls.page(connection, CallFilter(**wanted))["rows"]
    return [row[0].removeprefix("call-") if row[0].startswith("call-") else "foreign" for row in rows]


def test_the_newest_stand_first_with_what_is_known_of_each(connection: sqlite3.Connection) -> None:
    page = calls.page(connection, CallFilter())
    assert page["total"] == 9 and page["next"] is None and not page["more"]
    row = dict(zip(page["columns"], page["rows"][-1], strict=True))
    assert row["id"] == "call-0" and row["chain"] == "PhoneCall" and row["version"] == "0badf00d"
    assert row["started_ms"] == made.START / 1e6 and row["method"] == "PhoneCall.run"
    assert (row["turns"], row["outcome"], row["live"], row["recorded"]) == (2, "done", False, False)
    assert 200 < row["slowest_ms"] < 400 and row["spans"] > 25 and row["ms"] > 4_000


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"state": "failed"}, ["2"]),
        ({"state": "interrupted"}, ["3"]),
        ({"state": "dropped"}, ["4"]),
        ({"state": "live"}, ["5"]),
        ({"state": "recorded"}, []),
        ({"state": "slow"}, ["7"]),
        ({"min_ms": 900.0}, ["7"]),
        ({"turn": 3}, ["7"]),
        ({"version": "newer"}, ["6"]),
        ({"chain": "shop"}, ["foreign"]),
        ({"chain": "PhoneCall", "version": "0badf00d", "state": "interrupted"}, ["3"]),
        ({"hop": "SELECT orders"}, ["foreign"]),
        ({"hop": "STT", "state": "failed"}, ["2"]),
        ({"hop": "STT", "replica": "LLM-0"}, []),
        ({"app": "staging"}, []),
        ({"q": "call-3"}, ["3"]),
        ({"q": "CALL-3"}, ["3"]),
        ({"q": "/orders/"}, ["foreign"]),
        ({"q": "select_users"}, []),
        ({"q": "100%"}, []),
        ({"range": Range(made.START / 1e6 + 5_500, made.START / 1e6 + 6_500)}, ["6"]),
    ],
    ids=str,
)
def test_each_filter_leaves_what_it_should(
    connection: sqlite3.Connection, wanted: dict[str, Any], found: list[str]
) -> None:
    assert ids(connection, **wanted) == found


def test_a_replica_is_found_in_the_calls_that_ran_on_it(connection: sqlite3.Connection) -> None:
    every = set(ids(connection, hop="VAD"))
    assert every == set("01234567")
    on_one = set(ids(connection, hop="VAD.windows", replica="VAD-1"))
    assert on_one and "7" not in on_one  # that one had a single replica
    assert set(ids(connection, q="VAD-1")) == on_one


def test_text_of_the_caller_is_never_part_of_a_statement(connection: sqlite3.Connection) -> None:
    for text in ("'; DROP TABLE calls; --", '"', "%' OR 1=1 --", "\\", "?", "a\0b"):
        for name in ("q", "hop", "replica", "chain", "version", "app"):
            assert ids(connection, **{name: text}) == []
    assert len(ids(connection)) == 9


@pytest.mark.parametrize("sort", calls.SORTS)
def test_pages_hold_every_call_once(connection: sqlite3.Connection, sort: str) -> None:
    whole = [row[0] for row in calls.page(connection, CallFilter(), sort=sort)["rows"]]
    paged: list[str] = []
    cursor = ""
    while True:
        page = calls.page(connection, CallFilter(), sort=sort, limit=2, cursor=cursor)
        paged += [row[0] for row in page["rows"]]
        assert page["total"] == 9
        if page["next"] is None:
            break
        cursor = page["next"]
    assert paged == whole and len(set(paged)) == 9


def test_the_slowest_stand_first_when_asked(connection: sqlite3.Connection) -> None:
    rows = calls.page(connection, CallFilter(chain="PhoneCall"), sort="slowest")["rows"]
    slowest = [row[calls.COLUMNS.index("slowest_ms")] for row in rows]
    assert slowest == sorted(slowest, reverse=True) and rows[0][0] == "call-7"


def _first(connection: sqlite3.Connection, sort: str) -> dict[str, Any]:
    return calls.page(connection, CallFilter(), sort=sort, limit=1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda c: CallFilter(state="slwo"), "choose one of slow, failed"),
        (lambda c: CallFilter(turn=-1), "count turns from 1"),
        (lambda c: CallFilter(q="x" * 201), "search for 200 at most"),
        (lambda c: calls.page(c, CallFilter(), sort="id"), "choose one of started, slowest"),
        (lambda c: calls.page(c, CallFilter(), limit=0), "ask for 1 to 1000"),
        (lambda c: calls.page(c, CallFilter(), limit=1_001), "ask for 1 to 1000"),
        (lambda c: calls.page(c, CallFilter(), cursor="junk"), "take `next` of the answer before"),
        (lambda c: calls.page(c, CallFilter(), cursor=_first(c, "slowest")["next"]), "begin without a cursor"),
        (lambda c: calls.strip(c, CallFilter(), 0), "ask for 1 to 1000"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_the_mend(connection: sqlite3.Connection, wrong: Any, said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        wrong(connection)


def test_the_strip_counts_calls_over_time(connection: sqlite3.Connection) -> None:
    start = made.START / 1e6
    told = calls.strip(connection, CallFilter(range=Range(start, start + 10_000)), 5)
    assert (told["from"], told["to"]) == (start, start + 10_000)
    assert [bin[1] for bin in told["bins"]] == [2, 2, 2, 2, 1] and [bin[4] for bin in told["bins"]] == [0, 1, 0, 0, 0]
    assert all(low <= high for _, _, low, high, _ in told["bins"])
    assert calls.strip(connection, CallFilter(q="nobody"))["bins"] == []


def test_what_changed_since_is_found(connection: sqlite3.Connection) -> None:
    everything = calls.changed(connection, 0)
    assert len(everything) == 9
    assert calls.changed(connection, max(seen for _, seen, _ in everything)) == []
    never = {"recent_ns": 2**62, "newer": 2**62}
    assert [(id, live) for id, _, live in calls.changed(connection, 0, **never)] == [(6, True)]
    assert [id for id, _, _ in calls.changed(connection, 0, **never, among=[2])] == [6, 2]
    assert [id for id, _, _ in calls.changed(connection, 0, recent_ns=2**62, newer=8)] == [9, 6]
    assert [row[0] for row in calls.rows_by_id(connection, [1, 3])] == ["call-2", "call-0"]
