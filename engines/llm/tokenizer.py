"""Text to tokens and back, by the `tokenizers` library and the model's own chat template."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from engines.llm.card import read_json
from engines.llm.config import MOST_INTEGER, ModelSource
from engines.llm.errors import ModelBroken, SettingInvalid
from engines.llm.seam import Prompt
from engines.llm.template import ChatTemplate

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
ROLES = ("system", "developer", "user", "assistant", "tool")
FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"  # characters that no text holds, around what looks like a special token


class Tokenizer:
    """A model's tokenizer, safe from many threads. The same ids and text as transformers' own, without it.

    `ends` are the tokens that end a reply, `backend` is the library's tokenizer, `vocabulary` one more than its
    highest id (a model's logits may be wider).
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        named: Mapping[str, str],
        ends: frozenset[int],
        templates: dict[str, str],
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.named = dict(named)
        self.ends = ends
        self.vocabulary = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self._templates = {name: ChatTemplate(source, self.named) for name, source in templates.items()}
        special = [token.content for token in backend.get_added_tokens_decoder().values() if token.special]
        pattern = "|".join(re.escape(text) for text in sorted(special, key=len, reverse=True))
        self._special = re.compile(pattern or "(?!)")
        self._plain: tokenizers.Tokenizer | None = None

    @classmethod
    def load(cls, source: ModelSource | str | Path) -> Tokenizer:
        """From a model's directory. Raises ModelBroken when its files cannot be used."""
        if not isinstance(source, ModelSource):
            source = ModelSource(Path(source))
        directory = source.directory
        settings = optional_json(directory / "tokenizer_config.json")
        if source.gguf or not (directory / "tokenizer.json").is_file():
            backend, settings = _by_transformers(source)
        else:
            try:
                backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
            except Exception as error:  # the library raises plain Exception, with the reason
                raise ModelBroken(
                    f"{directory / 'tokenizer.json'} cannot be read ({error})", mend="fetch the model again"
                ) from None
        named = _named(directory, settings)
        _add_tokens(backend, settings, named)
        return cls(
            backend, named=named, ends=_ends(directory, backend, named), templates=_templates(directory, settings)
        )

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids; `special` adds what the model wants at the beginning or the end (bos, [CLS]).

        Raises SettingInvalid for what is no text, e.g. half of a surrogate pair.
        """
        return _encoded(self.backend, text, special)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text as it is, no space cleaned up; special tokens are left out unless `special` asks for them."""
        return self.backend.decode(ids if isinstance(ids, list) else list(ids), skip_special_tokens=not special)

    @property
    def has_template(self) -> bool:
        return bool(self._templates)

    @property
    def templates(self) -> tuple[str, ...]:
        """The sources of the chat templates."""
        return tuple(template.source for template in self._templates.values())

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        reply: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The messages as the model's chat template writes them, for reading; `tokens` is for running."""
        return self._rendered([checked(message) for message in messages], tools, reply, variables)

    def tokens(
        self,
        prompt: Prompt,
        *,
        reply: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a prompt: messages by the chat template, a text, or ids as they are.

        A special token that stands in a message's text is spelled out: nobody ends a turn by writing its mark.
        Raises SettingInvalid for what is no prompt.
        """
        if isinstance(prompt, str):
            return self.encode(prompt)
        if not isinstance(prompt, Sequence):
            raise SettingInvalid(
                f"{type(prompt).__name__} is no prompt", mend="write messages, a text, or a list of token ids"
            )
        if all(isinstance(token, int) for token in prompt):
            return _ids([int(token) for token in prompt if isinstance(token, int)])
        try:
            messages = [self._guarded(checked(message)) for message in prompt]
            tools = self._guarded(tools)
        except RecursionError:
            raise SettingInvalid("the messages or tools are nested too deeply", mend="write flatter JSON") from None
        return self._encode_guarded(self._rendered(messages, tools, reply, variables))

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        reply: bool,
        variables: Mapping[str, Any] | None,
    ) -> str:
        template = self._template(bool(tools))
        try:
            return template.render(messages, tools=tools, reply=reply, variables=variables)
        except SettingInvalid:
            if not any("tool_calls" in message for message in messages):
                raise
        # Some templates write the arguments of calls as JSON, others expect them to be JSON.
        return template.render(
            [_spelled(message) for message in messages], tools=tools, reply=reply, variables=variables
        )

    def _template(self, tools: bool) -> ChatTemplate:
        if not self._templates:
            raise ModelBroken(
                "this model has no chat template", mend="use an instruct model, or pass the prompt as a plain string"
            )
        if tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        return self._templates.get("default") or next(iter(self._templates.values()))

    def _guarded(self, value: Any) -> Any:
        """What callers wrote, with marks around what looks like a special token."""
        if isinstance(value, str):
            value = value.replace(_OPEN, "").replace(_CLOSE, "")
            return self._special.sub(rf"{_OPEN}\g<0>{_CLOSE}", value)
        if isinstance(value, Mapping):
            return {key: self._guarded(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self._guarded(item) for item in value]
        return value

    def _encode_guarded(self, text: str) -> list[int]:
        if _OPEN not in text and _CLOSE not in text:
            return self.encode(text, special=False)
        first, *rest = re.split(f"{_OPEN}({self._special.pattern}){_CLOSE}|[{_OPEN}{_CLOSE}]", text)
        if self._plain is None:
            self._plain = tokenizers.Tokenizer.from_str(self.backend.to_str())
            self._plain.encode_special_tokens = True
        ids = self.encode(first, special=False)
        for place, piece in enumerate(rest):
            if piece:  # None where a template tore a pair of marks apart
                ids += _inner(self._plain if place % 2 == 0 else self.backend, piece)
        return ids


def _encoded(backend: tokenizers.Tokenizer, text: object, special: bool) -> list[int]:
    try:
        ids: list[int] = backend.encode(text, add_special_tokens=special).ids
    except (TypeError, UnicodeError):
        found = (
            "the text holds half of a surrogate pair" if isinstance(text, str) else f"{type(text).__name__} is no text"
        )
        raise SettingInvalid(found, mend="write whole characters in a str") from None
    return ids


def _ids(tokens: list[int]) -> list[int]:
    """Token ids that a message to the engine holds; which of them the model knows, the engine says."""
    wrong = next((token for token in tokens if not 0 <= token <= MOST_INTEGER), None)
    if wrong is not None:
        found = f"{wrong} is no token id" if abs(wrong) < 2**63 else "a number of more than 63 bits is no token id"
        raise SettingInvalid(found, mend="token ids count from 0 to the vocabulary's last")
    return tokens


def _inner(backend: tokenizers.Tokenizer, piece: str) -> list[int]:
    """Ids of a piece from the middle of a text: behind a newline no space is put before it."""
    newline = _encoded(backend, "\n", False)
    ids = _encoded(backend, "\n" + piece, False)
    if ids[: len(newline)] == newline:
        return ids[len(newline) :]
    return _encoded(backend, piece, False)


def checked(message: object) -> dict[str, Any]:
    """A message as templates read it: a text as content, the arguments of calls as objects. Raises SettingInvalid."""
    if not isinstance(message, Mapping) or message.get("role") not in ROLES:
        raise SettingInvalid(
            f"{type(message).__name__} is no message",
            mend='write {"role": "system" | "user" | "assistant" | "tool", "content": "..."}',
        )
    plain = {name: message[name] for name in FIELDS if message.get(name) is not None}
    content = plain.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        plain["content"] = "\n".join(_text_of(part) for part in content)
    elif not isinstance(content, str) and "tool_calls" not in plain:
        raise SettingInvalid(
            f"a message of {plain['role']} has {type(content).__name__} for its content", mend="write a text"
        )
    if "tool_calls" in plain:
        calls = plain["tool_calls"]
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise SettingInvalid(
                f"tool_calls is {type(calls).__name__}", mend='write a list of {"function": {"name": "...", ...}}'
            )
        plain["tool_calls"] = [_call(call) for call in calls]
    return plain


def _text_of(part: object) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise SettingInvalid(
        "a part of a message's content is no text", mend='write {"type": "text", "text": "..."}; models here read text'
    )


def _call(call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise SettingInvalid(
            "an entry of tool_calls is no call", mend='write {"function": {"name": "...", "arguments": {...}}}'
        )
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise SettingInvalid(
                f"the arguments of a call of {function['name']} are no JSON ({error})", mend="write a JSON object"
            ) from None
    return {**call, "function": {**function, "arguments": arguments}}


def _spelled(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its calls as JSON."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else dict(message)


def optional_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file; {} where there is none. Raises ModelBroken when it is no JSON object."""
    return read_json(file) if file.is_file() else {}


def _content(token: object) -> str:
    return str(token.get("content", "")) if isinstance(token, Mapping) else str(token or "")


def _named(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and their like; an older file beside the settings may name them instead."""
    older = optional_json(directory / "special_tokens_map.json")
    found = {name: _content(settings.get(name) or older.get(name)) for name in NAMED}
    return {name: text for name, text in found.items() if text}


def _add_tokens(backend: tokenizers.Tokenizer, settings: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """Tokens that the settings name and tokenizer.json does not."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for _, token in sorted((settings.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0])):
        if _content(token) not in known:
            flags = {name: bool(token.get(name, False)) for name in ("lstrip", "rstrip", "normalized", "single_word")}
            backend.add_tokens([AddedToken(_content(token), special=bool(token.get("special")), **flags)])
            known.add(_content(token))
    extra = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    listed = extra.values() if isinstance(extra, Mapping) else extra
    for text in [*named.values(), *map(_content, listed)]:
        if text not in known:
            backend.add_special_tokens([AddedToken(text, special=True, normalized=False)])
            known.add(text)


def _ends(directory: Path, backend: tokenizers.Tokenizer, named: Mapping[str, str]) -> frozenset[int]:
    """Tokens that end a reply: the model's, and the tokenizer's."""
    ends: set[int] = set()
    for file in ("generation_config.json", "config.json"):
        found = optional_json(directory / file).get("eos_token_id")
        ends.update([found] if isinstance(found, int) else found or [])
        if ends:
            break
    if "eos_token" in named and (end := backend.token_to_id(named["eos_token"])) is not None:
        ends.add(end)
    return frozenset(ends)


def _templates(directory: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """The chat templates by name: the one of every day is "default"."""
    found: dict[str, str] = {}
    stored = settings.get("chat_template")
    if isinstance(stored, str):
        found["default"] = stored
    for entry in stored if isinstance(stored, list) else []:
        found[str(entry["name"])] = str(entry["template"])
    files = {"default": directory / "chat_template.jinja"}
    files |= {file.stem: file for file in sorted((directory / "additional_chat_templates").glob("*.jinja"))}
    for name, file in files.items():
        if file.is_file():
            found[name] = file.read_text(encoding="utf-8")
    return found


def _by_transformers(source: ModelSource) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """For models without a tokenizer.json (GGUF, sentencepiece): converted by the library that knows them all."""
    where = source.directory / source.gguf
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when it is imported; its bar for GGUF files has no other switch
    try:
        from transformers import AutoTokenizer

        options: dict[str, Any] = {"gguf_file": source.gguf} if source.gguf else {}
        loaded = AutoTokenizer.from_pretrained(source.directory, local_files_only=True, **options)
        backend = tokenizers.Tokenizer.from_str(loaded.backend_tokenizer.to_str())
    except Exception as error:  # whatever the library met: the user gets the file and the reason, not its type
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelBroken(
            f"{where} has no tokenizer that can be used ({lines[0][:200]})",
            mend="add the model's tokenizer.json, or install transformers, which converts most other kinds",
        ) from error
    return backend, {**loaded.special_tokens_map, "chat_template": loaded.chat_template}
