"""Critical paths over the spans of a call: which bars a turn's path runs through, and a path where none was sent."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chains.records.packing import Wait
from chains.records.waterfall import Bar, Stretch, Waited, critical_path

CALL = "the call"
"""In a path: the time in which a call was open and none of its hops ran, its client or the way to it."""
LEAST_MS = 5e-4


def matched(turns: Iterable[Mapping[str, Any]], bars: Sequence[Bar]) -> dict[int, float]:
    """How many ms of the turns' paths lie in each bar, by row. Of several that could be meant, the one that covers
    most of the stretch counts, of those one of the same turn, of those the shortest.
    """
    named: dict[tuple[str, int], list[Bar]] = defaultdict(list)
    for bar in bars:
        named[bar.name, bar.turn].append(bar)
    rows = {key: _Row(some) for key, some in named.items()}
    nothing = _Row([])
    found: dict[int, float] = {}
    for turn in turns:
        for hop, _, _, replica, start, ms in turn["path"]:
            own = rows.get((hop, turn["number"]), nothing).covering(replica, start, start + ms)
            shared = rows.get((hop, 0), nothing).covering(replica, start, start + ms) if turn["number"] else None
            best = max((one for one in (own, shared) if one is not None), key=lambda one: one[0], default=None)
            if best is not None:
                found[best[1].row] = found.get(best[1].row, 0.0) + ms
    return found


class _Row:
    """Bars in the order of their starts."""

    def __init__(self, bars: list[Bar]) -> None:
        self._bars = sorted(bars, key=lambda bar: bar.start)
        self._starts = [bar.start for bar in self._bars]
        self._latest = list(itertools.accumulate((bar.end for bar in self._bars), max))  # end of any up to here

    def covering(self, replica: str, start: float, end: float) -> tuple[float, Bar] | None:
        """(how much of the stretch, the bar) of the one that covers most of it; 1 ms beside it still counts."""
        best: tuple[float, Bar] | None = None
        for at in range(bisect_right(self._starts, end + 1.0) - 1, -1, -1):
            if self._latest[at] < start - 1.0:
                break
            bar = self._bars[at]
            overlap = round(min(bar.end, end) - max(bar.start, start), 1)
            if overlap < -1.0 or (replica and bar.replica != replica):
                continue
            if best is None or (overlap, -bar.ms) > (best[0], -best[1].ms):
                best = (overlap, bar)
        return best


def waited(bars: Iterable[Bar], waits: Mapping[int, Sequence[Wait]]) -> dict[int, list[Waited]]:
    """Whom each bar waited on, by row; `waits` as its span tells them, by row."""
    known = list(bars)
    by_span = {bar.id: bar for bar in known}
    return {
        bar.row: [
            Waited(
                bar.start + one.start, bar.start + one.start + one.ms, one.kind, by_span.get(one.on) if one.on else None
            )
            for one in waits[bar.row]
        ]
        for bar in known
        if waits.get(bar.row)
    }


def computed(
    root: Bar,
    inside: Mapping[int, Sequence[Stretch]],
    waits: Mapping[int, Sequence[Waited]] | None = None,
    whole: tuple[float, float] | None = None,
) -> tuple[dict[str, Any], dict[int, float]]:
    """A turn 0 over the root of a tree, for calls that tell of no turns, and the ms of its path by row.

    A bar's own stretches are split by what `inside` tells of it, where it does; else they are its compute. `waits`:
    whom a bar waited on. `whole`: start and end of the call itself; what lies before or after the root is its own.
    """
    start, end = root.start, root.end
    if whole is not None:
        start, end = min(whole[0], start), max(whole[1], end)
    path: list[tuple[str, str, str, str, float, float]] = []
    on_path: dict[int, float] = {}
    _beside(path, f"before {root.name}", start, root.start)
    for bar, at, ms in critical_path(root, inside, waits):
        on_path[bar.row] = on_path.get(bar.row, 0.0) + ms
        for part, name, left, length in _split(at, ms, bar.start, inside.get(bar.row, ())):
            path.append((bar.name, part, name, bar.replica, round(left, 3), round(length, 3)))
    _beside(path, f"after {root.name}", root.end, end)
    turn = {
        "number": 0, "start": round(start, 3), "end": round(end, 3), "latency_ms": round(end - start, 3),
        "latency_start": round(start, 3), "state": "answered", "reason": "", "spoken": False, "played_ms": 0.0,
        "marks": {}, "path": path,
    }  # fmt: skip
    return turn, on_path


def _beside(path: list[tuple[str, str, str, str, float, float]], name: str, start: float, end: float) -> None:
    if end - start >= LEAST_MS:
        path.append((CALL, "wait", name, "", round(start, 3), round(end - start, 3)))


def _split(start: float, ms: float, origin: float, stretches: Sequence[Stretch]) -> list[tuple[str, str, float, float]]:
    """[start, start + ms] cut at the edges of a bar's stretches, (part, name, start, ms) each."""
    out: list[tuple[str, str, float, float]] = []
    at, end = start, start + ms
    for part, begin, length, label in stretches:
        left, right = max(at, origin + begin), min(end, origin + begin + length)
        if right - left < 1e-6:
            continue
        if left > at:
            out.append(("compute", "", at, left - at))
        out.append(("compute" if part == "mixed" else part, label, left, right - left))
        at = right
    if end - at > 1e-6:
        out.append(("compute", "", at, end - at))
    return out
