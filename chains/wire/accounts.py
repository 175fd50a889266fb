"""A hop's account as it travels back with its End, and how its caller takes it over.

All times go as seconds since the Open arrived; the caller places them on its own clock such that the hop ended when its
End came. So no clock is subtracted from another one's. Of a long call, hops that have ended are told before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chains.timing import NAME, NOTES, RECENT, Note, Timing, Wait, Work
from chains.wire.pb import carrier_pb2 as pb

HOPS, OWN, EACH, EACH_NOTES = 96, 192, 8, 16
"""How many hops travel, how many waits and works of the hop itself, and of each further hop: the last ones; and how
many notes of each further hop."""


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
    account.notes.extend(_notes(timing, NOTES))
    if not (hops or timing.waits or timing.works or timing.open_waits):
        return
    kept = _in_order(hops[-HOPS:], timing)
    index = {hop: number for number, hop in enumerate(kept, 1)}
    on = {**index, **{producer: -number for producer, number in streams.items()}}
    account.waits.extend(_waits(timing, now, base, on, OWN))
    account.works.extend(_works(timing, base, OWN))
    _write_hops(account, timing, now, kept, on)


def write_progress(account: Any, timing: Timing, now: float, hops: Sequence[Timing]) -> None:
    """Of a hop that goes on: `hops`, at most HOPS, have ended in it."""
    account.elapsed = now - timing.opened
    kept = _in_order(hops, timing)
    _write_hops(account, timing, now, kept, {hop: number for number, hop in enumerate(kept, 1)})


def shorten(account: Any, limit: int) -> None:
    """Leave details out until the account has no more bytes than `limit`, as far as that goes."""
    for detail in ("notes", "waits", "works"):
        if account.ByteSize() > limit:
            for hop in account.hops:
                hop.ClearField(detail)
    if account.ByteSize() > limit:
        for detail in ("hops", "notes", "waits", "works"):
            account.ClearField(detail)


def _write_hops(account: Any, timing: Timing, now: float, kept: Sequence[Timing], on: Mapping[Timing, int]) -> None:
    base = timing.opened
    for hop in kept:
        account.hops.append(
            pb.HopAccount(
                node=hop.node,
                method=hop.method,
                replica=hop.replica,
                turn=hop.turn,
                parent=0 if hop.parent is None else max(0, on.get(hop.parent, 0)),
                parent_span=0 if hop.parent in (None, timing) else hop.parent.span,
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
                span=hop.span,
                notes=_notes(hop, EACH_NOTES),
            )
        )


def _notes(timing: Timing, limit: int) -> list[Any]:
    return [_note(name, value) for name, value in list(timing.notes.items())[:limit]]


def _note(name: str, value: Note) -> Any:
    if isinstance(value, str):
        return pb.Note(name=name, text=value)
    if isinstance(value, bool):
        return pb.Note(name=name, flag=value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return pb.Note(name=name, whole=value)
    if isinstance(value, int | float):
        return pb.Note(name=name, number=float(value))
    return pb.Note(name=name, texts=pb.Texts(texts=value))


def _take_notes(timing: Timing, notes: Iterable[Any]) -> None:
    for note in notes:
        kind = note.WhichOneof("value")
        if kind is not None and note.name:
            value = tuple(note.texts.texts) if kind == "texts" else getattr(note, kind)
            timing.note(note.name[:NAME], value)


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
            span=0 if wait.on is None else wait.on.span,
        )
        for wait in waits
    ]


def _works(timing: Timing, base: float, limit: int) -> list[Any]:
    return [
        pb.Stretch(start=work.start - base, end=work.end - base, name=work.name[:64], turn=work.turn)
        for work in list(timing.works)[-limit:]
    ]


class Accounts:
    """The caller's view of what a callee tells of `timing`: hops of which it hears keep their place from one account to
    the next. `producers` are the hops (if any) that produce the stream arguments, in order.
    """

    __slots__ = ("_began", "_known", "_timing")

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._began = math.inf
        self._known: dict[int, Timing] = {}

    def began(self, elapsed: float, now: float) -> float:
        """When the Open arrived there, by this clock, as far as is known: `elapsed` seconds before what has just come
        was sent. Of all that came the quickest word knows best.
        """
        timing = self._timing
        heard = min(now - max(0.0, elapsed), timing.received if timing.accepted else math.inf)
        self._began = max(timing.opened, min(self._began, heard))
        return self._began

    def progress(self, account: Any, now: float) -> list[Timing]:
        """The hops that have ended in the one that goes on, each after its parent."""
        return self._take(account, self.began(account.elapsed, now), now, [])

    def end(self, account: Any, now: float, producers: Sequence[Timing | None]) -> list[Timing]:
        """Write the callee's account into the caller's timing; the hops that the callee made and had not told of."""
        timing = self._timing
        began = self.began(account.elapsed, now)
        timing.received = base = max(timing.opened, now - max(0.0, account.elapsed))
        timing.accepted = min(now, base + max(0.0, account.queue))
        timing._sent = timing.serialise
        timing.serialise += max(0.0, account.serialise)
        timing.waited = max(0.0, min(account.wait, now - timing.accepted))
        _take_notes(timing, account.notes)
        return self._take(account, began, now, producers)

    def _take(self, account: Any, base: float, now: float, producers: Sequence[Timing | None]) -> list[Timing]:
        if not (account.hops or account.waits or account.works):
            return []
        hops: list[Timing] = []
        for sent in account.hops:
            known = 0 < sent.parent <= len(hops)
            parent = hops[sent.parent - 1] if known else self._of(sent.parent_span) or self._timing
            hops.append(self._hop(parent, sent, base, now))

        def on(stretch: Any) -> Timing | None:
            number: int = stretch.on
            if 0 < number <= len(hops):
                return hops[number - 1]
            return producers[-number - 1] if -len(producers) <= number < 0 else self._of(stretch.span)

        for hop, sent in [(self._timing, account), *zip(hops, account.hops, strict=True)]:
            for wait in sent.waits:
                hop._keep(Wait(base + wait.start, base + wait.end, _KINDS.get(wait.name, "hop"), on(wait), wait.turn))
            for work in sent.works:
                hop.add_work(Work(work.name, base + work.start, base + work.end, work.turn))
        return hops

    def _of(self, span: int) -> Timing | None:
        """The hop of a span: one that was told of, or that will be."""
        if not span or span == self._timing.span:
            return self._timing if span else None
        hop = self._known.get(span)
        if hop is None:
            timing = self._timing
            hop = self._remembered(Timing("", timing, timing.call, timing.turn, "", "", timing.opened, span=span))
        return hop

    def _remembered(self, hop: Timing) -> Timing:
        self._known[hop.span] = hop
        if len(self._known) > RECENT:
            del self._known[next(iter(self._known))]
        return hop

    def _hop(self, parent: Timing, sent: Any, base: float, now: float) -> Timing:
        def at(offset: float) -> float:
            return min(now, max(base, base + offset))

        root = self._timing
        hop = self._known.get(sent.span) if sent.span else None
        if hop is None or hop.ended or parent is hop:
            hop = Timing("", parent, root.call, sent.turn, sent.node, sent.method, at(sent.opened), sent.replica)
            hop.span = sent.span or hop.span
            self._remembered(hop)
        else:  # its place was kept
            hop.parent, hop.turn, hop.node, hop.method = parent, sent.turn, sent.node, sent.method
            hop.opened, hop.replica = at(sent.opened), sent.replica
        hop.received, hop.accepted = at(sent.received), at(sent.accepted)
        hop.first_item = at(sent.first_item) if sent.first_item else 0.0
        hop.serialise, hop._sent, hop.waited = sent.serialise, sent.sent, max(0.0, sent.wait)
        hop.attempts, hop.items_in, hop.items_out = sent.attempts, sent.items_in, sent.items_out
        _take_notes(hop, sent.notes)
        hop.finish(at(sent.ended), sent.outcome, sent.error)
        return hop


_KINDS: Any = {"hop": "hop", "input": "input", "credit": "credit"}
