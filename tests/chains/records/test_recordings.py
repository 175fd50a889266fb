"""Recordings in the store: kept beside the spans, read as a transcript, forgotten on request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chains.records.recorded import CALLER, REPLY, Row
from chains.records.recordings import Keeper, forget, incomplete, opening, summary, transcript, wav
from chains.records.render import HEADER
from chains.records.store import Store
from tests.chains.records.taped import TRACE, closed, event, kept, opened, sound, spoken, text, tone


def test_a_call_that_no_span_has_told_of_gets_its_row(tmp_path: Path) -> None:
    conn, call = kept(tmp_path / "t.sqlite", [opened(tenant="acme"), closed(5)])
    row = conn.execute("SELECT method, tenant, outcome, recorded, started, trace FROM calls").fetchone()
    assert row == ("run", "acme", "live", 1, 1_800_000_000_000_000_000, bytes.fromhex(TRACE))
    assert opening(conn, call)["streams"] == ["audio"] and incomplete(conn, call) == ""
    conn.close()


def test_a_call_that_goes_on_can_be_heard_after_a_moment(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "t.sqlite")
    keeper = Keeper(store.connection)
    keeper.keep([opened(), *spoken(0, tone(400))], now=10.0)
    call = store.connection.execute("SELECT id FROM calls").fetchone()[0]
    keeper.settle(now=10.5)
    assert not summary(store.connection, call)["caller"]
    keeper.settle(now=12.0)
    assert summary(store.connection, call)["ms"] == 400.0
    assert incomplete(store.connection, call) == "the call goes on"
    keeper.keep(spoken(400, tone(100)), now=12.1)
    keeper.close()
    assert summary(store.connection, call)["ms"] == 500.0
    store.close()


def test_another_viewer_goes_on_with_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    kept(path, [opened(), *spoken(0, tone(300))])[0].close()
    conn, call = kept(path, [*spoken(300, tone(600)[4800:]), closed(700)])
    assert np.array_equal(np.frombuffer(wav(conn, call, "caller").data[HEADER:], "<i2"), tone(600))
    assert incomplete(conn, call) == ""
    conn.close()


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([opened(), event(0, "gap", items=1), closed(9)], "1 item could not be kept"),
        ([closed(9)], "its beginning is missing"),
        ([opened()], "the call goes on"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, rows: list[Row], why: str) -> None:
    conn, call = kept(tmp_path / "t.sqlite", rows)
    assert incomplete(conn, call).startswith(why) and summary(conn, call)["incomplete"].startswith(why)
    conn.execute("UPDATE calls SET outcome = 'lost' WHERE id = ?", (call,))
    if why == "the call goes on":
        assert incomplete(conn, call) == "its end is missing"
    conn.close()


def test_the_transcript_is_what_stood_in_the_end(tmp_path: Path) -> None:
    rows = [
        text(100, "wh", CALLER, 0, final=False),
        text(200, "when", CALLER, 0, final=False),
        text(300, "when is it", CALLER, 0),
        text(500, "at", role="assistant", final=False),
        text(600, "at nine", role="assistant"),
        text(605, "Else", turn=3, role="assistant", final=False),
        text(606, " at ten", turn=3, role="assistant", final=False),
        text(607, "", turn=3, role="assistant"),
        text(610, "at nine", spoken=True, role="assistant"),
        text(900, "bye", turn=2, spoken=True, role="assistant"),
        text(950, "bye", turn=2, spoken=True, role="assistant"),
    ]
    conn, call = kept(tmp_path / "t.sqlite", [opened(), *rows])
    assert [(line["at"], line["role"], line["text"], line["final"]) for line in transcript(conn, call)] == [
        (100, "user", "when is it", True),
        (500, "assistant", "at nine", True),
        (605, "assistant", "Else at ten", True),
        (900, "assistant", "bye", True),
    ]
    conn.close()


def test_the_callers_words_stand_where_their_sound_is(tmp_path: Path) -> None:
    """A recogniser's text comes after the speech; what it heard began before."""
    rows = [
        *spoken(40, tone(2000)),
        text(2400, "when is it", CALLER, 0, start_ms=160.0, end_ms=1700.0),
        text(2500, "odd", CALLER, 0, start_ms=9e9, end_ms=1.0),
        text(2600, "at nine", role="assistant", start_ms=100.0, end_ms=200.0),
    ]
    conn, call = kept(tmp_path / "t.sqlite", [opened(), *rows])
    assert [(line["at"], line["text"]) for line in transcript(conn, call)] == [
        (200.0, "when is it"), (2500.0, "odd"), (2600.0, "at nine"),
    ]  # fmt: skip
    conn.close()


