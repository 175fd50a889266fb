"""What a caller hears, on a clock that is moved by hand."""

from __future__ import annotations

import numpy as np

from chains.client.playback import Playback
from chains.messages import Audio


class Hand:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def sound(ms: int, turn: int = 1, rate: int = 1000 * 16) -> Audio:
    return Audio(np.full(rate * ms // 1000, 1000, np.int16), rate, turn)


def playback() -> tuple[Playback, Hand]:
    hand = Hand()
    return Playback(now=hand, began=hand.time), hand


def test_pieces_follow_each_other_and_never_start_before_they_came() -> None:
    heard, hand = playback()
    heard.add(sound(100))
    heard.add(sound(100))
    assert round(heard.end, 6) == 100.2
    hand.time = 101.0
    heard.add(sound(100))
    assert [round(start, 6) for start, _ in heard.pieces] == [100.0, 100.1, 101.0]
    assert round(heard.played()[1]) == 200
    hand.time = 101.05
    assert round(heard.played()[1]) == 250


def test_a_cleared_turn_is_cut_where_it_was_heard() -> None:
    heard, hand = playback()
    heard.add(sound(1000))
    hand.time = 100.25
    heard.on_event("clear", 1)
    hand.time = 105.0
    assert round(heard.played()[1]) == 250
    assert round(heard.end, 6) == 100.25


def test_a_clear_leaves_other_turns_alone() -> None:
    heard, hand = playback()
    heard.add(sound(100, turn=1))
    heard.add(sound(100, turn=2))
    heard.on_event("clear", 2)
    hand.time = 101.0
    assert {turn: round(ms) for turn, ms in heard.played().items() if ms > 0.001} == {1: 100}


def test_a_held_reply_waits_and_goes_on_without_loss() -> None:
    heard, hand = playback()
    heard.add(sound(200))
    hand.time = 100.05
    heard.on_event("held", 1)
    hand.time = 103.0
    assert round(heard.played()[1]) == 50
    heard.on_event("resumed", 1)
    assert round(heard.end, 6) == 103.15
    hand.time = 103.15
    assert round(heard.played()[1]) == 200


def test_a_held_reply_that_is_cleared_ends_where_it_was_held() -> None:
    heard, hand = playback()
    heard.add(sound(200))
    hand.time = 100.05
    heard.on_event("held", 1)
    hand.time = 102.0
    heard.on_event("clear", 1)
    assert round(heard.played()[1]) == 50


def test_the_track_is_at_one_rate_and_in_its_place() -> None:
    heard, hand = playback()
    hand.time = 100.5
    heard.add(sound(100, rate=24_000))
    heard.add(sound(100, rate=24_000))
    track = heard.track(16_000)
    loud = np.flatnonzero(np.abs(track) > 500)
    assert abs(loud[0] - 8_000) < 40
    assert abs(loud[-1] - 8_000 - 3_200) < 40
