"""Sentence embeddings: texts of like meaning get vectors of like direction. Finds the one fact a question is about."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engines.llm.config import DEFAULT, EMBEDDING_NAME, ModelSource
from engines.llm.loading import load_encoder

LONGEST = 128


class Embedder:
    """A BERT-like encoder with mean pooling. Safe from many threads, one text batch at a time."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._lock = threading.Lock()

    @classmethod
    def load(cls, model: str | Path = DEFAULT) -> Embedder:
        """`model` is "default" (the packaged one) or a Hugging Face directory. Raises ModelMissing, ModelBroken."""
        return cls(*load_encoder(ModelSource.resolve(model, packaged=EMBEDDING_NAME)))

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors [texts, size]; the dot product of two is their likeness, from -1 to 1."""
        with self._lock, torch.inference_mode():
            batch = self._tokenizer(list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
            states = self._model(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None].to(states.dtype)
            mean = (states * mask).sum(dim=1) / mask.sum(dim=1)
            vectors: NDArray[np.float32] = torch.nn.functional.normalize(mean, dim=-1).numpy()
        return vectors
