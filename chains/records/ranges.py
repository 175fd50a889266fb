"""Moments and ranges of time as people and URLs write them: unix milliseconds, `now`, or `-1h` before it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from chains.errors import InvalidValue

UNITS_MS = {"s": 1e3, "m": 60e3, "h": 3.6e6, "d": 86.4e6}
LATEST_MS = 9.2e12  # the year 2261: in nanoseconds it has 64 bits
_BEFORE = re.compile(r"-(\d+(?:\.\d+)?)([smhd])")
_FORMS = "write unix milliseconds, now, or a time before it: -30s, -15m, -1h, -7d"


def moment(text: str, now_ms: float) -> float:
    """Unix milliseconds. Raises InvalidValue."""
    if text == "now":
        return now_ms
    if before := _BEFORE.fullmatch(text):
        return max(0.0, now_ms - float(before[1]) * UNITS_MS[before[2]])
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < LATEST_MS:
        raise InvalidValue(f"{text[:60]!r} is no moment", mend=_FORMS)
    return value


@dataclass(frozen=True, slots=True)
class Range:
    """From `start` up to `end`, unix milliseconds; None: open on that side."""

    start: float | None = None
    end: float | None = None

    def __post_init__(self) -> None:
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise InvalidValue("the range ends before it begins", mend="exchange from and to")

    @property
    def start_ns(self) -> int:
        return 0 if self.start is None else int(self.start * 1e6)

    @property
    def end_ns(self) -> int:
        return (1 << 63) - 1 if self.end is None else int(self.end * 1e6)

    def buckets(self) -> tuple[int, int]:
        """[first, past the last) in unix seconds, for rows that stand for a stretch of time from their start on."""
        start = 0 if self.start is None else int(self.start // 1e3)
        end = 1 << 40 if self.end is None else math.ceil(self.end / 1e3)
        return start, end


def read(start: str, end: str, now_ms: float) -> Range:
    """The range between two moments; an empty text leaves that side open. Raises InvalidValue."""
    return Range(moment(start, now_ms) if start else None, moment(end, now_ms) if end else None)
