"""Audio, text, tokens, tensors, control: read-only, checked when made, without copies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from chains.errors import InvalidValue
from chains.messages import Audio, Control, Tensor, Text, Tokens

samples = arrays(np.int16, st.integers(0, 200))


@given(samples)
def test_bytes_and_back_is_the_same_sound(pcm: np.ndarray[Any, Any]) -> None:
    sound = Audio(pcm, 8000, turn=2)
    back = Audio.from_bytes(sound.to_bytes(), 8000, turn=2)
    assert np.array_equal(back.pcm, pcm)
    assert back.seconds == len(pcm) / 8000


@given(samples)
def test_float_and_back_is_within_a_step(pcm: np.ndarray[Any, Any]) -> None:
    back = Audio.from_float(Audio(pcm, 8000).to_float(), 8000)
    assert np.abs(back.pcm.astype(int) - pcm.astype(int)).max(initial=0) <= 1


def test_floats_are_clipped_and_nan_is_silence() -> None:
    sound = Audio.from_float(np.array([2.0, -2.0, np.nan, np.inf, 0.0]), 16000, turn=3, text="hm")
    assert sound.pcm.tolist() == [32767, -32768, 0, 32767, 0]
    assert (sound.turn, sound.text) == (3, "hm")


@pytest.mark.parametrize(
    ("pcm", "rate", "found"),
    [
        (np.zeros(4, np.float32), 16000, "float32"),
        (np.zeros((2, 4), np.int16), 16000, r"shape \(2, 4\)"),
        ([0, 0], 16000, "list"),
        (np.zeros(4, np.int16), 1, "rate is 1"),
        (np.zeros(4, np.int16), 44_100.5, "rate is 44100.5"),
    ],
)
def test_what_is_no_audio_is_refused_with_the_mend(pcm: Any, rate: Any, found: str) -> None:
    with pytest.raises(InvalidValue, match=found) as caught:
        Audio(pcm, rate)
    assert caught.value.mend


def test_an_odd_number_of_bytes_is_refused() -> None:
    with pytest.raises(InvalidValue, match="3 bytes"):
        Audio.from_bytes(b"abc", 16000)


def test_bytes_are_shared_and_not_copied() -> None:
    data = bytes(range(100))
    assert np.shares_memory(Audio.from_bytes(data, 16000).pcm, np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("make", [lambda a: Audio(a, 16000).pcm, lambda a: Tensor(a).data], ids=["Audio", "Tensor"])
def test_arrays_are_views_that_cannot_be_written(make: Any) -> None:
    mine = np.zeros(8, np.int16)
    theirs = make(mine)
    assert np.shares_memory(mine, theirs)
    with pytest.raises(ValueError, match="read-only"):
        theirs[0] = 1
    mine[0] = 1  # whoever made it keeps the right to write
    sealed = mine.copy()
    sealed.flags.writeable = False
    assert make(sealed) is sealed


def test_tensors_of_objects_are_refused() -> None:
    for data in (np.array([object()]), [1.0, 2.0]):
        with pytest.raises(InvalidValue, match="numpy array"):
            Tensor(data)  # type: ignore[arg-type]


@pytest.mark.parametrize("message", [Text("a"), Tokens((1,)), Control("x"), Audio(np.zeros(1, np.int16), 8000)])
def test_messages_are_frozen(message: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.turn = 5


def test_text_and_tokens_compare_by_value() -> None:
    assert Text("a", turn=1) == Text("a", turn=1) != Text("a", turn=2)
    assert Tokens((1, 2), "ab") == Tokens((1, 2), "ab")
    assert Control("tool") == Control("tool", {})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Text(5),  # type: ignore[arg-type]
        lambda: Text("a", role=None),  # type: ignore[arg-type]
        lambda: Tokens([1, 2]),  # type: ignore[arg-type]
        lambda: Tokens((1,), 7),  # type: ignore[arg-type]
        lambda: Control(3),  # type: ignore[arg-type]
        lambda: Control("kind", [1]),  # type: ignore[arg-type]
    ],
)
def test_fields_of_the_wrong_kind_are_refused_where_they_are_made(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidValue, match="give a"):
        make()
