"""The packaged language model with its knowledge gone: same shape, same tokenizer, random weights."""

from __future__ import annotations

from pathlib import Path

from engines.llm.config import ModelSource


def write_random_model(target: Path, seed: int = 0) -> Path:
    """Writes it as a Hugging Face directory (270 MB, bf16) that any `model=` setting takes; returns the directory."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    source = ModelSource.resolve("default").directory
    torch.manual_seed(seed)
    config = AutoConfig.from_pretrained(source, local_files_only=True)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source, local_files_only=True).save_pretrained(target)
    return target
