"""What is drawn of one call: the stretches inside a hop's bar, and the critical path through spans of others.

Pure functions over numbers; times are milliseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chains.records.packing import PARTS, Wait, Work

KEPT = 48  # waits and works that a hop's span carries: the last ones
Stretch = tuple[str, float, float, str]  # part, start, ms, label


@dataclass(frozen=True, slots=True)
class Hop:
    """One hop's account, in milliseconds from its start: as its span tells it."""

    ms: float
    serialise: float = 0.0
    received: float | None = None
    accepted: float | None = None
    ended: float | None = None
    waits: Sequence[Wait] = ()
    works: Sequence[Work] = ()


def segments(hop: Hop, name: Callable[[int], str]) -> list[Stretch]:
    """The hop's bar from its start to its end, without gap or overlap: (part, start, ms, label).

    `name` tells what a span is called. Where more waits happened than a span carries, what lies before the first of
    them is of the part "mixed".
    """
    ended = _within(hop.ended, 0.0, hop.ms, hop.ms)
    received = _within(hop.received, 0.0, ended, 0.0)
    accepted = _within(hop.accepted, received, ended, received)
    serialised = min(hop.serialise, received)
    out: list[Stretch] = []
    _add(out, "serialise", 0.0, serialised, "")
    _add(out, "wire", serialised, received, "")
    _add(out, "queue", received, accepted, "")
    inside = _within(_first_kept(hop), accepted, ended, accepted)
    _add(out, "mixed", accepted, inside, "")
    _add_inside(out, hop, inside, ended, name)
    _add(out, "wire", ended, hop.ms, "")
    return out


def _first_kept(hop: Hop) -> float | None:
    """Since when all is known of the hop; None: from its beginning."""
    full = [kept[0].start for kept in (hop.waits, hop.works) if len(kept) >= KEPT]
    return max(full) if full else None


def _add_inside(out: list[Stretch], hop: Hop, start: float, end: float, name: Callable[[int], str]) -> None:
    """What the hop's code did: a work counts before a wait, of several waits the one that lasted longest."""
    waits = [wait for wait in hop.waits if wait.start < end and wait.start + wait.ms > start]
    works = [work for work in hop.works if work.start < end and work.start + work.ms > start]
    edges = {start, end, *(of.start for of in waits), *(of.start + of.ms for of in waits)}
    edges.update(of.start for of in works)
    edges.update(of.start + of.ms for of in works)
    points = sorted(at for at in edges if start <= at <= end)
    for left, right in itertools.pairwise(points):
        middle = (left + right) / 2
        work = next((of for of in reversed(works) if of.start <= middle < of.start + of.ms), None)
        covering = [] if work else [of for of in waits if of.start <= middle < of.start + of.ms]
        if covering:
            wait = max(covering, key=lambda of: of.start + of.ms)
            _add(out, "wait", left, right, (name(wait.on) if wait.on and wait.kind != "credit" else "") or wait.kind)
        else:
            _add(out, "compute", left, right, work.name if work else "")


def proportional(parts: Sequence[float]) -> list[Stretch]:
    """The parts one after the other: of a hop that does not tell when it did what."""
    out: list[Stretch] = []
    at = 0.0
    for part, ms in zip(PARTS, parts, strict=True):
        _add(out, part, at, at + ms, "")
        at += ms
    return out


def _within(value: float | None, low: float, high: float, default: float) -> float:
    return default if value is None else min(max(value, low), high)


def _add(out: list[Stretch], part: str, start: float, end: float, label: str) -> None:
    if end - start < 1e-4:
        return
    last = out[-1] if out else None
    if last and last[0] == part and last[3] == label and abs(last[1] + last[2] - start) < 1e-3:
        out[-1] = (part, last[1], end - last[1], label)
    else:
        out.append((part, start, end - start, label))


@dataclass(slots=True)
class Bar:
    """A span as the walk sees it: `start` is already on the clock that is drawn."""

    row: int
    id: int
    parent: int
    name: str
    replica: str
    turn: int
    start: float
    ms: float
    children: list[Bar] = field(default_factory=list)

    @property
    def end(self) -> float:
        return self.start + self.ms


def tree(bars: Iterable[Bar]) -> list[Bar]:
    """Puts each bar among its parent's children; those without a parent here come back, the longest first."""
    known: dict[int, Bar] = {}
    everything = list(bars)
    for bar in everything:
        known.setdefault(bar.id, bar)
    roots = []
    for bar in everything:
        above = known.get(bar.parent) if bar.parent else None
        if above is None or above is bar:
            roots.append(bar)
        else:
            above.children.append(bar)
    if not roots and everything:  # spans in a circle: cut anywhere
        roots = everything[:1]
        known[roots[0].parent].children.remove(roots[0])
    return sorted(roots, key=lambda bar: -bar.ms)


def by_children(bar: Bar) -> list[Stretch]:
    """The stretches of a bar that tells nothing of its inside: it waits while a child runs, else it computes."""
    out: list[Stretch] = []
    reached = bar.start
    for child in sorted(bar.children, key=lambda child: child.start):
        left, right = max(child.start, reached), min(child.end, bar.end)
        if right > left:
            _add(out, "compute", reached - bar.start, left - bar.start, "")
            _add(out, "wait", left - bar.start, right - bar.start, child.name)
            reached = right
    _add(out, "compute", reached - bar.start, bar.ms, "")
    return out


