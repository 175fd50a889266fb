"""Why one call was slow: its slowest turn's path against what is usual for its chain."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from chains.records import call, chain, figures
from chains.records.findings import Finding, amount, client_is_slow, finding, of_chain
from chains.records.lookup import find
from chains.records.paths import CALL
from chains.records.ranges import Range

AROUND_MS = 30 * 60e3  # before and after the call: what is usual then
TURNS = 12  # fewer say nothing of what is usual
LEAST_MS, LEAST_SHARE = 15.0, 0.1  # of the turn's latency
SLOW = 1.5  # times the usual latency; the slowest twentieth is slow as well
MOST = 3
_KINDS = {"queue": "queue", "wire": "wire", "serialise": "wire", "credit": "client", "input": "input", "wait": "input"}


def findings(connection: sqlite3.Connection, id: str) -> dict[str, Any]:
    """{"turn", "ms", "usual_ms" or None, "findings"}: what of the slowest turn took longer than usual, the most first.

    Raises NotFound.
    """
    found = find(connection, id)
    answered = [turn for turn in call.turns(connection, id) if turn["latency_ms"] and turn["state"] != "dropped"]
    clients = _clients(figures.of_calls(connection, [found.row]).entries)
    if not answered:
        return {"turn": None, "ms": None, "usual_ms": None, "findings": clients}
    turn = max(answered, key=lambda turn: float(turn["latency_ms"]))
    fields = found.fields
    around = Range(fields["started_ms"] - AROUND_MS, fields["started_ms"] + AROUND_MS)
    usual = figures.of_chain(connection, figures.Wanted(fields["chain"], fields["app"], fields["version"], around))
    enough = turn["number"] > 0 and usual.turns.count >= TURNS
    told = _against(turn, usual) if enough else _by_share(turn)
    told = [one for one in told if not (clients and one["kind"] == "client")]
    usual_ms = round(usual.turns.quantiles([0.5])[0], 3) if enough else None
    return {"turn": turn["number"], "ms": turn["latency_ms"], "usual_ms": usual_ms, "findings": [*told, *clients]}


def _clients(entries: Sequence[tuple[str, float, float]]) -> list[Finding]:
    return [
        finding(
            "client",
            hop,
            f"The client read slowly: {hop} waited {amount(waited)} until it took what was ready.",
            waited,
        )
        for hop, ms, waited in entries
        if client_is_slow(ms, waited)
    ]


def _steps(turn: Mapping[str, Any]) -> dict[tuple[str, str], tuple[float, str]]:
    """(hop, part) -> ms on the path, and the replica that most of it was at."""
    own: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for hop, part, name, replica, _, ms in turn["path"]:
        own[hop, figures.part_of(part, name)][replica] += ms
    return {key: (sum(of.values()), max(of, key=lambda replica: of[replica])) for key, of in own.items()}


def _against(turn: Mapping[str, Any], usual: figures.Figures) -> list[Finding]:
    means: dict[tuple[str, str], float] = defaultdict(float)
    for (hop, _, part), ms in usual.path_parts.items():
        means[hop, part] += ms / usual.turns.count
    told = chain.described(usual)
    odd = {(one["hop"], one["replica"]): one for one in of_chain(told["hops"], told["turns"], ()) if one["replica"]}
    floor = max(LEAST_MS, LEAST_SHARE * turn["latency_ms"])
    middle, high = usual.turns.quantiles([0.5, 0.95])
    slow = turn["latency_ms"] >= min(SLOW * middle, high)
    found = []
    for (hop, part), (ms, replica) in _steps(turn).items():
        if ms - means[hop, part] >= floor and (slow or (hop, replica) in odd):
            found.append(_finding(hop, part, replica, ms, means[hop, part], odd))
    return sorted(found, key=lambda one: -float(one["ms"]))[:MOST]


def _finding(
    hop: str, part: str, replica: str, ms: float, usual: float, odd: Mapping[tuple[str, str], Finding]
) -> Finding:
    took = f"{amount(ms)}, usually {amount(usual)}"
    if part in ("compute", "queue") and (known := odd.get((hop, replica))) is not None and known["kind"] == "replica":
        text = f"{hop}: {part} {took}. It ran on {replica}, which is slower than its peers in other calls, too."
        return finding("replica", hop, text, ms - usual, replica)
    kind = _KINDS.get(part, "model")
    if kind == "queue":
        text = f"The call waited in the queue of {hop}: {took}. More replicas would shorten it."
    elif kind == "wire":
        text = f"{hop} was long on the way ({part}): {took}."
    elif kind == "client":
        text = f"{hop} waited for its reader, who was slow: {took}."
    elif kind == "input":
        text = f"{hop} waited for its input: {took}."
    else:
        at = f" on {replica}, which is like its peers otherwise" if replica else ""
        text = f"{hop} computed {took}{at}: it is what this call asked of it, or the model."
    return finding(kind, hop, text, ms - usual)


def _by_share(turn: Mapping[str, Any]) -> list[Finding]:
    """Without anything to compare with: what took most of it."""
    steps = sorted(_steps(turn).items(), key=lambda entry: -entry[1][0])
    if not steps or steps[0][1][0] < 0.5 * turn["latency_ms"]:
        return []
    (hop, part), (ms, replica) = steps[0]
    at = f" on {replica}" if replica else ""
    share = ms / turn["latency_ms"]
    what = {"credit": "waiting for the reader", "input": "waiting for input", "wait": "waiting"}.get(part, part)
    if hop == CALL:
        text = f"{share:.0%} of it lay before or after all hops: with the client, or on the way to it."
        return [finding("client", "", text, ms)]
    text = f"{share:.0%} of it was {what} of {hop}{at}. There are too few turns yet to say what is usual."
    return [finding(_KINDS.get(part, "model"), hop, text, ms)]
