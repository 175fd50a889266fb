"""Whether a reply answers its question: a pure function of its text. Numbers count alike in digits and words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_UNITS = {word: value for value, word in enumerate(_SMALL)}
_TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
_SPELLED = (
    ("[\u2019`]", "'"),
    (r"\bdr\b\.?", "doctor"),
    (r"\bst\b\.?", "street"),
    (r"\bcan't\b|\bcannot\b", "can not"),
    (r"\bwon't\b", "will not"),
    (r"n't\b", " not"),
    (r"'re\b", " are"),
    (r"'ll\b", " will"),
    (r"\b(it|that|there|he|she|who|what)'s\b", r"\1 is"),
    (r"\bi'm\b", "i am"),
    (r"(\d)[.:]00\b", r"\1"),
    (r"\$\s*(\d+)", r"\1 dollars"),
    (r"\b([ap])\.?\s?m\b\.?", r"\1m"),
    (r"(\d)([ap]m)\b", r"\1 \2"),
    (r"\bo'clock\b", ""),
    (r"\bin the morning\b", "am"),
    (r"\b(?:in the (?:evening|afternoon)|at night)\b", "pm"),
    (r"\bgood[- ]bye\b", "goodbye"),
    (r"'s?\b", ""),
)


def normalised(text: str) -> str:
    """Lower case, no punctuation, contractions in full, numbers in digits ("a.m." and "in the morning" are "am").

    A telephone number becomes one number, however its digits were grouped.
    """
    text = text.lower()
    for pattern, spelled in _SPELLED:
        text = re.sub(pattern, spelled, text)
    return " ".join(_joined_digits(_in_digits(re.findall(r"[a-z]+|\d+", text))))


def _in_digits(tokens: list[str]) -> list[str]:
    """Number words as digits: "one hundred and twenty five" -> "125". A lone "one" stays: it is rarely a number."""
    out: list[str] = []
    at = 0
    while at < len(tokens):
        value, length = _number(tokens[at:])
        lone = tokens[at] == "one" and length == 1 and not _numeric(tokens, at - 1) and not _numeric(tokens, at + 1)
        if not length or lone:
            out.append(tokens[at])
            at += 1
        else:
            out.append(str(value))
            at += length
    return out


def _numeric(tokens: list[str], at: int) -> bool:
    return 0 <= at < len(tokens) and (tokens[at].isdigit() or tokens[at] in _UNITS or tokens[at] in _TENS)


def _number(tokens: list[str]) -> tuple[int, int]:
    """The number that the words begin with and how many words it takes; 0 words where there is none."""
    value, length = _below_hundred(tokens)
    if tokens[length : length + 1] != ["hundred"] and tokens[:2] != ["a", "hundred"]:
        return value, length
    hundreds, length = (value, length + 1) if length else (1, 2)
    rest = length + (tokens[length : length + 1] == ["and"])
    value, more = _below_hundred(tokens[rest:])
    return (hundreds * 100 + value, rest + more) if more else (hundreds * 100, length)


def _below_hundred(tokens: list[str]) -> tuple[int, int]:
    first, second = [*tokens[:2], "", ""][:2]
    if first in _TENS:
        unit = _UNITS.get(second, 0)
        return (_TENS[first] + unit, 2) if 1 <= unit <= 9 else (_TENS[first], 1)
    return (_UNITS[first], 1) if first in _UNITS else (0, 0)


def _joined_digits(tokens: list[str]) -> list[str]:
    """Neighbouring numbers that have seven digits or more together are one: a telephone number."""
    tokens = [
        "0" if token == "oh" and 0 < at < len(tokens) - 1 and tokens[at + 1].isdigit() else token
        for at, token in enumerate(tokens)
    ]
    out: list[str] = []
    run: list[str] = []
    for token in [*tokens, ""]:
        if token.isdigit():
            run.append(token)
            continue
        out += ["".join(run)] if sum(map(len, run)) >= 7 else run
        run = []
        out.append(token)
    return out[:-1]


def answers(reply: str, expected: Mapping[str, Any]) -> bool:
    """Whether `reply` is a right answer.

    expected["right"]: groups of alternatives, one of each group must be said; "wrong": what must not be said;
    "numbers" (optional): the only numbers that may occur. Alternatives are whole words in normalised form.
    """
    said = f" {normalised(reply)} "
    if not all(any(f" {way} " in said for way in group) for group in expected["right"]):
        return False
    if any(f" {way} " in said for way in expected["wrong"]):
        return False
    numbers = expected.get("numbers")
    return numbers is None or {int(number) for number in re.findall(r"\d+", said)} <= set(numbers)
