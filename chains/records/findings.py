"""What an operator should know of a chain, in words and in order of importance: which hop, and is it one replica, the
queue, the model, the wire, or the client?

Nothing is said of what is usual or too little to be sure of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

ENOUGH = 20  # calls of a hop before anything is said of its queue or wire
QUEUE_MS, QUEUE_SHARE = 50.0, 0.2  # at p95; of the hop's own time
WIRE_MS, WIRE_SHARE = 20.0, 0.25
CLIENT_MS, CLIENT_SHARE = 300.0, 0.15  # that an outermost hop waits for its reader, of its time
SLOW_TURN_MS, MODEL_SHARE = 800.0, 0.5
ERROR_SHARE, ERRORS = 0.05, 3
Finding = dict[str, Any]


def of_chain(
    hops: Sequence[Mapping[str, Any]], turns: Mapping[str, Any], entries: Iterable[tuple[str, float, float]]
) -> list[Finding]:
    """{"hop", "replica" or None, "kind", "text", "ms"} each. kind: replica | queue | client | model | wire | errors."""
    ranked: list[tuple[float, Finding]] = []
    for hop in hops:
        weight = hop["on_path"]["share"] if hop["on_path"] else (0.1 if turns["count"] else 1.0)
        odd = [one for one in hop["replicas"] if one["outlier"]]
        ranked += [(one["delta_ms"] * weight, _replica(hop, one)) for one in odd]
        for found in (_queue(hop, odd), _wire(hop, odd), _model(hop, turns), _errors(hop, turns)):
            if found is not None:
                ranked.append((found["ms"] * weight, found))
    ranked += [(found["ms"], found) for found in _clients(entries)]
    # a replica that stands out explains what else is seen of its hop, and is the easiest to mend
    order = {"replica": 0, "queue": 1, "client": 1, "wire": 1, "model": 2, "errors": 1}
    ranked.sort(key=lambda entry: (order[entry[1]["kind"]], -entry[0]))
    return [found for _, found in ranked]


def finding(kind: str, hop: str, text: str, ms: float, replica: str | None = None) -> Finding:
    return {"hop": hop, "replica": replica, "kind": kind, "text": text, "ms": round(ms, 3)}


def _replica(hop: Mapping[str, Any], one: Mapping[str, Any]) -> Finding:
    peers = len(hop["replicas"]) - 1
    rest = "its peer" if peers == 1 else f"its {peers} peers"
    name, replica = hop["hop"], one["replica"]
    if one["part"] == "queue":
        text = (
            f"Calls of {name} wait {amount(one['delta_ms'])} longer in the queue of replica {replica} than in that of "
            f"{rest}: it gets more work than it can do, or does it more slowly."
        )
    else:
        text = (
            f"Replica {replica} of {name} is slower than {rest}: {one['why'].partition(' against ')[0]}. It is that "
            "replica (or its machine), not the chainlet: restart or move it."
        )
    return finding("replica", name, text, one["delta_ms"], replica)


def _queue(hop: Mapping[str, Any], odd: Sequence[Mapping[str, Any]]) -> Finding | None:
    queue, own = hop["parts"]["queue"], _own(hop)
    few = hop["calls"] < ENOUGH or queue["p95"] < QUEUE_MS or queue["mean"] < QUEUE_SHARE * own
    if few or any(one["part"] == "queue" for one in odd):
        return None
    count = len(hop["replicas"])
    where, each = (f"one of all {count} replicas takes them", "each") if count > 1 else ("its replica takes them", "it")
    text = (
        f"The queue of {hop['hop']} is too long: calls wait {amount(queue['mean'])} on average and "
        f"{amount(queue['p95'])} at p95 before {where}. Give {hop['node']} more replicas "
        f"(scaling=Autoscaling(max=...)), or let {each} take more calls at once "
        "(limits=Limits(running=...))."
    )
    return finding("queue", hop["hop"], text, queue["mean"])


def _wire(hop: Mapping[str, Any], odd: Sequence[Mapping[str, Any]]) -> Finding | None:
    wire, own = hop["parts"]["wire"], _own(hop)
    few = hop["calls"] < ENOUGH or wire["p50"] < WIRE_MS or wire["mean"] < WIRE_SHARE * own
    if few or any(one["part"] == "wire" for one in odd):
        return None
    text = (
        f"Calls of {hop['hop']} spend {amount(wire['p50'])} (p95 {amount(wire['p95'])}) on the wire: its replicas are "
        "far from their callers, the network is slow, or what is sent is large."
    )
    return finding("wire", hop["hop"], text, wire["mean"])


def _model(hop: Mapping[str, Any], turns: Mapping[str, Any]) -> Finding | None:
    """Where turns are slow and one hop's compute is most of it, in all of its replicas."""
    path, own = hop["on_path"], _own(hop)
    if path is None or turns["count"] < ENOUGH or turns["p50"] < SLOW_TURN_MS or path["share_ms"] < MODEL_SHARE:
        return None
    compute = hop["parts"]["compute"]
    if compute["mean"] < 0.5 * own or any(one["outlier"] for one in hop["replicas"]):
        return None
    count = len(hop["replicas"])
    where = f"in all {count} replicas alike" if count > 1 else "in its only replica"
    text = (
        f"{hop['hop']} takes {amount(path['ms_mean'])} of a turn's {amount(turns['p50'])}, {where}, and nearly all "
        "of it computes: it is the model or its hardware, neither one replica nor the queue."
    )
    return finding("model", hop["hop"], text, path["ms_mean"])


