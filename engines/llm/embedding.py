"""Sentence embeddings: texts of like meaning get vectors of like direction. Finds the one fact a question is about."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from engines.llm.config import DEFAULT, EMBEDDING_NAME, ModelSource
from engines.llm.errors import ModelBroken
from engines.llm.tokenizer import Tokenizer, optional_json

LONGEST = 128
KINDS = ("bert", "roberta", "xlm-roberta")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


class Encoder:
    """The forward of a BERT-like encoder: every token sees every other. Not for two threads at once."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        """Raises KeyError with the name of a weight or a setting that is missing."""
        self.heads = int(config["num_attention_heads"])
        self.epsilon = float(config.get("layer_norm_eps", 1e-12))
        self.activation = ACTIVATIONS[config.get("hidden_act", "gelu")]
        self.pad = int(config.get("pad_token_id") or 0)
        # RoBERTa counts positions from behind the padding's own.
        self.first = 0 if config["model_type"] == "bert" else self.pad + 1
        self.words = weights["embeddings.word_embeddings.weight"]
        self.places = (
            weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0]
        )
        self.norm = _pair(weights, "embeddings.LayerNorm")
        self.layers = [_Layer(weights, f"encoder.layer.{n}.") for n in range(int(config["num_hidden_layers"]))]

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """States [texts, length, size] of ids [texts, length]; `mask` is true where a token stands."""
        length = ids.shape[1]
        x = self.words[ids] + self.places[self.first : self.first + length]
        x = self._normed(x, self.norm)
        seen = None if bool(mask.all()) else mask[:, None, None, :]
        for layer in self.layers:
            qkv = functional.linear(x, *layer.qkv).view(*ids.shape, 3, self.heads, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)
            x = self._normed(x + functional.linear(attended, *layer.out), layer.norm_attention)
            inner = self.activation(functional.linear(x, *layer.up))
            x = self._normed(x + functional.linear(inner, *layer.down), layer.norm_mlp)
        return x

    def _normed(self, x: Tensor, norm: tuple[Tensor, Tensor]) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], *norm, self.epsilon)


class _Layer:
    def __init__(self, weights: Mapping[str, Tensor], prefix: str) -> None:
        parts = [_pair(weights, f"{prefix}attention.self.{name}") for name in ("query", "key", "value")]
        self.qkv = (torch.cat([weight for weight, _ in parts]), torch.cat([bias for _, bias in parts]))
        self.out = _pair(weights, prefix + "attention.output.dense")
        self.norm_attention = _pair(weights, prefix + "attention.output.LayerNorm")
        self.up = _pair(weights, prefix + "intermediate.dense")
        self.down = _pair(weights, prefix + "output.dense")
        self.norm_mlp = _pair(weights, prefix + "output.LayerNorm")


def _pair(weights: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    return weights[name + ".weight"], weights[name + ".bias"]


class Embedder:
    """An encoder whose states become one vector a text: their mean, or the first, as the model was trained.

    Safe from many threads, one batch of texts at a time.
    """

    def __init__(self, encoder: Encoder, tokenizer: Tokenizer, *, first: bool = False) -> None:
        self._encoder = encoder
        self._tokenizer = tokenizer
        self._first = first
        self._lock = threading.Lock()
        tokenizer.backend.enable_truncation(LONGEST)

    @classmethod
    def load(cls, model: str | Path = DEFAULT) -> Embedder:
        """`model` is "default" (the packaged one) or a Hugging Face directory. Raises ModelMissing, ModelBroken."""
        source = ModelSource.resolve(model, packaged=EMBEDDING_NAME)
        pooling = optional_json(source.directory / "1_Pooling" / "config.json")
        encoder = _load(source.directory)
        return cls(encoder, Tokenizer.load(source), first=bool(pooling.get("pooling_mode_cls_token")))

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors [texts, size]; the dot product of two is their likeness, from -1 to 1."""
        rows = [self._tokenizer.encode(text) for text in texts]
        longest = max(map(len, rows), default=1)
        ids = torch.tensor([row + [self._encoder.pad] * (longest - len(row)) for row in rows])
        mask = torch.arange(longest) < torch.tensor([len(row) for row in rows])[:, None]
        if not rows:
            return np.zeros((0, self._encoder.words.shape[1]), np.float32)
        with self._lock, torch.inference_mode():
            states = self._encoder.forward(ids, mask)
            weights = mask[..., None].to(states.dtype)
            pooled = states[:, 0] if self._first else (states * weights).sum(dim=1) / weights.sum(dim=1)
            vectors: NDArray[np.float32] = functional.normalize(pooled, dim=-1).numpy()
        return vectors


def _load(directory: Path) -> Encoder:
    config = optional_json(directory / "config.json")
    if config.get("model_type") not in KINDS:
        raise ModelBroken(
            f"{directory} is a model of the kind {config.get('model_type')!r}",
            mend=f"use an encoder of the kinds {', '.join(KINDS)}",
        )
    try:
        weights: dict[str, Tensor] = {}
        for file in sorted(directory.glob("*.safetensors")):
            weights |= load_file(file)
        named = {
            name.removeprefix("bert.").removeprefix("roberta."): weight.float() for name, weight in weights.items()
        }
        return Encoder(config, named)
    except KeyError as error:
        raise ModelBroken(f"{directory} lacks {error.args[0]}", mend="fetch the model again") from None
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise ModelBroken(
            f"the weights in {directory} cannot be read ({error})", mend="fetch the model again"
        ) from None
