"""Two calls, versions or stretches of time side by side in the terminal: what got slower, hop by hop, turn by turn.

Pure: the answer of /api/compare in, lines out.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

STYLES = {"slower": "red", "faster": "green", "new": "cyan", "gone": "cyan"}
HOP = 34


def lines(answer: Mapping[str, Any], calls: Sequence[Mapping[str, Any]], width: int) -> list[Text]:
    """The findings, then a table of the turns and one of the hops."""
    first, second = answer["a"], answer["b"]
    out = [Text(f"A  {first['label']}"), Text(f"B  {second['label']}")]
    out += [Text(f"  {one['text']}") for one in answer.get("findings", ())]
    if len(calls) == 2:
        out += [Text(""), *_turn_by_turn(calls[0], calls[1])]
    else:
        out += [Text(""), *_turns(first.get("turns") or {}, second.get("turns") or {})]
    out += [
        Text(""),
        Text(
            f"{'hop (ms)':<{HOP}}{'A p50':>9}{'B p50':>9}{'Δ p50':>9}{'Δ p95':>9}{'of a turn':>11}  what changed",
            "bold",
        ),
    ]
    out += [_hop(hop) for hop in answer["hops"]]
    for line in out:
        line.truncate(max(width, 40))
    return out


def _hop(hop: Mapping[str, Any]) -> Text:
    """`own` is what changed in the hop itself, not in what it waits for; only what is more than chance is named."""
    verdict = hop["verdict"]
    what = ", ".join(f"{one['part']} {one['ms']:+.1f}" for one in hop["changed"])
    figures = [_of(hop["a"], "p50"), _of(hop["b"], "p50"), *(_delta(hop, f"delta_{name}") for name in ("p50", "p95"))]
    text = f"{hop['hop'][: HOP - 1]:<{HOP}}" + "".join(f"{figure:>9}" for figure in figures)
    text += f"{_delta(hop, 'path_delta_ms'):>11}"
    return Text(f"{text}  {verdict}" + f": {what}" * bool(what), STYLES.get(verdict, ""))


def _of(side: Mapping[str, Any] | None, name: str) -> str:
    value = (side or {}).get(name)
    return "" if value is None else f"{value:.1f}"


def _delta(hop: Mapping[str, Any], name: str) -> str:
    value = hop.get(name)
    return "" if value is None else f"{value:+.1f}"


def _turns(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Text]:
    if not first.get("count") and not second.get("count"):
        return [Text("neither side has turns: hops alone are compared")]
    out = [Text(f"{'turns':<{HOP}}{'A':>9}{'B':>9}{'Δ':>9}", "bold")]
    for name in ("count", "p50", "p95", "p99"):
        a, b = first.get(name), second.get(name)
        if name != "count":  # of none there are no percentiles
            a, b = a if first.get("count") else None, b if second.get("count") else None
        if a is None and b is None:
            continue
        digits = 0 if name == "count" else 1
        delta = f"{b - a:+.{digits}f}" if a is not None and b is not None and name != "count" else ""
        shown = ["" if value is None else f"{value:.{digits}f}" for value in (a, b)]
        unit = "" if name == "count" else ", ms"
        out.append(Text(f"  {name + unit:<{HOP - 2}}{shown[0]:>9}{shown[1]:>9}{delta:>9}"))
    return out


def _turn_by_turn(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Text]:
    """Each turn's latency, and what on its path changed most."""
    out = [Text(f"{'turn (ms)':<{HOP}}{'A':>9}{'B':>9}{'Δ':>9}  what changed on the path", "bold")]
    for one, other in itertools.zip_longest(first["turns"], second["turns"]):
        latencies = [turn["latency_ms"] if turn is not None else None for turn in (one, other)]
        shown = ["" if value is None else f"{value:.1f}" for value in latencies]
        delta, what = "", ""
        if latencies[0] is not None and latencies[1] is not None:
            delta = f"{latencies[1] - latencies[0]:+.1f}"
            what = _moved(_totals(one["path"]), _totals(other["path"]))
        number = (one or other)["number"]
        name = f"turn {number}" if number else "the trace"
        states = {turn["state"] for turn in (one, other) if turn is not None and turn["state"] not in ("", "answered")}
        name += f" ({', '.join(sorted(states))})" * bool(states)
        out.append(Text(f"  {name:<{HOP - 2}}{shown[0]:>9}{shown[1]:>9}{delta:>9}  {what}"))
    return out


def _totals(path: Sequence[Sequence[Any]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for hop, part, name, _, _, ms in path or ():
        what = f"{hop} {name or part}"
        totals[what] = totals.get(what, 0.0) + ms
    return totals


def _moved(first: Mapping[str, float], second: Mapping[str, float]) -> str:
    moved = {name: second.get(name, 0.0) - first.get(name, 0.0) for name in {**first, **second}}
    most = sorted(moved.items(), key=lambda one: -abs(one[1]))[:2]
    return ", ".join(f"{name} {ms:+.1f}" for name, ms in most if abs(ms) >= 1.0)
