"""Turns that code in another process makes, as whoever watches the call here sees them."""

from __future__ import annotations

from chains.call import Hop, Scope, Turn
from chains.spans import Part, Segment, path_of
from chains.timing import Timing
from chains.wire.pb import carrier_pb2 as pb

STEPS = 256
"""How much of a turn's path travels: its beginning, which is what its latency is about."""
PARTS: dict[str, Part] = {
    "serialise": "serialise", "wire": "wire", "queue": "queue", "compute": "compute", "wait": "wait",
}  # fmt: skip
EVENTS = ("started", "held", "resumed", "cancelled", "ended")


def mirrored(hop: Hop, number: int, age: float) -> Turn:
    """A turn of `hop`'s conversation that was opened `age` seconds ago in another process."""
    with hop.activate():
        turn = Turn(hop.call, number, None)
    turn.opened = hop.clock.now() - age
    hop.call.turns.append(turn)
    return turn


def follow(turn: Turn, event: str, reason: str) -> bool:
    """Let `turn` become what the event says, and tell those who watch the call. True when that was its end."""
    call = turn.call
    if event == "cancelled":
        turn.cancel(reason or "cancelled")
    elif event == "held":
        turn.hold()
    elif event == "resumed":
        turn.resume()
    elif event in EVENTS:
        call.tell(f"turn_{event}", turn)
    if event not in ("cancelled", "ended"):
        return False
    turn.ended = call.clock.now()
    turn.close()
    return True


def told(turn: Turn, event: str, root: Timing | None = None) -> pb.Turn:
    """What has become of a turn that was made here, for whoever called `root`."""
    now = turn.clock.now()
    marks = [pb.Mark(name=name[:64], after=at - turn.opened) for name, at in turn.marks.items()]
    number, opened = turn.number, now - turn.opened
    sent = pb.Turn(number=number, event=event, reason=turn.reason[:1024], opened=opened, marks=marks[:64])
    if root is not None:
        sent.elapsed = now - root.opened
    if root is not None and event in ("cancelled", "ended"):
        for step in path_of(root, turn, now, STEPS)[:STEPS]:
            sent.path.add(hop=step.label[:128], part=step.part, name=step.name[:64], replica=step.replica[:128],
                          start=step.start - turn.opened, end=step.end - turn.opened)  # fmt: skip
    return sent


def learn(turn: Turn, sent: pb.Turn, opened: float) -> None:
    """Take over the marks of a mirrored turn, and what its time went into. `opened` is when it was, as is known now."""
    before, turn.opened = turn.opened, min(turn.opened, opened)
    for mark in sent.marks:
        told = before + mark.after
        if turn.marks.get(mark.name, told) == told:  # else it was made here before it was made there
            turn.marks[mark.name] = turn.opened + mark.after
    if sent.path:
        at = turn.opened
        turn.path = tuple(
            Segment(step.hop, PARTS.get(step.part, "wait"), step.name, at + step.start, at + step.end, step.replica)
            for step in sent.path
        )


def root_of(scope: Scope) -> Hop | None:
    """The outermost hop around a scope: in a replica, the call that came from elsewhere."""
    found: Hop | None = None
    above: Scope | None = scope
    while above is not None:
        if isinstance(above, Hop):
            found = above
        above = above.parent
    return found
