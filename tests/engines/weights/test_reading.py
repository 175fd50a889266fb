"""Long stretches in pieces: every byte in its place, and told as it comes."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from engines.weights import WeightsInvalid, reading
from engines.weights.reading import ParallelReader, Part, Stretch


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("piece", [700, 1 << 20])
def test_every_part_gets_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int, piece: int) -> None:
    """Parts of all sizes, some far smaller and some far larger than a piece, with gaps and empty ones between."""
    monkeypatch.setattr(reading, "PIECE", piece)
    monkeypatch.setattr(reading, "MOST_BUFFERS", 3)
    data, parts, at = os.urandom(98_765), list[Part](), 4_321
    make = random.Random(threads)
    while at < 90_000:
        end = at + make.choice([0, 1, 13, 300, 700, 5000])
        parts.append(Part(at, end))
        at = end + make.choice([0, 0, 0, 50])
    (tmp_path / "file").write_bytes(data)
    told, stretch = list[tuple[int, int]](), Stretch(tmp_path / "file", parts)
    reader = ParallelReader(stretch.size, threads, lambda done, total: told.append((done, total)))
    for part in make.sample(parts, len(parts)):
        assert reader.take(stretch, part).numpy().tobytes() == data[part.start : part.end]
    reader.close()
    assert stretch.waiting == 0
    assert told == sorted(told) and told[-1] == (stretch.size, stretch.size)
    assert len(told) == -(-stretch.size // piece)


def test_a_stretch_past_the_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"short")
    reader = ParallelReader(10, 2, None)
    part = Part(0, 10)
    with pytest.raises(WeightsInvalid, match="ended early"):
        reader.take(Stretch(tmp_path / "file", [part]), part)
    reader.close()
