"""Calls of tools: how each family of models writes them, read as they stream; and grammars that make it write them.

A model writes calls into its text, in the form that its chat template teaches. `CallReader` takes the text apart
again: what is said, and typed calls whose arguments stream. Half a mark is never shown as text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

FormatName = Literal["hermes", "llama3", "mistral", "deepseek"]
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
_STRING = r'"((?:[^"\\]|\\.)*)"'
_OBJECT_HEAD = rf'\s*\{{\s*"name"\s*:\s*{_STRING}\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{{)'
_ID_LETTERS = 9  # some templates take ids of nine letters and no others


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    strict: bool = False

    @property
    def schema(self) -> Mapping[str, Any]:
        return NO_PARAMETERS if self.parameters is None else self.parameters

    def for_template(self) -> dict[str, Any]:
        """The tool as chat templates read it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.schema)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Format:
    """How a family writes calls.

    `marks` begin a call, wherever they stand; with `bare` a reply that begins with one of these characters may be a
    call as well. `head` matches up to the arguments and captures the name. Behind the arguments comes `tail`, then
    `between` and the next call. `noise` is dropped.
    """

    name: FormatName
    marks: tuple[str, ...]
    head: re.Pattern[str]
    tail: re.Pattern[str]
    between: re.Pattern[str] | None = None
    bare: str = ""
    noise: tuple[str, ...] = ()
    begin: str = ""  # of a call, as it is asked for: NAME stands for the tool's
    end: str = ""
    separator: str = ""
    first: str = ""
    last: str = ""


FORMATS: dict[FormatName, Format] = {
    "hermes": Format(
        "hermes",
        marks=("<tool_call>",),
        head=re.compile(_OBJECT_HEAD),
        tail=re.compile(r".*?</tool_call>", re.DOTALL),
        begin='<tool_call>\n{"name": "NAME", "arguments": ',
        end="}\n</tool_call>",
        separator="\n",
    ),
    "llama3": Format(
        "llama3",
        marks=("<|python_tag|>",),
        head=re.compile(_OBJECT_HEAD),
        tail=re.compile(r"\s*\}"),
        between=re.compile(r"\s*[;,]?\s*(?=\{)"),
        bare="{",
        begin='{"name": "NAME", "parameters": ',
        end="}",
        separator="; ",
    ),
    "mistral": Format(
        "mistral",
        marks=("[TOOL_CALLS]",),
        head=re.compile(rf"\s*\[?{_OBJECT_HEAD}"),
        tail=re.compile(r"\s*\}\s*\]?"),
        between=re.compile(r"\s*,\s*(?=\{)"),
        bare="[",
        begin='{"name": "NAME", "arguments": ',
        end="}",
        separator=", ",
        first="[",
        last="]",
    ),
    "deepseek": Format(
        "deepseek",
        marks=("<｜tool▁call▁begin｜>",),
        head=re.compile(r"(?:function<｜tool▁sep｜>([^\n]+)\n```json\n|([^\n<]+)<｜tool▁sep｜>)\s*(?=\{)"),
        tail=re.compile(r"\s*(?:```)?\s*<｜tool▁call▁end｜>"),
        noise=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
        end="\n```<｜tool▁call▁end｜>",
        separator="\n",
        first="<｜tool▁calls▁begin｜>",
        last="<｜tool▁calls▁end｜>",
    ),
}


def format_of(templates: Iterable[str]) -> Format | None:
    """The form that a model's chat templates teach; None when they know of no tools."""
    text = "\n".join(templates)
    if "<｜tool▁call▁begin｜>" in text:
        return FORMATS["deepseek"]
    if "[TOOL_CALLS]" in text:
        return FORMATS["mistral"]
    if "<tool_call>" in text:
        return FORMATS["hermes"]
    if '"parameters": ' in text or "<|python_tag|>" in text:
        return FORMATS["llama3"]
    return None


