"""Two versions, stretches of time or calls side by side: which hops got slower, and is that sure?"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from chains.errors import InvalidValue
from chains.records import figures, ranges
from chains.records.chain import described, on_path, times, turn_figures
from chains.records.figures import Figures, Wanted
from chains.records.findings import Finding, amount, finding, signed_ms
from chains.records.lookup import find
from chains.records.packing import PARTS
from chains.records.peers import ENOUGH, differences, own_time
from chains.records.sketches import Tally

LEAST_MS, LEAST_SHARE = 1.0, 0.05  # of a hop's own time
FEW_MS, FEW_SHARE = 20.0, 0.3  # where there are too few calls to be sure
SOME = 3
_FORMS = "write call:ID, version:V or range:FROM..TO (unix ms, now, -1h), each with ;chain=NAME where there are several"


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the comparison. `label` is for people."""

    label: str
    chain: str
    figures: Figures


def compare(connection: sqlite3.Connection, a: str, b: str, now_ms: float) -> dict[str, Any]:
    """{"a", "b", "hops", "turns", "findings"} of two specs. Raises InvalidValue and NotFound."""
    left, right = side(connection, a, now_ms), side(connection, b, now_ms)
    names = sorted({hop for one in (left, right) for hop, _ in one.figures.hops})
    hops = [_hop(name, left.figures, right.figures) for name in names]
    turns = _turns(left.figures.turns, right.figures.turns)
    hops.sort(key=lambda hop: -abs(hop["path_delta_ms"] or hop["own_delta_ms"] or 0.0))
    return {
        "a": _side(left),
        "b": _side(right),
        "hops": hops,
        "turns": turns,
        "findings": _empty(left, right)
        or [found for hop in hops if (found := _finding(hop, turns["a"]["p50"])) is not None],
    }


def _empty(left: Side, right: Side) -> list[Finding]:
    """What is said in place of all else where a side has no calls."""
    empty = [f"{name} ({one.label})" for name, one in (("A", left), ("B", right)) if not one.figures.calls]
    if not empty:
        return []
    text = f"{' and '.join(empty)} {'have' if len(empty) > 1 else 'has'} no calls: there is nothing to compare with."
    return [finding("unsure", "", text, 0.0)]


def side(connection: sqlite3.Connection, spec: str, now_ms: float) -> Side:
    """What a spec stands for. Raises InvalidValue and NotFound."""
    head, *more = spec.split(";")
    kind, _, value = head.partition(":")
    chain = ""
    for one in more:
        name, _, text = one.partition("=")
        if name != "chain" or not text:
            raise InvalidValue(f"{one[:60]!r} is no part of a side", mend=_FORMS)
        chain = text
    if kind == "call" and value:
        call = find(connection, value)
        return Side(f"call {call.id}", call.fields["chain"], figures.of_calls(connection, [call.row]))
    if kind == "version":
        chain = chain or _only_chain(connection, value)
        return Side(f"version {value}", chain, figures.of_chain(connection, Wanted(chain, version=value)))
    start, dots, end = value.partition("..")
    if kind != "range" or not dots:
        raise InvalidValue(f"{spec[:80]!r} is no side to compare", mend=_FORMS)
    stretch = ranges.read(start, end, now_ms)
    chain = chain or _only_chain(connection, None)
    return Side(
        f"{start or 'the beginning'} to {end or 'now'}",
        chain,
        figures.of_chain(connection, Wanted(chain, range=stretch)),
    )


def _only_chain(connection: sqlite3.Connection, version: str | None) -> str:
    rows = connection.execute(
        """SELECT DISTINCT iif(chain = '', service, chain) FROM sources
        WHERE id IN (SELECT source FROM calls) AND (:version IS NULL OR version = :version)""",
        {"version": version},
    ).fetchall()
    if len(rows) == 1:
        return str(rows[0][0])
    if not rows:
        raise InvalidValue(f"there is no version {version!r}" if version else "there is no call yet", mend=_FORMS)
    listed = ", ".join(sorted(row[0] for row in rows)[:10])
    raise InvalidValue("there are several chains", mend=f"add ;chain=NAME, one of {listed}")


def _side(one: Side) -> dict[str, Any]:
    return {"label": one.label, "chain": one.chain, **described(one.figures)}


