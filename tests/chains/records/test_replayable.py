"""What a replay is given of a recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chains.errors import NotFound, Unavailable
from chains.messages import Control, Tensor, Text
from chains.protocol import encode_binary
from chains.records.recorded import CALLER, REPLY, Row
from chains.records.replayable import Recording, recorded_input
from tests.chains.records.taped import closed, event, kept, opened, sound, spoken, text, tone


def recording(path: Path, rows: list[Row]) -> Recording:
    conn, call = kept(path / "t.sqlite", rows)
    try:
        return recorded_input(conn, call)
    finally:
        conn.close()


def test_sound_comes_back_in_the_frames_in_which_it_came(tmp_path: Path) -> None:
    pcm = tone(2500)
    found = recording(tmp_path, [opened(), *spoken(100, pcm), closed(2700)])
    assert [round(one.at, 1) for one in found.inputs[:3]] == [100.0, 120.0, 140.0]
    assert {one.ms for one in found.inputs} == {20.0}
    assert np.array_equal(np.concatenate([one.value.pcm for one in found.inputs]), pcm)
    assert found.ended == 2700 and not found.left and not found.reported


def test_one_long_piece_comes_back_in_frames(tmp_path: Path) -> None:
    found = recording(tmp_path, [opened(), sound(5, tone(3210)), closed(9)])
    assert {one.at for one in found.inputs} == {5.0} and max(one.ms for one in found.inputs) == 20.0
    assert np.array_equal(np.concatenate([one.value.pcm for one in found.inputs]), tone(3210))


def test_everything_else_comes_back_too_and_in_order(tmp_path: Path) -> None:
    tensor = Tensor(np.arange(4, dtype=np.int64), "t", 2)
    rows = [
        opened(method="mix", arguments={"n": 3}, audio={"rate": 8000, "encoding": "mulaw"}),
        Row("c1", CALLER, 1, 10.0, "text", 0, 0, b'{"text":"hi"}'),
        Row("c1", CALLER, 1, 11.0, "control", 0, 0, b'{"kind":"key","data":{"digit":"5"}}'),
        Row("c1", CALLER, 1, 12.0, "value", 0, 0, b'{"x":1}'),
        Row("c1", CALLER, 2, 13.0, "tensor", 2, 0, encode_binary(tensor)),
        event(14, "hold", CALLER),
        event(15, "played", CALLER, turn=1, ms=20.0),
        event(16, "resume", CALLER),
        sound(17, tone(20)),
        Row("c1", CALLER, 0, 17.0, "end", 0, 0, b""),
        event(30, "hang-up", CALLER),
        closed(31),
    ]
    found = recording(tmp_path, rows)
    assert (found.method, found.arguments, found.rate, found.encoding) == ("mix", {"n": 3}, 8000, "mulaw")
    assert found.left and found.reported
    kinds = [one.kind for one in found.inputs]
    assert kinds == ["text", "control", "value", "tensor", "event", "event", "audio", "end"]
    assert found.inputs[0].value == Text("hi") and found.inputs[1].value == Control("key", {"digit": "5"})
    assert found.inputs[2].value == {"x": 1} and np.array_equal(found.inputs[3].value.data, tensor.data)


def test_replies_are_counted_by_turn_or_by_their_pauses(tmp_path: Path) -> None:
    rows = [
        opened(),
        sound(100, tone(400), side=REPLY, turn=1),
        sound(900, tone(600), side=REPLY, turn=2),
        event(1100, "clear", turn=2),
        text(2000, "no sound", turn=3),
        closed(3000),
    ]
    found = recording(tmp_path, rows)
    assert [(reply.turn, reply.start, reply.end, reply.whole) for reply in found.replies] == [
        (1, 100, 500, True),
        (2, 900, 1100, False),
        (3, 2000, 2000, True),
    ]
    assert found.answered(50) is None
    assert found.answered(300) == (0, 200.0)
    assert found.answered(600) == (0, float("inf"))
    assert found.answered(1500) == (1, 200.0)
    assert found.answered(2500) == (2, float("inf"))


def test_replies_without_turns_are_parted_by_silence(tmp_path: Path) -> None:
    rows = [opened(), *(sound(at, tone(300), side=REPLY) for at in (0, 500, 2000)), closed(3000)]
    assert [(reply.start, reply.end) for reply in recording(tmp_path, rows).replies] == [(0, 800), (2000, 2300)]


def test_what_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="the call goes on"):
        recording(tmp_path, [opened()])
    conn, call = kept(tmp_path / "other.sqlite", [opened(), closed(3)])
    conn.execute("UPDATE calls SET recorded = 0")
    with pytest.raises(NotFound, match="--record"):
        recorded_input(conn, call)
    conn.close()