def constrained(form: Format, tools: Sequence[Tool], *, parallel: bool) -> str:
    """A structural tag (a kind of grammar) under which the reply is at least one call, of these tools alone."""
    tags = [
        {
            "type": "tag",
            "begin": form.begin.replace("NAME", tool.name),
            "content": {"type": "json_schema", "json_schema": tool.schema},
            "end": form.end,
        }
        for tool in tools
    ]
    calls = {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": form.separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }
    around = [{"type": "const_string", "value": value} for value in (form.first, form.last)]
    whole = {"type": "sequence", "elements": [around[0], calls, around[1]]} if form.first else calls
    return json.dumps({"type": "structural_tag", "format": whole}, ensure_ascii=False)


def guided(form: Format, tools: Sequence[Tool]) -> str | None:
    """A structural tag under which the reply says what it likes, and calls only these tools with what they take.

    None where a family's calls begin like any other text.
    """
    if form.marks[0] not in form.begin:
        return None
    tags = json.loads(constrained(form, tools, parallel=True))["format"]
    calls = tags["elements"][1] if form.first else tags
    triggered = {"type": "triggered_tags", "triggers": [form.marks[0]], "tags": calls["tags"]}
    return json.dumps({"type": "structural_tag", "format": triggered}, ensure_ascii=False)


def arguments_fault(tool: Tool, arguments: str) -> str:
    """Why arguments are none of the tool's, by types, names and enums of its schema; "" when they are."""
    try:
        return _fault(json.loads(arguments), tool.schema, "arguments")
    except (ValueError, RecursionError) as error:
        return f"the arguments are no JSON: {error}"
    except (TypeError, AttributeError):
        return ""  # a schema that is none judges nothing


_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def _fault(value: Any, schema: Any, place: str) -> str:
    """What a schema's patterns and combinations say is not looked at: a caller's pattern may take for ever."""
    if not isinstance(schema, Mapping):
        return ""
    wanted = schema.get("type")
    names = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []
    allowed = tuple(kind for name in names for kind in _TYPES.get(name, ()))
    if allowed and (not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed)):
        return f"{place} is {json.dumps(value)[:80]}, not {' or '.join(names)}"
    if isinstance(schema.get("enum"), list) and value not in schema["enum"]:
        return f"{place} is {json.dumps(value)[:80]}, not one of {json.dumps(schema['enum'])[:200]}"
    if isinstance(value, dict):
        known = schema.get("properties") or {}
        missing = [name for name in schema.get("required") or [] if name not in value]
        unknown = [name for name in value if name not in known] if schema.get("additionalProperties") is False else []
        if missing or unknown:
            return f"{place} lacks {missing[0]!r}" if missing else f"{place} has {unknown[0]!r}, which is not known"
        inner = [(item, known.get(name), f"{place}.{name}") for name, item in value.items()]
    elif isinstance(value, list):
        inner = [(item, schema.get("items"), f"{place}[{at}]") for at, item in enumerate(value)]
    else:
        return ""
    return next((fault for one in inner if (fault := _fault(*one))), "")


@dataclass(frozen=True, slots=True)
class Said:
    """Text of the reply that belongs to no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """Call number `index` of the reply, its name known, its arguments still to come."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A further piece of the arguments, as JSON text."""

    index: int
    text: str


Piece = Said | CallBegun | CallArguments


