"""Whether one set of times is unlike another: medians whose intervals do not touch, and by enough to matter.

No shape is assumed of how times are spread: the bounds are order statistics, z = 3.3 (1 in 1,000) since every replica
of every hop is looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from chains.records.sketches import Tally

ENOUGH = 12  # values on each side
ENOUGH_FOR_TAIL = 200
Z = 3.3
SKETCH = 0.015  # the sketches' own error in rank
OWN = ("serialise", "wire", "queue", "compute")  # waiting is somebody else's time


@dataclass(frozen=True, slots=True)
class Difference:
    """`part` takes `ms` longer (shorter, if below 0) than elsewhere: at its median, or in its slowest twentieth."""

    part: str
    ms: float
    tail: bool = False


def difference(mine: Tally, others: Tally, *, least_ms: float = 2.0, least_share: float = 0.1) -> Difference | None:
    """The own part in which `mine` differs most from `others`; None where nothing is sure, or nothing matters.

    It matters from `least_ms` and `least_share` of the others' own time on.
    """
    found = [one for part in OWN if (one := _of_part(mine, others, part, 0.5)) is not None]
    floor = max(least_ms, least_share * own_time(others))
    found = [one for one in found if abs(one.ms) >= floor]
    if not found:
        slowest = [one for part in ("queue", "compute") if (one := _of_part(mine, others, part, 0.95)) is not None]
        found = [one for one in slowest if one.ms >= max(10 * least_ms, 0.5 * others.quantiles([0.95], one.part)[0])]
    return max(found, key=lambda one: abs(one.ms), default=None)


def differences(mine: Tally, others: Tally) -> list[Difference]:
    """Every own part whose median surely differs, however little."""
    return [one for part in OWN if (one := _of_part(mine, others, part, 0.5)) is not None]


def own_time(tally: Tally) -> float:
    """The median of each own part, added up."""
    return sum(tally.quantiles([0.5], part)[0] for part in OWN)


def _of_part(mine: Tally, others: Tally, part: str, rank: float) -> Difference | None:
    least = ENOUGH if rank == 0.5 else ENOUGH_FOR_TAIL
    if min(mine.count, others.count) < least:
        return None
    low, middle, high = _interval(mine, part, rank)
    their_low, their_middle, their_high = _interval(others, part, rank)
    if low > their_high or high < their_low:
        return Difference(part, middle - their_middle, tail=rank != 0.5)
    return None


def _interval(tally: Tally, part: str, rank: float) -> tuple[float, float, float]:
    around = Z * math.sqrt(rank * (1 - rank) / tally.count) + SKETCH * (1 if tally.count > 100 else 0)
    low, middle, high = tally.quantiles([max(0.0, rank - around), rank, min(1.0, rank + around)], part)
    return low, middle, high
