"""How far the clocks of other processes are off, estimated from spans: for drawing alone, never for a figure.

What a parent caused began after it did and, where it fits, ended before it: so each pair of a parent and a child of
another process bounds the shift between their clocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

SLACK_MS = 1.0  # wobble between clocks that are in step: not worth moving a bar for


@dataclass(frozen=True, slots=True)
class Placed:
    """A span on its own process's clock, in milliseconds."""

    id: int
    parent: int
    source: int
    start: float
    ms: float


def offsets(spans: Iterable[Placed], trusted: Iterable[int] = ()) -> dict[int, float]:
    """Milliseconds to add to each source's times so that children lie within their parents.

    0 for the sources in `trusted`, for those that fit as they are, and for those nothing is known of.
    """
    bounds, order = _bounds(list(spans))
    found = dict.fromkeys(trusted, 0.0)
    if not found and order:
        found[order[0]] = 0.0
    links: dict[int, list[int]] = defaultdict(list)
    for above, below in bounds:
        links[above].append(below)
    reached = list(found)
    for above in reached:  # grows while it is walked: the sources reached so far, the nearest first
        for below in links[above]:
            if below not in found:
                found[below] = _shift(bounds[above, below], found[above])
                reached.append(below)
    return {source: found.get(source, 0.0) for source in order}


_Bounds = Mapping[tuple[int, int], list[tuple[float, float]]]


def _bounds(spans: list[Placed]) -> tuple[_Bounds, list[int]]:
    """For each pair of sources the (least, most) shift that each pair of spans allows; and the sources, roots first."""
    known = {span.id: span for span in spans}
    bounds: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    roots: dict[int, None] = {}
    others: dict[int, None] = {}
    for span in spans:
        above = known.get(span.parent) if span.parent else None
        (others if above is not None else roots)[span.source] = None
        if above is not None and above.source != span.source:
            least = above.start - span.start
            bounds[above.source, span.source].append((least, least + above.ms - span.ms))
    return bounds, list({**roots, **others})


def _shift(bounds: list[tuple[float, float]], base: float) -> float:
    """The smallest wonder: none if the children fit already, else the middle of what all of them allow.

    Children that outlast their parents say only when they may have begun; where the pairs contradict one another, the
    middle one of their middles counts.
    """
    fitting = [(low + base, high + base) for low, high in bounds if high >= low]
    if not fitting:
        least = median(low for low, _ in bounds) + base
        return least if least > SLACK_MS else 0.0
    low, high = max(low for low, _ in fitting), min(high for _, high in fitting)
    if low - SLACK_MS <= 0.0 <= high + SLACK_MS and low <= high + 2 * SLACK_MS:
        return 0.0
    if low <= high:
        return (low + high) / 2
    middle = median((low + high) / 2 for low, high in fitting)
    astray = sum(1 for low, high in fitting if low > SLACK_MS or high < -SLACK_MS)
    return middle if astray * 2 > len(fitting) else 0.0
