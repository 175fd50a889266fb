"""The one place where the transformers library is imported: models and tokenizers from local files.

One place, because two threads that import that library at once can each see half of it.
"""

from __future__ import annotations

import os
import threading
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")  # read when it is imported; its bar for GGUF files has no other switch
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import logging

from engines.llm.config import ModelSource
from engines.llm.errors import ModelBroken

__all__ = ["DynamicCache", "load_encoder", "load_model"]

logging.disable_progress_bar()

_ALONE = threading.Lock()
"""from_pretrained sets torch's default device and type for the whole process meanwhile: two at once lose weights."""


def load_model(source: ModelSource, precision: str = "fp32") -> tuple[Any, Any]:
    """A decoder-only model in bf16 or fp32, and its tokenizer. Raises ModelBroken."""
    return _load(AutoModelForCausalLM, source, torch.bfloat16 if precision == "bf16" else torch.float32)


def load_encoder(source: ModelSource) -> tuple[Any, Any]:
    """An encoder in fp32, and its tokenizer. Raises ModelBroken."""
    return _load(AutoModel, source, torch.float32)


def _load(kind: Any, source: ModelSource, dtype: torch.dtype) -> tuple[Any, Any]:
    options: dict[str, Any] = {"gguf_file": source.gguf} if source.gguf else {}
    try:
        with _ALONE:
            tokenizer = AutoTokenizer.from_pretrained(source.directory, local_files_only=True, **options)
            model = kind.from_pretrained(source.directory, local_files_only=True, dtype=dtype, **options)
    except Exception as error:  # whatever the library met: the user gets the file and the reason, not its type
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelBroken(
            f"{source.directory / source.gguf} cannot be loaded ({lines[0][:200]})",
            mend="check that its files are complete and of a kind that transformers reads, or fetch them again",
        ) from error
    return model.eval(), tokenizer
