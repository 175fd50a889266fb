"""What stands behind the ? of an address: every name known, every value checked."""

from __future__ import annotations

import math
from collections.abc import Collection

from starlette.datastructures import QueryParams

from chains.errors import InvalidValue
from chains.records import ranges
from chains.records.calls import CallFilter
from chains.records.ranges import Range

FILTER = ("q", "chain", "app", "version", "hop", "replica", "turn", "state", "min_ms", "from", "to")
LONGEST = 2_000


class Parameters:
    """The parameters of one request; what is not in `known`, stands twice or is too long raises InvalidValue."""

    def __init__(self, given: QueryParams, known: Collection[str]) -> None:
        self._given: dict[str, str] = {}
        for name, value in given.multi_items():
            if name not in known:
                listed = f"there are {', '.join(known)}" if known else "leave it out: there are none here"
                raise InvalidValue(f"there is no parameter {name[:40]!r}", mend=listed)
            if name in self._given:
                raise InvalidValue(f"{name} is given twice", mend="give it once")
            if len(value) > LONGEST:
                raise InvalidValue(f"{name} has {len(value)} characters", mend=f"{LONGEST} are the most")
            self._given[name] = value

    def text(self, name: str, default: str = "") -> str:
        return self._given.get(name, default)

    def whole(self, name: str, default: int) -> int:
        found = self._number(name)
        if found is not None and found != int(found):
            raise InvalidValue(f"{name} is {self._given[name][:40]!r}", mend="give a whole number")
        return default if found is None else int(found)

    def number(self, name: str) -> float | None:
        return self._number(name)

    def _number(self, name: str) -> float | None:
        text = self._given.get(name, "")
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < 2**53:
            raise InvalidValue(f"{name} is {text[:40]!r}", mend="give a number from 0 on")
        return value

    def one_of(self, name: str, choices: Collection[str], default: str) -> str:
        value = self._given.get(name) or default
        if value not in choices:
            raise InvalidValue(f"{name} is {value[:40]!r}", mend=f"choose one of {', '.join(choices)}")
        return value

    def range(self, now_ms: float) -> Range:
        return ranges.read(self.text("from"), self.text("to"), now_ms)

    def filter(self, now_ms: float) -> CallFilter:
        """The parameters of FILTER."""
        return CallFilter(
            **{name: self.text(name) for name in ("q", "chain", "app", "version", "hop", "replica", "state")},
            turn=self.whole("turn", 0) or None,
            min_ms=self.number("min_ms"),
            range=self.range(now_ms),
        )
