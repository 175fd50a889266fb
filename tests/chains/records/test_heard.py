"""The time axis: a reply where the caller heard it, cut where it was interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest

from chains.records.heard import lane
from chains.records.recorded import CALLER, REPLY, Row
from tests.chains.records.taped import event, kept, opened, sound, spoken, tone


def runs(path: Path, rows: list[Row], side: int = REPLY) -> list[tuple[float, float, int]]:
    conn, call = kept(path / "t.sqlite", [opened(), *rows])
    try:
        return [(round(run.start, 2), round(run.end, 2), run.turn) for run in lane(conn, call, side).runs]
    finally:
        conn.close()


def reply(at: float, ms: float, turn: int = 1) -> Row:
    return sound(at, tone(ms), side=REPLY, turn=turn)


def test_a_burst_plays_piece_after_piece(tmp_path: Path) -> None:
    assert runs(tmp_path, [reply(100 + n, 500) for n in range(4)]) == [(100, 1100, 1), (1100, 2100, 1)]


def test_a_piece_that_is_late_leaves_silence(tmp_path: Path) -> None:
    assert runs(tmp_path, [reply(100, 200), reply(450, 200)]) == [(100, 300, 1), (450, 650, 1)]


def test_a_caller_whose_line_shakes_is_heard_without_gaps(tmp_path: Path) -> None:
    rows = [sound(20.0 * n + (30 if n % 7 == 3 else 0), tone(20)) for n in range(100)]
    assert runs(tmp_path, rows, CALLER) == [(0, 1000, 0), (1000, 2000, 0)]


def test_a_caller_who_is_silent_for_a_while_is_heard_where_they_speak_again(tmp_path: Path) -> None:
    rows = [*spoken(0, tone(300)), *spoken(5000, tone(300))]
    assert runs(tmp_path, rows, CALLER) == [(0, 300, 0), (5000, 5300, 0)]


def test_what_is_cleared_was_not_heard(tmp_path: Path) -> None:
    conn, call = kept(
        tmp_path / "t.sqlite",
        [opened(), reply(100, 3000), event(1500, "clear", turn=1), reply(2000, 400, turn=2)],
    )
    heard = lane(conn, call, REPLY)
    assert [(run.start, round(run.end, 1), run.turn) for run in heard.runs][-2:] == [(1100, 1500, 1), (2000, 2400, 2)]
    assert sum(ms for _, _, ms in heard.unheard) == pytest.approx(1600)
    assert {turn for turn, _, _ in heard.unheard} == {1}
    conn.close()


def test_a_turn_that_is_held_pauses_and_goes_on(tmp_path: Path) -> None:
    rows = [
        reply(0, 900),
        event(300, "turn", turn=1, state="held"),
        event(800, "turn", turn=1, state="resumed"),
    ]
    assert runs(tmp_path, rows) == [(0, 300, 1), (800, 1400, 1)]


def test_a_turn_that_is_cleared_while_held_ends_where_it_was_held(tmp_path: Path) -> None:
    rows = [reply(0, 900), event(300, "turn", turn=1, state="held"), event(800, "clear", turn=1)]
    assert runs(tmp_path, rows) == [(0, 300, 1)]


def test_what_the_client_played_moves_the_turn(tmp_path: Path) -> None:
    played = [event(100 + 150 + 100 * n, "played", CALLER, turn=1, ms=100.0 * n) for n in range(1, 5)]
    assert runs(tmp_path, [reply(100, 800), *played]) == [(250, 1050, 1)]


def test_what_the_client_played_last_is_where_an_interrupted_turn_ends(tmp_path: Path) -> None:
    rows = [reply(0, 900), event(400, "clear", turn=1), event(450, "played", CALLER, turn=1, ms=250.0)]
    assert runs(tmp_path, rows) == [(150, 400, 1)]


def test_another_turns_clear_cuts_nothing(tmp_path: Path) -> None:
    assert runs(tmp_path, [reply(0, 400), event(100, "clear", turn=9)]) == [(0, 400, 1)]
