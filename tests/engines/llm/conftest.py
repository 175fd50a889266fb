"""A tiny random model with a real byte-level tokenizer, and the packaged model where it was fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from engines.llm.config import EngineSettings, ModelSource
from engines.llm.engine import LLMEngine
from engines.llm.errors import ModelMissing

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and the marks of a chat."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    wrapped.add_special_tokens({"additional_special_tokens": ["<|system|>", "<|user|>", "<|assistant|>"]})
    wrapped.chat_template = TEMPLATE
    return wrapped


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of three layers with grouped queries, saved as a Hugging Face directory."""
    torch.manual_seed(7)
    tokenizer = tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.4,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    directory = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture
def cold(tiny_directory: Path) -> Iterator[LLMEngine]:
    """An engine of the tiny model with nothing remembered."""
    engine = LLMEngine.load(tiny_directory, EngineSettings(precision="fp32", prefill_chunk=16, process=False))
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def packaged() -> Iterator[LLMEngine]:
    """The packaged mixture of experts as the example runs it."""
    try:
        ModelSource.resolve("default-moe")
    except ModelMissing as missing:
        pytest.skip(str(missing))
    engine = LLMEngine.load("default-moe", EngineSettings(precision="int8", guesses=4, process=False))
    yield engine
    engine.close()
