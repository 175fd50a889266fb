"""Written English to words that a voice can say: prices, times, telephone numbers, addresses, abbreviations.

Voices differ in what they do with digits and symbols; after `spoken` there are none left to differ about.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SCALES = ((1_000_000_000, "billion"), (1_000_000, "million"), (1000, "thousand"), (100, "hundred"))
_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
_CURRENCIES = {
    "$": ("dollar", "cent"), "€": ("euro", "cent"), "£": ("pound", "penny"),
}  # fmt: skip
_WORDS = {
    "Mr.": "Mister", "Mrs.": "Missus", "Ms.": "Miz", "Prof.": "Professor", "Ave.": "Avenue",
    "Blvd.": "Boulevard", "Rd.": "Road", "Ln.": "Lane", "Apt.": "Apartment", "Ste.": "Suite",
    "Mon.": "Monday", "Tue.": "Tuesday", "Tues.": "Tuesday", "Wed.": "Wednesday", "Thu.": "Thursday",
    "Thurs.": "Thursday", "Fri.": "Friday", "Jan.": "January", "Feb.": "February", "Aug.": "August",
    "Sept.": "September", "Oct.": "October", "Nov.": "November", "Dec.": "December",
    "approx.": "approximately", "appt.": "appointment", "e.g.": "for example", "i.e.": "that is",
    "vs.": "versus", "etc.": "et cetera", "min.": "minutes", "hrs.": "hours", "w/o": "without",
}  # fmt: skip
_SYMBOLS = {
    "&": " and ", "%": " percent", "+": " plus ", "@": " at ", "=": " equals ", "°": " degrees", "/": " ",
}  # fmt: skip
_DASHES = str.maketrans(
    {
        "\u2013": "-",
        "—": ", ",
        "\u2011": "-",
        "\u2019": "'",
        "\u2018": "'",
        "“": '"',
        "”": '"',
        "…": ".",
        "\u00a0": " ",
    }
)


def spoken(text: str) -> str:
    """`text` as words; "" where nothing in it can be said (emoji, rules, markup)."""
    text = unicodedata.normalize("NFKC", text).translate(_DASHES)
    for pattern, reading in _RULES:
        text = pattern.sub(reading, text)
    for symbol, word in _SYMBOLS.items():
        text = text.replace(symbol, word)
    text = "".join(letter for letter in text if letter.isalpha() or letter in " .,;:!?'-")
    text = re.sub(r"\s+([.,;:!?])", r"\1", " ".join(text.split()))
    return text if any(letter.isalpha() for letter in text) else ""


def cardinal(number: int) -> str:
    """85 -> "eighty-five"; below 10**12."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")
    size, name = next((size, name) for size, name in _SCALES if number >= size)
    count, rest = divmod(number, size)
    return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")


def ordinal(number: int) -> str:
    """21 -> "twenty-first"."""
    words = cardinal(number)
    cut = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[cut:]
    if last in _ORDINALS:
        last = _ORDINALS[last]
    elif last.endswith("y"):
        last = last[:-1] + "ieth"
    else:
        last += "th"
    return words[:cut] + last


def digits(number: str) -> str:
    """ "0142" -> "zero one four two"."""
    return " ".join(_ONES[int(digit)] for digit in number if digit.isdigit())


def _whole(number: str) -> str:
    """A number without a fraction. Long ones, and those with a leading zero, are read digit by digit; four
    digits
    without a comma (years, house numbers) in pairs.
    """
    plain = number.replace(",", "")
    if len(plain) > 12 or (len(plain) > 1 and plain[0] == "0") or (len(plain) > 6 and "," not in number):
        return digits(plain)
    value = int(plain)
    if len(plain) == 4 and "," not in number and value % 1000 >= 10:
        high, low = divmod(value, 100)
        if low == 0:
            return f"{cardinal(high)} hundred"
        return f"{cardinal(high)} {'oh ' if low < 10 else ''}{cardinal(low)}"
    return cardinal(value)


def _number(match: re.Match[str]) -> str:
    whole, _, fraction = match.group().rstrip(",").partition(".")
    words = _whole(whole) + (f" point {digits(fraction)}" if fraction else "")
    return words + ("," if match.group().endswith(",") else "")