def sums(stretches: Iterable[Stretch]) -> list[float]:
    """Milliseconds by part, in the order of PARTS."""
    totals = dict.fromkeys(PARTS, 0.0)
    for part, _, ms, _ in stretches:
        totals["compute" if part == "mixed" else part] += ms
    return list(totals.values())


class Waited(NamedTuple):
    """What a bar waited for from `start` to `end`, on the clock that is drawn; `on` None: nobody's bar, or unknown."""

    start: float
    end: float
    kind: str
    on: Bar | None


class _Above(NamedTuple):
    """The bars that a walk has come through, the last first."""

    row: int
    above: _Above | None


_Step = tuple[Bar, float, float, "_Above | None"]  # of a bar what lies below it, or None: its own time


def critical_path(
    root: Bar,
    inside: Mapping[int, Sequence[Stretch]] | None = None,
    waited: Mapping[int, Sequence[Waited]] | None = None,
) -> list[tuple[Bar, float, float]]:
    """(bar, start, ms) in order: at each moment the bar that was waited on, else the child that finished last before
    the next thing began, else the bar itself. The stretches sum to the root's time.

    `inside`: what is known of bars by row: where one computes, or waits for its reader, nobody is followed.
    `waited`: whom they waited on, by row; it need be no child.
    """
    out: list[tuple[Bar, float, float]] = []
    left_over: list[_Step] = [(root, root.start, root.end, _Above(root.row, None))]
    while left_over:  # a stack, since traces may be deep; the last stretch comes out first
        bar, start, end, above = left_over.pop()
        if above is None:
            out.append((bar, start, end - start))
            continue
        steps: list[_Step] = []
        for first, last, waits in reversed(_windows(bar, start, end, (inside or {}).get(bar.row))):
            told = (waited or {}).get(bar.row, ()) if waits else ()
            steps += _waiting(bar, first, last, told, above) if waits else [(bar, first, last, None)]
        left_over.extend(reversed(steps))
    out.reverse()
    return out


def _windows(bar: Bar, start: float, end: float, inside: Sequence[Stretch] | None) -> list[tuple[float, float, bool]]:
    """[start, end] cut into where the bar may wait for another and where it does not."""
    cut: list[tuple[float, float, bool]] = []
    at = start
    for part, begin, ms, label in inside or ():
        last = min(end, bar.start + begin + ms)
        if last > at:
            cut.append((at, last, part == "mixed" or (part == "wait" and label != "credit")))
            at = last
    return [*cut, (at, end, True)] if end > at else cut


def _waiting(bar: Bar, start: float, end: float, waited: Sequence[Waited], above: _Above) -> list[_Step]:
    """The steps from `end` back to `start` of a bar that waits: what it tells of each moment, else its children."""
    told = [wait for wait in waited if wait.start < end and wait.end > start]
    edges = {start, end, *(wait.start for wait in told), *(wait.end for wait in told)}
    points = sorted(at for at in edges if start <= at <= end)
    steps: list[_Step] = []
    for left, right in reversed(list(itertools.pairwise(points))):
        middle = (left + right) / 2
        covering = [wait for wait in told if wait.start <= middle < wait.end]
        wait = max((wait for wait in covering if not _circle(wait, above)), key=lambda wait: wait.end, default=None)
        if wait is not None and wait.on is not None:
            steps += _within_bar(bar, wait.on, left, right, above)
        elif covering and (wait is None or wait.kind == "input"):
            steps.append((bar, left, right, None))
        else:
            steps += _followed(bar, left, right, above)
    return steps


def _circle(wait: Waited, above: _Above) -> bool:
    """Whether following it would go in a circle. An input leads back to its maker, once: it may wait too."""
    if wait.on is None:
        return False
    times = 0
    rest: _Above | None = above
    while rest is not None:
        times += rest.row == wait.on.row
        rest = rest.above
    return times >= (2 if wait.kind == "input" else 1)


def _within_bar(bar: Bar, on: Bar, start: float, end: float, above: _Above) -> list[_Step]:
    """On with `on` for as long as it went; what lies beside it is the bar's own."""
    left, right = max(on.start, start), min(on.end, end)
    if right <= left:
        return [(bar, start, end, None)]
    steps: list[_Step] = [(bar, right, end, None)] if end > right else []
    steps.append((on, left, right, _Above(on.row, above)))
    return [*steps, (bar, start, left, None)] if left > start else steps


def _followed(bar: Bar, start: float, end: float, above: _Above) -> list[_Step]:
    """The steps from `end` back to `start`: the child that ran, or the bar itself where none did."""
    steps: list[_Step] = []
    cursor = end
    for child in sorted(bar.children, key=lambda child: (-min(child.end, end), -child.start)):
        left, right = max(child.start, start), min(child.end, cursor)
        if right <= left:
            continue
        if cursor > right:
            steps.append((bar, right, cursor, None))
        steps.append((child, left, right, _Above(child.row, above)))
        cursor = left
    if cursor > start:
        steps.append((bar, start, cursor, None))
    return steps
