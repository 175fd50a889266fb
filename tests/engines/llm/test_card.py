"""What a model tells of itself, with a card and without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.llm.card import CARD, Card, card_of, precision_of
from engines.llm.errors import ModelBroken


def test_a_card_is_what_was_written(tmp_path: Path) -> None:
    card = Card("small", "large", "llama", "fp8", ("cut", "quantised"), ({"what": "cut"}, {"what": "quantised"}))
    (tmp_path / CARD).write_text(json.dumps(card.json()))
    assert card_of(tmp_path) == card


def test_without_a_card_the_config_tells(tmp_path: Path) -> None:
    model = tmp_path / "plain"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen3", "torch_dtype": "bfloat16"}')
    assert card_of(model) == Card("plain", model_type="qwen3", precision="bf16")
    assert card_of(tmp_path / "small.Q4_1.gguf") == Card("small.Q4_1", precision="gguf")


@pytest.mark.parametrize(
    ("config", "precision"),
    [
        ({"dtype": "float32"}, "fp32"),
        ({"torch_dtype": "float16"}, "fp16"),
        ({"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({}, ""),
    ],
)
def test_precisions(config: dict[str, object], precision: str) -> None:
    assert precision_of(config) == precision


@pytest.mark.parametrize("text", ["{", "[]", '{"steps": [1]}', '{"base": 7}', '{"details": 7}'])
def test_a_broken_card_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / CARD).write_text(text)
    with pytest.raises(ModelBroken, match=r"card\.json"):
        card_of(tmp_path)


def test_no_model_at_all(tmp_path: Path) -> None:
    with pytest.raises(ModelBroken, match=r"config\.json cannot be read"):
        card_of(tmp_path)