def _hop(name: str, left: Figures, right: Figures) -> dict[str, Any]:
    a, b = left.hop(name), right.hop(name)
    both = bool(a.count and b.count)
    before, after = times(a), times(b)
    sure = differences(b, a) if both else []
    own = sum(one.ms for one in sure)
    return {
        "hop": name,
        "a": {**before, "on_path": on_path(name, left)} if a.count else None,
        "b": {**after, "on_path": on_path(name, right)} if b.count else None,
        "delta_p50": round(after["p50"] - before["p50"], 3) if both else None,
        "delta_p95": round(after["p95"] - before["p95"], 3) if both else None,
        "parts": {part: round(b.mean(part) - a.mean(part), 3) for part in PARTS} if both else {},
        "own_delta_ms": round(own, 3) if both else None,
        "path_delta_ms": _path_delta(name, left, right),
        "changed": [{"part": one.part, "ms": round(one.ms, 3)} for one in sure],
        "verdict": _verdict(a, b, own),
    }


def _path_delta(name: str, left: Figures, right: Figures) -> float | None:
    """By how much the hop's time on a mean turn's critical path changed."""
    if not left.turns.count or not right.turns.count:
        return None
    before = left.on_path.get(name, (0, 0.0))[1] / left.turns.count
    return round(right.on_path.get(name, (0, 0.0))[1] / right.turns.count - before, 3)


def _verdict(a: Tally, b: Tally, own: float) -> str:
    """slower | faster | same | unsure (too few calls) | new | gone: by the hop's own time, of which waiting is none."""
    if not a.count or not b.count:
        return "new" if b.count else "gone"
    if min(a.count, b.count) < ENOUGH:
        return _of_few(a, b)
    if abs(own) < max(LEAST_MS, LEAST_SHARE * own_time(a)):
        return "same"
    return "slower" if own > 0 else "faster"


def _of_few(a: Tally, b: Tally) -> str:
    """From three calls on: every one of them past all of the other side's, and by much."""
    if min(a.count, b.count) < SOME:
        return "unsure"
    delta = own_time(b) - own_time(a)
    if abs(delta) < max(FEW_MS, FEW_SHARE * own_time(a)):
        return "same" if abs(delta) < max(LEAST_MS, LEAST_SHARE * own_time(a)) else "unsure"
    low, high = (a, b) if delta > 0 else (b, a)
    apart = any(low.quantiles([1.0], part)[0] < high.quantiles([0.0], part)[0] for part in ("queue", "compute", "wire"))
    return ("slower" if delta > 0 else "faster") if apart else "unsure"


def _turns(a: Tally, b: Tally) -> dict[str, Any]:
    before, after = turn_figures(a), turn_figures(b)
    both = bool(a.count and b.count)
    return {
        "a": before,
        "b": after,
        "delta_p50": round(after["p50"] - before["p50"], 3) if both else None,
        "delta_p95": round(after["p95"] - before["p95"], 3) if both else None,
    }


def _finding(hop: dict[str, Any], turn_ms: float) -> Finding | None:
    """What got slower, what is new on the path of turns, and what seems so without being sure."""
    name, path = hop["hop"], hop["path_delta_ms"]
    on_turns = f" A turn gains {amount(path)} by it." if path and path >= 1.0 else ""
    if hop["verdict"] == "new":
        if not path or path < 5.0:
            return None
        return finding("new", name, f"{name} is new on the path of turns: it takes {amount(path)} of a turn.", path)
    if hop["verdict"] == "unsure" and path and path >= max(FEW_MS, 0.1 * turn_ms):
        text = f"{name} took {amount(path)} more of a turn. There are too few calls to say whether that is chance."
        return finding("unsure", name, text, path)
    if hop["verdict"] != "slower":
        return None
    grown = sorted(hop["changed"], key=lambda one: -one["ms"]) or [
        {"part": part, "ms": ms} for part, ms in sorted(hop["parts"].items(), key=lambda entry: -entry[1])
    ]
    main = grown[0]
    kind = {"queue": "queue", "wire": "wire", "serialise": "wire"}.get(main["part"], "model")
    text = f"{name} got slower: {main['part']} {signed_ms(main['ms'])} at the median.{on_turns}"
    return finding(kind, name, text, path if path and path >= 1.0 else main["ms"])