def _price(match: re.Match[str]) -> str:
    unit, part = _CURRENCIES[match["sign"]]
    whole = match["whole"].replace(",", "")
    amount = cardinal(int(whole)) if len(whole) <= 12 else digits(whole)
    if match["scale"]:
        fraction = f" point {digits(match['cents'])}" if match["cents"] else ""
        return f"{amount}{fraction} {match['scale']} {unit}s"
    words = f"{amount} {unit}{'' if int(whole) == 1 else 's'}"
    cents = int((match["cents"] or "0").ljust(2, "0")[:2])
    if not cents:
        return words
    parts = part if cents == 1 else "pence" if part == "penny" else f"{part}s"
    return f"{cardinal(cents)} {parts}" if int(whole) == 0 else f"{words} and {cardinal(cents)} {parts}"


def _time(match: re.Match[str]) -> str:
    hour, minute = int(match["hour"]), int(match["minute"] or 0)
    if hour > 24 or minute > 59:
        return match.group()
    half = f" {match['half'].lower()}.m." if match["half"] else ""
    if minute == 0:
        return cardinal(hour) + (half or " o'clock")
    return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}{half}"


def _phone(match: re.Match[str]) -> str:
    return ", ".join(digits(group) for group in re.findall(r"\d+", match.group()))


def _fraction(match: re.Match[str]) -> str:
    above, below = int(match[1]), int(match[2])
    if not 0 < above < below <= 10:
        return f"{cardinal(above)} {cardinal(below)}"
    name = {2: "half", 4: "quarter"}.get(below, ordinal(below))
    return f"{cardinal(above)} {name}{'' if above == 1 else 's'}"


def _street_or_saint(match: re.Match[str]) -> str:
    return f"{match[1]} Street" if match[1] else "Saint"


_Reading = str | Callable[[re.Match[str]], str]
_RULES: tuple[tuple[re.Pattern[str], _Reading], ...] = (
    (re.compile(r"\bDr\.?(?= [A-Z])"), "Doctor"),
    (re.compile(r"(?<=[a-z]) Dr\.(?![A-Za-z])"), " Drive"),
    (
        re.compile(r"\b([A-Z][a-z]+|\d+(?:st|nd|rd|th)) St\.(?! [A-Z][a-z]+(?:'s)? (?:Day|Church|Hospital))"),
        _street_or_saint,
    ),
    (re.compile(r"\b()St\.(?= [A-Z])"), _street_or_saint),
    (
        re.compile(r"(?<!\w)(" + "|".join(re.escape(word) for word in _WORDS) + r")(?!\w)"),
        lambda m: _WORDS[m[1]],
    ),
    (re.compile(r"\bNo\. ?(?=\d)|#(?=\d)"), "number "),
    (
        re.compile(
            r"(?<![\w.])(?P<sign>[$€£]) ?(?P<whole>\d+(?:,\d{3})*)(?:\.(?P<cents>\d{1,2}))?(?!\d)"
            r"(?: ?(?P<scale>thousand|million|billion))?"
        ),
        _price,
    ),
    (re.compile(r"(?<![\w.])(?:\+?\d{1,2}[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\w-])"), _phone),
    (re.compile(r"(?<![\w.-])\d{3}-\d{4}(?![\w-])"), _phone),
    (re.compile(r"(?<=[\dm])\s?-\s?(?=\d)"), " to "),
    (re.compile(r"(?<!\w)-(?=\d)"), "minus "),
    (
        re.compile(r"(?<!\d)(?P<hour>\d{1,2}):(?P<minute>\d{2})(?: ?(?P<half>[AaPp])\.?[Mm]\b\.?)?(?!\d)"),
        _time,
    ),
    (re.compile(r"(?<![\d.])(?P<hour>\d{1,2})(?P<minute>) ?(?P<half>[AaPp])\.?[Mm]\b\.?"), _time),
    (re.compile(r"(?<![\w./])(\d{1,2})/(\d{1,2})(?![\w/])"), _fraction),
    (re.compile(r"\b(\d{1,6})(?:st|nd|rd|th)\b"), lambda m: ordinal(int(m[1]))),
    (re.compile(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])"), " "),
    (re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?"), _number),
)
"""In this order; each takes away what the next would misread."""
