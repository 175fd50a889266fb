"""Which conversation a call from elsewhere belongs to."""

from __future__ import annotations

from chains.call import Call, Turn
from chains.runtime.scopes import CALLS, Scopes
from chains.testing import FakeClock
from chains.trace import traceparent
from chains.wire.pb import carrier_pb2 as pb

TRACE = "0af7651916cd43dd8448eb211c80319c"


def opening(conversation: str = "c", span: int = 7, **more: object) -> pb.Open:
    return pb.Open(conversation=conversation, traceparent=traceparent(TRACE, 5, False), span=span, **more)


def scopes(clock: FakeClock) -> Scopes:
    return Scopes(clock, lambda event, turn: None)


def test_hops_of_one_conversation_share_it_whatever_their_spans() -> None:
    known = scopes(FakeClock())
    call = known.of(opening(span=7, tracestate="v=1"))
    assert isinstance(call, Call) and known.of(opening(span=8)) is call
    assert (call.trace_id, call.span, call.sampled, call.tracestate) == (TRACE, 5, False, "v=1")
    turn = known.of(opening(turn=3))
    assert isinstance(turn, Turn) and turn.call is call and turn.number == 3
    assert known.of(opening(tenant="another")) is not call


def test_the_oldest_conversations_are_forgotten_unless_something_is_open_in_them() -> None:
    known = scopes(FakeClock())
    busy = known.of(opening("busy", turn=1)).call
    quiet = known.of(opening("quiet"))
    for number in range(CALLS):
        known.of(opening(str(number)))
    assert known.of(opening("busy")) is busy and not busy.closed
    assert quiet.closed and known.of(opening("quiet")) is not quiet
