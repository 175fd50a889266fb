"""A call's row while spans come: what is rare. The rest is in test_writer.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from chains.records.retention import mark_lost
from chains.records.store import Store
from chains.records.writer import Writer
from tests.chains.records import made
from tests.chains.records.test_writer import SECOND, arrivals, rows


def test_a_call_that_was_given_up_lives_again_when_something_comes(tmp_path: Path) -> None:
    spans = made.phone_call("call-1", 2)
    with Store.open(tmp_path / "traces.sqlite") as store:
        writer = Writer(store, wall=lambda: 0)
        writer.write(arrivals(spans[:10]))
        mark_lost(store.connection, 601)
        query = "SELECT outcome, ended = latest, slowest_ms > 0 FROM calls"
        assert store.connection.execute(query).fetchone() == ("lost", 1, 1)
        writer.write(arrivals(spans[10:-1]))
        assert store.connection.execute(query).fetchone()[:2] == ("live", None)
        writer.write(arrivals(spans[-1:]))
        assert store.connection.execute(query).fetchone()[0] == "done"
        mark_lost(store.connection, 10_000)
        assert store.connection.execute(query).fetchone()[0] == "done"
    straight = tmp_path / "straight.sqlite"
    with Store.open(tmp_path / "traces.sqlite") as store, Store.open(straight) as other:
        Writer(other).write(arrivals(spans))
        assert rows(store.connection) == rows(other.connection)


def test_two_calls_of_ours_in_one_trace(tmp_path: Path) -> None:
    """A client may open several calls under one span of its own."""
    first, second = made.phone_call("call-1", 1), made.phone_call("call-2", 2)
    for span in second:
        span.trace = first[0].trace
    with Store.open(tmp_path / "traces.sqlite") as store:
        Writer(store).write(arrivals(first + second))
        assert [(call[0], call[9], call[13]) for call in rows(store.connection)["calls"]] == [
            ("call-1", 1, len(first)), ("call-2", 2, len(second)),
        ]  # fmt: skip


def test_a_turn_that_is_sent_again_with_another_id_counts_once(tmp_path: Path) -> None:
    spans = made.phone_call("call-1", 1)
    (turn,) = [span for span in spans if span.name == "turn 1"]
    again = made.Span(
        turn.trace, bytes(7) + b"\1", turn.parent, turn.name, turn.start, turn.end + SECOND, turn.attributes
    )
    for order in ((turn, again), (again, turn)):
        path = tmp_path / f"{order[0].end}.sqlite"
        with Store.open(path) as store:
            writer = Writer(store)
            for span in order:
                writer.write(arrivals([span]))
            assert store.connection.execute("SELECT turns FROM calls").fetchone() == (1,)
            assert store.connection.execute("SELECT ended FROM turns").fetchall() == [(again.end,)]


@pytest.mark.parametrize("ours_first", [True, False])
def test_a_call_whose_id_is_its_traces(tmp_path: Path, ours_first: bool) -> None:
    """A client may give its call the id of its trace."""
    ours, theirs = made.phone_call("call-1", 1), made.foreign_trace(1)
    for span in ours:
        span.attributes["chains.call"] = span.trace.hex()
    for span in theirs:
        span.trace = ours[0].trace
    with Store.open(tmp_path / "traces.sqlite") as store:
        writer = Writer(store)
        for batch in (ours, theirs) if ours_first else (theirs, ours):
            writer.write(arrivals(batch))
        (call,) = rows(store.connection)["calls"]
    assert (call[0], call[5], call[13]) == (ours[0].trace.hex(), "PhoneCall.run", len(ours) + len(theirs))
    assert call[2] == ours[-1].start


def test_a_call_whose_id_is_another_trace(tmp_path: Path) -> None:
    ours, theirs = made.phone_call("call-1", 1), made.foreign_trace(1)
    for span in ours:
        span.attributes["chains.call"] = theirs[0].trace.hex()
    with Store.open(tmp_path / "traces.sqlite") as store:
        Writer(store).write(arrivals(ours + theirs))
        assert sorted(call[13] for call in rows(store.connection)["calls"]) == [len(theirs), len(ours)]