class CallReader:
    """Takes one reply apart, piece by piece. What looked like a call and is none comes back as text, whole."""

    def __init__(self, form: Format, names: Iterable[str], *, new_id: Any = None) -> None:
        self._form = form
        self._names = frozenset(names)
        self._new_id = new_id or (lambda: "".join(secrets.choice(_LETTERS) for _ in range(_ID_LETTERS)))
        self._state: Literal["text", "head", "arguments", "tail"] = "text"
        self._held = ""  # not yet told
        self._raw = ""  # what a call that is no call would have to say
        self._begun = False  # anything told of this reply
        self._value = JsonEnd()
        self.calls = 0

    def push(self, text: str) -> list[Piece]:
        """What is certain by now."""
        self._held += text
        pieces: list[Piece] = []
        while self._step(pieces, last=False):
            pass
        return _joined(pieces)

    def finish(self) -> list[Piece]:
        """What was held back at the end of the reply."""
        pieces: list[Piece] = []
        while self._step(pieces, last=True):
            pass
        if self._state in ("text", "head"):
            self._say(pieces, self._raw + self._held)
        self._held = self._raw = ""
        return _joined(pieces)

    def _step(self, pieces: list[Piece], *, last: bool) -> bool:
        """One move of the state machine; false when more text is needed."""
        if self._state == "text":
            return self._text(pieces, last)
        if self._state == "head":
            return self._head(pieces, last)
        if self._state == "arguments":
            return self._arguments(pieces)
        return self._tail(pieces, last)

    def _text(self, pieces: list[Piece], last: bool) -> bool:
        if self._form.bare and not self._begun:
            start = self._held.lstrip()
            if not last and any(mark.startswith(start) for mark in self._form.marks):
                return False
            if start and start[0] in self._form.bare and not start.startswith(self._form.marks):
                self._raw, self._state = "", "head"
                return True
        found = [(at, mark) for mark in self._form.marks + self._form.noise if (at := self._held.find(mark)) >= 0]
        if found:
            at, mark = min(found)
            self._say(pieces, self._held[:at].rstrip())
            self._held = self._held[at + len(mark) :]
            if mark in self._form.marks:
                self._raw, self._state = mark, "head"
            return True
        if last:
            return False
        keep = max(_overlap(self._held, mark) for mark in self._form.marks + self._form.noise)
        shown = self._held[: len(self._held) - keep].rstrip()  # white space before a mark belongs to the mark
        self._say(pieces, shown)
        self._held = self._held[len(shown) :]
        return False

    def _head(self, pieces: list[Piece], last: bool) -> bool:
        match = self._form.head.match(self._held)
        if match is None and (whole := self._whole_object()):
            return self._tell_whole(pieces, *whole)
        if match is None:
            if last or not self._may_begin():
                self._give_up(pieces)
                return True
            return False
        name = next(group for group in match.groups() if group is not None)
        if name not in self._names:
            self._give_up(pieces)
            return True
        self._begin(pieces, name)
        self._held, self._raw = self._held[match.end() :], ""
        self._state, self._value = "arguments", JsonEnd()
        return True

    def _may_begin(self) -> bool:
        """Whether what is held could still become a call."""
        text = self._held.lstrip()
        if self._form.name == "deepseek":
            return len(text) < 512
        for letter in ("[", "{") if self._form.name == "mistral" else ("{",):
            if not text:
                return True
            if text[0] == letter:
                text = text[1:].lstrip()
            elif letter == "{":
                return False
        return not text or '"'.startswith(text[0])

    def _whole_object(self) -> tuple[str, str, int] | None:
        """A call whose name stands behind its arguments: (name, arguments, its length), once it is complete."""
        start = self._held.find("{")
        if start < 0 or self._form.name == "deepseek":
            return None
        try:
            value, end = json.JSONDecoder().raw_decode(self._held, start)
        except (ValueError, RecursionError):
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        name = value.get("name")
        if isinstance(name, str) and name in self._names and isinstance(arguments, dict):
            text = json.dumps(arguments, ensure_ascii=False)
            return name, text.encode(errors="backslashreplace").decode(), end  # half a surrogate pair stays spelled
        return None

    def _tell_whole(self, pieces: list[Piece], name: str, arguments: str, end: int) -> bool:
        self._begin(pieces, name)
        pieces.append(CallArguments(self.calls - 1, arguments))
        self._held, self._raw = "}" + self._held[end:], ""
        self._state = "tail"
        return True

    def _begin(self, pieces: list[Piece], name: str) -> None:
        pieces.append(CallBegun(self.calls, self._new_id(), name))
        self.calls += 1
        self._begun = True

    def _give_up(self, pieces: list[Piece]) -> None:
        """It was no call: its mark is text, and what follows is read as text again."""
        self._begun = True
        mark, self._raw = self._raw or self._held[:1], ""
        if mark == self._held[:1]:
            self._held = self._held[1:]
        self._say(pieces, mark)
        self._state = "text"

    def _arguments(self, pieces: list[Piece]) -> bool:
        if not self._held:
            return False
        end = self._value.feed(self._held)
        taken = self._held if end is None else self._held[:end]
        pieces.append(CallArguments(self.calls - 1, taken))
        self._held = self._held[len(taken) :]
        if end is not None:
            self._state = "tail"
        return True

    def _tail(self, pieces: list[Piece], last: bool) -> bool:
        match = self._form.tail.match(self._held)
        if match is None:
            if last:
                self._held = ""
            return False
        rest = self._held[match.end() :]
        if self._form.between is not None and (following := self._form.between.match(rest)):
            self._held, self._raw, self._state = rest[following.end() :], "", "head"
            return True
        if self._form.between is not None and not last and not rest.strip(" \n;,]"):
            return False
        self._held, self._state = rest.lstrip("; \n]") if self._form.between else rest, "text"
        return True

    def _say(self, pieces: list[Piece], text: str) -> None:
        if text and (self.calls == 0 or text.strip()):
            self._begun = True
            pieces.append(Said(text))


class JsonEnd:
    """Finds where a JSON object ends that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = self._escaped = False

    def feed(self, text: str) -> int | None:
        """The place behind its last bracket in `text`; None when it goes on."""
        for at, letter in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_text:
                self._escaped = letter == "\\"
                self._in_text = letter != '"'
            elif letter == '"':
                self._in_text = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1
        return None


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that begins `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((size for size in range(longest, 0, -1) if mark.startswith(text[-size:])), 0)


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbouring pieces of the same text as one."""
    joined: list[Piece] = []
    for piece in pieces:
        before = joined[-1] if joined else None
        if isinstance(piece, Said) and isinstance(before, Said):
            joined[-1] = Said(before.text + piece.text)
        elif isinstance(piece, CallArguments) and isinstance(before, CallArguments) and piece.index == before.index:
            joined[-1] = CallArguments(piece.index, before.text + piece.text)
        else:
            joined.append(piece)
    return joined
