"""Calls of a small chain, Desk.run -> Model.reply on some replicas, with one thing wrong or none."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chains.records.store import Store
from tests.chains.records import made

RESOURCE = {
    "service.name": "Desk",
    "service.version": "v1",
    "service.instance.id": "gateway:1",
    "chains.chain": "Desk",
}


def calls(
    count: int,
    *,
    replicas: int = 4,
    slow: str = "",
    slow_ms: float = 80.0,
    queue_ms: float = 0.5,
    wire_ms: float = 0.4,
    credit_ms: float = 0.0,
    compute_ms: float = 60.0,
    failing: str = "",
    turns: int = 4,
    prefix: str = "call",
    start: int = made.START,
    seed: int = 1,
) -> list[made.Span]:
    """`slow` names a replica that computes `slow_ms` longer; the rest are means over all replicas. `credit_ms`: how
    long the entry waits in each call for its reader.
    """
    found: list[made.Span] = []
    rnd = random.Random(seed)
    for index in range(count):
        call = made.Call(f"{prefix}-{index}", rnd, start + index * 2_000 * made.MS, rnd.randbytes(16), rnd.randbytes(8))
        entry = rnd.randbytes(8)
        at = 0.0
        for number in range(1, turns + 1):
            replica = f"Model-{rnd.randrange(replicas)}"
            compute = compute_ms * rnd.lognormvariate(0, 0.2) + (slow_ms if replica == slow else 0.0)
            queue = rnd.expovariate(1 / queue_ms)
            parts = [0.05, wire_ms * rnd.uniform(0.8, 1.2), queue, compute, 0.0]
            more = {"error.type": "ValueError"} if replica == failing else {}
            hop = call.hop("Model.reply", entry, number, at + 500.0, parts, replica, **more)
            latency = round((hop.end - hop.start) / made.MS + 2.0, 3)
            path = [
                ["Model.reply", "wire", "", replica, 0.0, round(parts[1] + 0.05, 3)],
                ["Model.reply", "queue", "", replica, round(parts[1] + 0.05, 3), round(queue, 3)],
                ["Model.reply", "compute", "", replica, round(parts[1] + queue + 0.05, 3), round(compute, 3)],
            ]
            spent = sum(step[5] for step in path)
            path.append(["Desk.run", "compute", "", "", round(spent, 3), round(latency - spent, 3)])
            call.turn(number, at - 100.0, at + 600.0 + latency, latency, path, **{"chains.latency_start_ms": 600.0})
            at += 700.0 + latency
        waits = [[100.0, round(at - 200.0 - credit_ms, 3), "input", "", 0]]
        waits += [[round(at - 100.0 - credit_ms, 3), credit_ms, "credit", "", 0]] if credit_ms else []
        parts = [0.1, 0.3, 0.1, at - sum(wait[1] for wait in waits) - 0.5, sum(wait[1] for wait in waits)]
        run = call.hop("Desk.run", call.root, 0, 0.0, parts, "", **{"chains.waits": json.dumps(waits)})
        run.span = entry
        call.close(at + 1.0, turns)
        found += call.spans
    return found


@contextmanager
def kept(path: Path, *batches: tuple[list[made.Span], dict[str, str]]) -> Iterator[sqlite3.Connection]:
    """The spans of each resource in a store, opened for reading."""
    for spans, resource in batches:
        made.stored(path, spans, resource)
    with Store.open(path, readonly=True) as store:
        yield store.connection
