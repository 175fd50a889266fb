"""What an option's text may be: numbers that make sense, told before anything starts."""

from __future__ import annotations

import argparse
import math


def count(text: str) -> int:
    """A whole number, from 0."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text} is no whole number from 0 on")
    return int(text)


def some(text: str) -> int:
    """A whole number, from 1."""
    found = count(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is none; give at least 1")
    return found


def seconds(text: str) -> float:
    """A time that can be waited: above 0 and less than a day."""
    found = _number(text)
    if not 0.0 < found < 86_400.0:
        raise argparse.ArgumentTypeError(f"{text} is no time to wait; give seconds above 0")
    return found


def grace(text: str) -> float:
    """A time that may be nil."""
    return 0.0 if _number(text) == 0.0 else seconds(text)


def port(text: str) -> int:
    """Of TCP."""
    found = any_port(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is no port; give 1 to 65535")
    return found


def any_port(text: str) -> int:
    """Of TCP, or 0 for one that is free."""
    if not (text.isascii() and text.isdecimal()) or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text} is no port; give 1 to 65535, or 0 for a free one")
    return int(text)


def days(text: str) -> float:
    """A time to keep something."""
    found = _number(text)
    if not 0.0 < found < 36_525.0:
        raise argparse.ArgumentTypeError(f"{text} is no number of days; give one above 0")
    return found


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size(text: str) -> int:
    """Bytes: 500M, 2G, 2GiB, 1048576."""
    number = text.upper().removesuffix("IB").removesuffix("B")
    unit = number[-1:] if number[-1:] in _UNITS else ""
    found = _number(number.removesuffix(unit)) * _UNITS[unit]
    if not (1 << 20) <= found < (1 << 50):
        raise argparse.ArgumentTypeError(f"{text} is no size; give at least 1M, e.g. 2G")
    return int(found)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
