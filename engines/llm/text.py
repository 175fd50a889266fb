"""What becomes of the tokens that a model writes: streamed text, stop strings, typed results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

from engines.llm.errors import ResultInvalid

T = TypeVar("T")

HALF = "\ufffd"
WINDOW = 16
LONGEST_CHARACTER = 4  # tokens, each at least a byte


class Detokenizer:
    """Tokens in, text out, whole characters only: what `decode` may still change is held back until it is settled."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._shown = 0

    def push(self, token: int) -> str:
        """The text that became certain by this token; often a word, sometimes nothing."""
        self._window.append(token)
        text = self._decode(self._window)
        settled = text.rstrip(HALF)
        new = settled[self._shown :]
        self._shown = max(self._shown, len(settled))
        if len(settled) == len(text) and len(self._window) >= WINDOW:
            self._shorten()
        return new

    def _shorten(self) -> None:
        """Forget settled tokens, but not the last whole character: some tokenizers write a word's space only
        behind another word.
        """
        for count in range(1, LONGEST_CHARACTER + 1):
            kept = self._decode(self._window[-count:])
            if kept and HALF not in kept:
                self._window, self._shown = self._window[-count:], len(kept)
                return

    def flush(self) -> str:
        """What was held back at the end, with a replacement character for a character that never was completed."""
        rest = self._decode(self._window)[self._shown :]
        self._window, self._shown = [], 0
        return rest


class StopStrings:
    """Passes text on up to the first stop string that is complete; a possible beginning of one waits.

    With `include` the stop string itself still belongs to the text.
    """

    def __init__(self, stops: Iterable[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that is safe to show now; sets `stopped` when a stop string was found."""
        if self.stopped:
            return ""
        text = self._held + text
        end = self._first_complete(text)
        if end is None:
            keep = max((_overlap(text, stop) for stop in self._stops), default=0)
            self._held = text[len(text) - keep :]
            return text[: len(text) - keep]
        self.stopped, self._held = True, ""
        return text[: end[1]] if self._include else text[: end[0]]

    def flush(self) -> str:
        """What was held back: it was no stop string after all."""
        held, self._held = self._held, ""
        return held

    def _first_complete(self, text: str) -> tuple[int, int] | None:
        """(start, end) of the stop string that ends first; of those that end together the longest."""
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if not found:
            return None
        end, start = min(found)
        return start, end


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`, short of all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if stop.startswith(text[-size:])), 0)


def parse(text: str, kind: type[T] | Any) -> T:
    """The model's text as `kind`: a Literal, a dataclass, a pydantic model, or any type that JSON can carry.

    Text around the JSON is ignored. Nothing is retried: ResultInvalid shows what was written and what was expected.
    """
    if kind is str:
        return text.strip()  # type: ignore[return-value]
    if get_origin(kind) is Literal:
        return _parse_literal(text, get_args(kind))  # type: ignore[no-any-return]
    from pydantic import TypeAdapter, ValidationError  # here: the rest of this module serves where it is not installed

    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    value = _first_json(text, describe(kind))
    try:
        return adapter.validate_python(value)  # type: ignore[no-any-return]
    except ValidationError as error:
        whys = [f"{'.'.join(map(str, fault['loc'])) or 'value'}: {fault['msg']}" for fault in error.errors()]
        raise ResultInvalid(text, describe(kind), "; ".join(whys)) from None


def describe(kind: Any) -> str:
    """A type in the words of an error: Intent, one of 'a', 'b', int."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    return str(getattr(kind, "__name__", kind))


def _parse_literal(text: str, choices: tuple[Any, ...]) -> Any:
    said = text.strip().strip("\"'`.,!?: \n").casefold()
    for choice in choices:
        if said == str(choice).casefold():
            return choice
    raise ResultInvalid(text, describe(Literal[choices]), "it is none of them")


def _first_json(text: str, expected: str) -> Any:
    """The first JSON value in the text; an object or a list is looked for before a plain value."""
    decoder = json.JSONDecoder()
    for at in [index for index, letter in enumerate(text) if letter in "{["] or [len(text) - len(text.lstrip())]:
        try:
            return decoder.raw_decode(text, at)[0]
        except json.JSONDecodeError as error:
            why = error.msg
    raise ResultInvalid(text, expected, f"no JSON in it ({why})")
