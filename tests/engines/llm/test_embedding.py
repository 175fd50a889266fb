"""Sentence embeddings of the packaged encoder: unit vectors, like meanings near each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engines.llm.embedding import Embedder
from engines.llm.errors import ModelMissing


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    try:
        return Embedder.load()
    except ModelMissing as missing:
        pytest.skip(str(missing))


def test_like_meanings_lie_near_each_other(embedder: Embedder) -> None:
    question, alike, other = embedder.embed(["What does it cost?", "How much is it?", "My dog likes the rain."])
    assert question @ alike > question @ other + 0.2


def test_vectors_are_of_unit_length_and_do_not_depend_on_their_neighbours(embedder: Embedder) -> None:
    together = embedder.embed(["Hello.", "a much longer sentence that pads the batch " * 20, ""])
    assert np.allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)
    assert np.allclose(together[0], embedder.embed(["Hello."])[0], atol=1e-5)


def test_a_missing_encoder_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="nowhere"):
        Embedder.load(tmp_path / "nowhere")