def test_what_is_forgotten_is_nowhere_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    rows = [opened(), text(5, "rutabaga 4417"), sound(9, tone(300), side=REPLY, turn=1), closed(50)]
    conn, call = kept(path, rows)
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert b"rutabaga" in path.read_bytes()
    forget(conn, call)
    assert conn.execute("SELECT recorded FROM calls").fetchall() == [(0,)]
    assert transcript(conn, call) == []
    forget(conn, call, all=True)
    assert conn.execute("SELECT count(*) FROM calls").fetchone() == (0,)
    for file in tmp_path.iterdir():
        assert b"rutabaga" not in file.read_bytes() and b"fLaC" not in file.read_bytes()
    conn.close()


@pytest.mark.parametrize("all", [True, False])
def test_a_call_that_is_forgotten_while_it_goes_on_is_not_recorded_any_further(tmp_path: Path, all: bool) -> None:
    store = Store.open(tmp_path / "t.sqlite")
    other = Store.open(tmp_path / "t.sqlite")
    keeper = Keeper(store.connection)
    keeper.keep([opened(), *spoken(0, tone(300)), opened(call="c2")], now=10.0)
    call = other.connection.execute("SELECT id FROM calls WHERE call = 'c1'").fetchone()[0]
    forget(other.connection, call, all=all)
    keeper.settle(now=20.0)  # the sound that had been gathered
    keeper.keep([text(5, "my card is 1234"), *spoken(400, tone(1_500)), event(9, "gap", items=1)], now=21.0)
    keeper.keep([text(6, "and so on"), closed(9), text(7, "late"), closed(9, call="c2")], now=22.0)
    keeper.close()
    left = "SELECT DISTINCT calls.call FROM recordings LEFT JOIN calls ON calls.id = recordings.call"
    assert other.connection.execute(left).fetchall() == [("c2",)]
    kept_calls = other.connection.execute("SELECT call, recorded FROM calls ORDER BY call").fetchall()
    assert kept_calls == ([("c2", 1)] if all else [("c1", 0), ("c2", 1)])
    for file in tmp_path.iterdir():
        assert b"my card" not in file.read_bytes()
    store.close()
    other.close()


def test_after_a_batch_that_could_not_be_written_nothing_is_taken_for_granted(tmp_path: Path) -> None:
    """The row of a call whose beginning was rolled back is another's by then."""
    with Store.open(tmp_path / "t.sqlite") as store:
        keeper = Keeper(store.connection)
        keeper.keep([opened(call="c0"), sound(0, tone(60), call="c0")])
        with pytest.raises(OverflowError):
            keeper.keep([opened(), text(5, "hello"), opened(call="c9", started=5e10)])
        assert keeper.abandon() == {"c0": 1}
        keeper.keep([opened(call="c2"), closed(5, call="c2"), text(6, "again"), closed(9)])
        rows = store.connection.execute(
            "SELECT calls.call, count(*) FROM recordings JOIN calls ON calls.id = recordings.call GROUP BY 1"
        )
        assert rows.fetchall() == [("c0", 1), ("c1", 2), ("c2", 2)]


def test_summary_names_what_was_cut_off(tmp_path: Path) -> None:
    rows = [opened(replay_of="c0"), sound(0, tone(900), side=REPLY, turn=1), event(400, "clear", turn=1), closed(500)]
    conn, call = kept(tmp_path / "t.sqlite", rows)
    assert summary(conn, call) == {
        "caller": False,
        "reply": True,
        "ms": 400.0,
        "incomplete": "",
        "replay_of": "c0",
        "unheard": [[1, 400.0, 500.0]],
    }
    conn.close()
