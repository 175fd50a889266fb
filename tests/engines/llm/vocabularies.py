"""Tokenizers for tests: a small byte-level BPE that is trained here, and the packaged model's where it was fetched."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from engines.llm.config import ModelSource
from engines.llm.errors import ModelMissing
from engines.llm.tokenizer import Tokenizer as ChatTokenizer
from tests.shape.tree import ROOT

END = "<|end|>"
_RECORDS = [
    json.dumps({"name": name, "age": age, "kind": kind, "arguments": {"city": city, "days": age}})
    for name, age, kind, city in [("Ada", 36, "dog", "Paris"), ("Bob", 7, "cat", "Berlin"), ("Eve", 150, "dog", "Rome")]
]


def trained_tokenizer(size: int = 1500) -> Tokenizer:
    """A byte-level BPE over this project's documents and some JSON. Its last token ends a reply."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    texts = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    tokenizer.train_from_iterator(texts + _RECORDS * 20, trainer)
    tokenizer.add_special_tokens([END])
    return tokenizer


CHAT = (
    "{% if tools %}You may call:\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "Write <tool_call>...</tool_call>{% endif %}"
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)


def chat_tokenizer(template: str = CHAT) -> ChatTokenizer:
    """The trained one with a template that knows of tools, written as Hermes writes them."""
    backend = trained_tokenizer()
    ends = frozenset([backend.token_to_id(END)])
    return ChatTokenizer(backend, named={"eos_token": END}, ends=ends, templates={"default": template})


def packaged_tokenizer() -> Tokenizer:
    """The packaged model's."""
    try:
        source = ModelSource.resolve("default")
    except ModelMissing as missing:
        pytest.skip(str(missing))
    return Tokenizer.from_file(str(source.directory / "tokenizer.json"))
