"""What the store holds as a whole: totals, and which chains, versions, hops and replicas there are."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

AROUND_S = 3_600  # hops and replicas are those of the hour before a chain's newest call, and since


def totals(connection: sqlite3.Connection) -> dict[str, Any]:
    """{"calls", "live", "spans", "bytes", "dropped", "drops": [[source, reason, count], ..], "now_ms"}."""
    calls, spans, live = connection.execute(
        "SELECT count(*), coalesce(sum(spans), 0), coalesce(sum(outcome = 'live'), 0) FROM calls"
    ).fetchone()
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    drops = connection.execute("SELECT source, reason, count FROM drops ORDER BY count DESC LIMIT 20").fetchall()
    dropped = connection.execute("SELECT coalesce(sum(count), 0) FROM drops").fetchone()[0]
    return {
        "calls": calls, "live": live, "spans": spans, "bytes": (pages - free) * size, "dropped": dropped,
        "drops": drops, "now_ms": time.time_ns() / 1e6,
    }  # fmt: skip


def with_untold(found: dict[str, Any], untold: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    """Totals with drops, by (source, reason), that could not be written into the store so far."""
    drops = Counter({(source, reason): count for source, reason, count in found["drops"]})
    drops.update(untold)
    rows = [(source, reason, count) for (source, reason), count in drops.most_common(20)]
    return {**found, "drops": rows, "dropped": found["dropped"] + sum(untold.values())}


def chains(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """The chains (or services of others) with their versions, the one with the newest call first."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    rows = connection.execute(
        """SELECT iif(s.chain = '', s.service, s.chain) AS chain, s.app, s.version, min(c.started), max(c.started),
        count(*) FROM calls c JOIN sources s ON s.id = c.source
        GROUP BY chain, s.app, s.version ORDER BY max(c.started) DESC"""
    )
    for chain, app, version, first, last, calls in rows:
        entry = found.setdefault((chain, app), {"chain": chain, "app": app, "versions": [], "replicas": [], "hops": []})
        stretch = {"version": version, "first_ms": first / 1e6, "last_ms": last / 1e6, "calls": calls}
        entry["versions"].append(stretch)
    for (chain, _), entry in found.items():
        hops = _hops(connection, chain, max(version["last_ms"] for version in entry["versions"]))
        entry["hops"] = sorted({hop for hop, _ in hops})
        entry["replicas"] = sorted({replica for _, replica in hops} - {""})
    return list(found.values())


def _hops(connection: sqlite3.Connection, chain: str, last_ms: float) -> list[tuple[str, str]]:
    """The (hop, replica) pairs of a chain around its newest call."""
    return connection.execute(
        """SELECT h.text, r.text FROM
          (SELECT DISTINCT hop, replica FROM sketches WHERE bucket >= ? AND hop > 0
            AND chain = (SELECT id FROM names WHERE text = ?)) d
          JOIN names h ON h.id = d.hop JOIN names r ON r.id = d.replica""",
        (last_ms / 1e3 - AROUND_S, chain),
    ).fetchall()


def info(connection: sqlite3.Connection) -> dict[str, Any]:
    """Totals and chains."""
    return {**totals(connection), "chains": chains(connection)}
