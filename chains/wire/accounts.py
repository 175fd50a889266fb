"""A hop's account as it travels back with its End, and how its caller takes it over.

All times go as seconds since the Open arrived; the caller places them on its own clock such that the hop ended when its
End came. So no clock is subtracted from another one's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chains.timing import Timing, Wait, Work
from chains.wire.pb import carrier_pb2 as pb

HOPS, OWN, EACH = 96, 192, 8
"""How many hops travel, how many waits and works of the hop itself, and of each further hop: the last ones."""


def account_of(timing: Timing, now: float, hops: Sequence[Timing], streams: Mapping[Timing, int]) -> Any:
    """The Account of a hop that ends `now`, see `write_account`."""
    account = pb.Account()
    write_account(account, timing, now, hops, streams)
    return account


def write_account(
    account: Any, timing: Timing, now: float, hops: Sequence[Timing], streams: Mapping[Timing, int]
) -> None:
    """Of a hop that ends `now`, with what it called. `streams` numbers the producers of its arguments."""
    base, accepted = timing.opened, timing.accepted or now
    account.elapsed = now - base
    account.queue = max(0.0, accepted - base)
    account.wait = timing.waited + _waiting(timing, now)
    account.serialise = timing.serialise
    account.items_in = timing.items_in
    account.items_out = timing.items_out
    if not (hops or timing.waits or timing.works or timing.open_waits):
        return
    kept = _in_order(hops[-HOPS:], timing)
    index = {hop: number for number, hop in enumerate(kept, 1)}
    on = {**index, **{producer: -number for producer, number in streams.items()}}
    account.waits.extend(_waits(timing, now, base, on, OWN))
    account.works.extend(_works(timing, base, OWN))
    for hop in kept:
        account.hops.append(
            pb.HopAccount(
                node=hop.node,
                method=hop.method,
                replica=hop.replica,
                turn=hop.turn,
                parent=0 if hop.parent is None else index.get(hop.parent, 0),
                opened=hop.opened - base,
                received=(hop.received or now) - base,
                accepted=(hop.accepted or now) - base,
                first_item=hop.first_item - base if hop.first_item else 0.0,
                ended=(hop.ended or now) - base,
                wait=hop.waited + _waiting(hop, now),
                serialise=hop.serialise,
                sent=hop._sent,
                outcome=hop.outcome or "cancelled",
                error=hop.error[:256],
                attempts=hop.attempts,
                items_in=hop.items_in,
                items_out=hop.items_out,
                waits=_waits(hop, now, base, on, EACH),
                works=_works(hop, base, EACH),
            )
        )


def _waiting(timing: Timing, now: float) -> float:
    """How long the wait has been that goes on."""
    return now - timing._since if timing.open_waits and not timing.open_works and not timing.ended else 0.0


def _in_order(hops: Iterable[Timing], root: Timing) -> list[Timing]:
    """Each after its parent; one whose parent does not travel hangs below the root."""

    def depth(hop: Timing) -> int:
        steps, above = 0, hop.parent
        while above is not None and above is not root:
            steps, above = steps + 1, above.parent
        return steps

    return sorted(hops, key=depth)


def _waits(timing: Timing, now: float, base: float, on: Mapping[Timing, int], limit: int) -> list[Any]:
    waits = [*timing.waits, *(Wait(w.start, now, w.kind, w.on, w.turn) for w in timing.open_waits)][-limit:]
    return [
        pb.Stretch(
            start=wait.start - base,
            end=wait.end - base,
            name=wait.kind,
            turn=wait.turn,
            on=0 if wait.on is None else on.get(wait.on, 0),
        )
        for wait in waits
    ]


def _works(timing: Timing, base: float, limit: int) -> list[Any]:
    return [
        pb.Stretch(start=work.start - base, end=work.end - base, name=work.name[:64], turn=work.turn)
        for work in list(timing.works)[-limit:]
    ]


def take_over(timing: Timing, account: Any, now: float, producers: Sequence[Timing | None]) -> list[Timing]:
    """Write the callee's account into the caller's `timing`; the hops that the callee made, each after its parent.

    `producers` are the hops (if any) that produce the stream arguments, in order.
    """
    base = max(timing.opened, now - max(0.0, account.elapsed))
    timing.received = base
    timing.accepted = min(now, base + max(0.0, account.queue))
    timing._sent = timing.serialise
    timing.serialise += max(0.0, account.serialise)
    timing.waited = max(0.0, min(account.wait, now - timing.accepted))
    if not (account.hops or account.waits or account.works):
        return []
    hops: list[Timing] = []
    for sent in account.hops:
        parent = hops[sent.parent - 1] if 0 < sent.parent <= len(hops) else timing
        hops.append(_hop(timing, parent, sent, base, now))

    def on(number: int) -> Timing | None:
        if 0 < number <= len(hops):
            return hops[number - 1]
        return producers[-number - 1] if -len(producers) <= number < 0 else None

    for hop, sent in [(timing, account), *zip(hops, account.hops, strict=True)]:
        for wait in sent.waits:
            hop._keep(Wait(base + wait.start, base + wait.end, _KINDS.get(wait.name, "hop"), on(wait.on), wait.turn))
        for work in sent.works:
            hop.add_work(Work(work.name, base + work.start, base + work.end, work.turn))
    return hops


_KINDS: Any = {"hop": "hop", "input": "input", "credit": "credit"}


def _hop(root: Timing, parent: Timing, sent: Any, base: float, now: float) -> Timing:
    def at(offset: float) -> float:
        return min(now, max(base, base + offset))

    hop = Timing("", parent, root.call, sent.turn, sent.node, sent.method, at(sent.opened), sent.replica)
    hop.received, hop.accepted = at(sent.received), at(sent.accepted)
    hop.first_item = at(sent.first_item) if sent.first_item else 0.0
    hop.serialise, hop._sent, hop.waited = sent.serialise, sent.sent, max(0.0, sent.wait)
    hop.attempts, hop.items_in, hop.items_out = sent.attempts, sent.items_in, sent.items_out
    hop.finish(at(sent.ended), sent.outcome, sent.error)
    return hop
