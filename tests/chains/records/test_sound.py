"""Chunks of recorded sound: lossless at every rate, with the times of their pieces."""

from __future__ import annotations

import numpy as np
import pytest

from chains.errors import MediaError
from chains.records.sound import Chunk, index_of, samples_of
from tests.chains.records.taped import tone


@pytest.mark.parametrize("rate", [4_000, 8_000, 11_025, 16_000, 24_000, 44_101, 48_000, 192_000])
@pytest.mark.parametrize("samples", [1, 15, 160, 4_000])
def test_what_is_kept_comes_back_to_the_bit(rate: int, samples: int) -> None:
    pcm = np.random.default_rng(samples).integers(-32768, 32768, samples).astype(np.int16)
    chunk = Chunk(0.0, rate, 0)
    chunk.add(0.0, pcm)
    assert np.array_equal(samples_of(chunk.flac()), pcm)


def test_a_second_of_frames_knows_when_each_came() -> None:
    chunk = Chunk(1000.0, 16_000, 3)
    for number in range(50):
        chunk.add(1000.0 + 20 * number + (7.5 if number == 9 else 0.0), tone(20))
    index = index_of(chunk.index())
    assert chunk.full and not chunk.room()
    assert index.pieces()[9] == (187.5, 320)
    assert index.late_ms == 7.5
    assert len(chunk.index()) < 400


def test_frames_of_one_sample_do_not_make_an_entry_each() -> None:
    chunk = Chunk(0.0, 16_000, 0)
    pcm = tone(100)
    for number, sample in enumerate(pcm):
        chunk.add(number / 16, np.array([sample], np.int16))
    assert len(index_of(chunk.index()).samples) <= 20
    assert np.array_equal(samples_of(chunk.flac()), pcm)


def test_peaks_are_of_each_20_ms() -> None:
    chunk = Chunk(0.0, 8_000, 0)
    chunk.add(
        0.0, np.concatenate([np.zeros(160, np.int16), np.full(160, -32768, np.int16), np.full(10, 128, np.int16)])
    )
    assert list(index_of(chunk.index()).peaks) == [0, 255, 1]


def test_a_broken_chunk_is_said_to_be_one() -> None:
    with pytest.raises(MediaError, match="broken"):
        samples_of(b"no flac at all")
