"""Sentence embeddings of the packaged encoder: unit vectors, like meanings near each other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, RobertaConfig, RobertaModel

from engines.llm.config import EMBEDDING_NAME, ModelSource
from engines.llm.embedding import LONGEST, Embedder
from engines.llm.errors import ModelBroken, ModelMissing

TEXTS = [
    "What does it cost?",
    "",
    "Zürich 你好 🙂",
    "a much longer sentence that pads the batch " * 20,
    "[SEP] x [MASK]",
]


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


def by_transformers(directory: Path, texts: list[str], first: bool = False) -> Any:
    """Unit vectors by the library's model, from its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    model = AutoModel.from_pretrained(directory, local_files_only=True, dtype=torch.float32).eval()
    batch = tokenizer(texts, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
    with torch.inference_mode():
        states = model(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None].to(states.dtype)
    pooled = states[:, 0] if first else (states * mask).sum(dim=1) / mask.sum(dim=1)
    return torch.nn.functional.normalize(pooled, dim=-1).numpy()


def test_the_packaged_encoder_gives_the_vectors_of_transformers(embedder: Embedder) -> None:
    directory = ModelSource.resolve("default", packaged=EMBEDDING_NAME).directory
    for texts in (TEXTS, TEXTS[:1]):
        np.testing.assert_allclose(embedder.embed(texts), by_transformers(directory, texts), atol=1e-5, rtol=0)
    assert embedder.embed([]).shape == (0, 384)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("first", [True, False])
def test_other_encoders_give_the_vectors_of_transformers(
    embedder: Embedder, tmp_path: Path, kind: str, first: bool
) -> None:
    torch.manual_seed(4)
    shape: dict[str, Any] = {
        "vocab_size": 30522, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 140, "initializer_range": 0.3,
    }  # fmt: skip
    packaged = ModelSource.resolve("default", packaged=EMBEDDING_NAME).directory
    if kind == "bert":
        BertModel(BertConfig(hidden_act="gelu_new", **shape)).save_pretrained(tmp_path)
    else:
        RobertaModel(RobertaConfig(pad_token_id=0, **shape)).save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(packaged / file, tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": first}))
    found = Embedder.load(tmp_path).embed(TEXTS)
    np.testing.assert_allclose(found, by_transformers(tmp_path, TEXTS, first), atol=1e-5, rtol=0)


def test_a_model_that_is_no_encoder_or_is_damaged_says_so(tiny_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelBroken, match="'llama'"):
        Embedder.load(tiny_directory)
    BertModel(
        BertConfig(hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=1)
    ).save_pretrained(tmp_path)
    shutil.copy(tiny_directory / "tokenizer_config.json", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    with pytest.raises(ModelBroken, match=r"lacks encoder\.layer\.1"):
        Embedder.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(ModelBroken, match="cannot be read"):
        Embedder.load(tmp_path)