def _errors(hop: Mapping[str, Any], turns: Mapping[str, Any]) -> Finding | None:
    errors, calls = hop["errors"], hop["calls"]
    if errors < ERRORS or errors < ERROR_SHARE * calls:
        return None
    failing = [one for one in hop["replicas"] if one["errors"]]
    alone = failing[0]["replica"] if len(failing) == 1 and len(hop["replicas"]) > 1 else None
    where = f", all of them at replica {alone}" if alone else ""
    text = f"{errors} of {calls} calls of {hop['hop']} failed{where}: open one of them to see why."
    return finding("errors", hop["hop"], text, 0.0, alone)


def _clients(entries: Iterable[tuple[str, float, float]]) -> list[Finding]:
    """Outermost hops that wait for their reader."""
    of_hop: dict[str, list[tuple[float, float]]] = {}
    for hop, ms, waited in entries:
        of_hop.setdefault(hop, []).append((ms, waited))
    found = []
    for hop, members in of_hop.items():
        slow = [(ms, waited) for ms, waited in members if client_is_slow(ms, waited)]
        if len(slow) < max(3, len(members) // 10):
            continue
        waited = mean(waited for _, waited in slow)
        share = sum(waited for _, waited in slow) / sum(ms for ms, _ in slow)
        text = (
            f"The client reads slowly: in {len(slow)} of {len(members)} calls {hop} waited {amount(waited)} "
            f"({share:.0%} of the call) until its caller took what was ready. The chain is not at fault: look at the "
            "client and its network."
        )
        found.append(finding("client", hop, text, waited))
    return found


def client_is_slow(ms: float, waited: float) -> bool:
    """Whether an outermost hop that took `ms` waited long for its reader."""
    return waited >= CLIENT_MS and waited >= CLIENT_SHARE * ms


def _own(hop: Mapping[str, Any]) -> float:
    """The hop's mean time without what it waited for others."""
    parts: Mapping[str, Mapping[str, float]] = hop["parts"]
    return sum(figures["mean"] for part, figures in parts.items() if part != "wait")


def amount(ms: float) -> str:
    """ "85 ms", "1.4 s", "0.3 ms"."""
    size = abs(ms)
    if size >= 10_000:
        return f"{ms / 1e3:,.0f} s"
    if size >= 1_000:
        return f"{ms / 1e3:.1f} s"
    return f"{ms:.0f} ms" if size >= 10 else f"{ms:.1f} ms"


def signed_ms(ms: float) -> str:
    """ "+81 ms", or with the sign for minus."""
    return ("+" if ms >= 0 else "\N{MINUS SIGN}") + amount(abs(ms))
