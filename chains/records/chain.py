"""A chain over a stretch of time: each hop's percentiles and parts, its replicas against their peers, its graph."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from chains.records import findings
from chains.records.figures import Figures, Wanted, of_chain
from chains.records.packing import PARTS
from chains.records.peers import Difference, difference
from chains.records.sketches import Tally

RANKS = (0.5, 0.95, 0.99)
BINS = 24


def summary(connection: sqlite3.Connection, wanted: Wanted) -> dict[str, Any]:
    """{"calls", "graph", "hops", "turns", "findings"} of a chain."""
    return described(of_chain(connection, wanted))


def described(figures: Figures) -> dict[str, Any]:
    """The figures as they are answered."""
    hops = [_hop(name, figures) for name in sorted({hop for hop, _ in figures.hops})]
    hops.sort(key=lambda hop: -(hop["on_path"]["share_ms"] if hop["on_path"] else 0.0))
    turns = turn_figures(figures.turns)
    return {
        "calls": figures.calls,
        "graph": graph(figures),
        "hops": hops,
        "turns": turns,
        "findings": findings.of_chain(hops, turns, figures.entries),
    }


def _hop(name: str, figures: Figures) -> dict[str, Any]:
    replicas = {replica: tally for (hop, replica), tally in figures.hops.items() if hop == name}
    whole = figures.hop(name)
    node, _, method = name.partition(".")
    shown = {replica: tally for replica, tally in replicas.items() if replica}
    return {
        "hop": name, "node": node, "method": method, **times(whole),
        "parts": {part: _part(whole, part) for part in PARTS},
        "on_path": on_path(name, figures),
        "replicas": [_replica(replica, shown) for replica in sorted(shown)],
    }  # fmt: skip


def times(tally: Tally) -> dict[str, Any]:
    """{"calls", "errors", "p50", "p95", "p99"}."""
    p50, p95, p99 = (round(ms, 3) for ms in tally.quantiles(RANKS))
    return {"calls": tally.count, "errors": tally.errors, "p50": p50, "p95": p95, "p99": p99}


def _part(tally: Tally, part: str) -> dict[str, float]:
    p50, p95, p99 = (round(ms, 3) for ms in tally.quantiles(RANKS, part))
    return {"p50": p50, "p95": p95, "p99": p99, "mean": round(tally.mean(part), 3)}


def on_path(hop: str, figures: Figures) -> dict[str, Any] | None:
    """On how many turns' critical path the hop was, and for how long; None: on none, or there are no turns."""
    turns, ms = figures.on_path.get(hop, (0, 0.0))
    if not turns or not figures.turns.count:
        return None
    whole = sum(spent for _, spent in figures.on_path.values())
    return {
        "turns": turns,
        "share": round(min(1.0, turns / figures.turns.count), 4),
        "ms_mean": round(ms / turns, 3),
        "share_ms": round(ms / whole, 4) if whole else 0.0,
    }


def _replica(name: str, replicas: Mapping[str, Tally]) -> dict[str, Any]:
    mine = replicas[name]
    others = Tally()
    for other, tally in replicas.items():
        if other != name:
            others.merge(tally)
    found = difference(mine, others) if others.count else None
    p50, theirs = mine.quantiles([0.5])[0], others.quantiles([0.5])[0]
    slower = found is not None and found.ms > 0
    return {
        "replica": name, **times(mine),
        "parts": {part: round(mine.mean(part), 3) for part in PARTS},
        "ratio": round(p50 / theirs, 3) if theirs else None,
        "delta_ms": round(found.ms if found else p50 - theirs, 3) if others.count else None,
        "outlier": slower,
        "why": _why(found, len(replicas) - 1) if found is not None else "",
        "part": found.part if found is not None else None,
    }  # fmt: skip


def _why(found: Difference, peers: int) -> str:
    which = f"{found.part} of its slowest 5 %" if found.tail else found.part
    against = "its peer" if peers == 1 else f"its {peers} peers"
    return f"{which} {findings.signed_ms(found.ms)} against {against}"


def turn_figures(tally: Tally) -> dict[str, Any]:
    """{"count", "p50", "p95", "p99", "failed", "histogram": [[from ms, turns], ..]}."""
    told = times(tally)
    return {
        "count": told["calls"], "failed": told["errors"], "p50": told["p50"], "p95": told["p95"], "p99": told["p99"],
        "histogram": _histogram(tally),
    }  # fmt: skip


def _histogram(tally: Tally) -> list[tuple[float, int]]:
    low, high = tally.quantiles([0.0, 1.0])
    if not tally.count or high <= low:
        return [(round(low, 1), tally.count)] if tally.count else []
    width = (high - low) / BINS
    edges = [low + width * number for number in range(1, BINS)]
    shares = tally.shares(edges)
    return [(round(low + width * n, 1), round(share * tally.count)) for n, share in enumerate(shares)]


def graph(figures: Figures) -> dict[str, Any]:
    """{"nodes", "edges": [[caller, callee], ..]} of chainlets, callers first."""
    edges = {(above.partition(".")[0], below.partition(".")[0]) for above, below in figures.edges}
    entries = dict.fromkeys(hop.partition(".")[0] for hop, _, _ in figures.entries)
    nodes = [*entries, *sorted({hop.partition(".")[0] for hop, _ in figures.hops} - entries.keys())]
    return {"nodes": nodes, "edges": sorted([a, b] for a, b in edges if a != b)}
