"""Turns that code in another process makes, as whoever watches the call here sees them."""

from __future__ import annotations

from chains.call import Hop, Scope, Turn
from chains.wire.pb import carrier_pb2 as pb

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


def told(turn: Turn, event: str) -> pb.Turn:
    """What has become of a turn that was made here, for whoever called."""
    now = turn.clock.now()
    marks = [pb.Mark(name=name[:64], after=at - turn.opened) for name, at in turn.marks.items()]
    number, opened = turn.number, now - turn.opened
    return pb.Turn(number=number, event=event, reason=turn.reason[:1024], opened=opened, marks=marks[:64])


def root_of(scope: Scope) -> Hop | None:
    """The outermost hop around a scope: in a replica, the call that came from elsewhere."""
    found: Hop | None = None
    above: Scope | None = scope
    while above is not None:
        if isinstance(above, Hop):
            found = above
        above = above.parent
    return found
