"""The conversations that calls from other processes belong to, as the replica that serves them knows them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from chains.call import Call, Scope, Turn
from chains.timing import Clock
from chains.wire import frames

CALLS = 1024
"""How many conversations are remembered between their hops."""


class Scopes:
    """`turned(event, turn)` is told of turns that code here makes."""

    def __init__(self, clock: Clock, turned: Callable[[str, Turn], None]) -> None:
        self._clock = clock
        self._turned = turned
        self._calls: OrderedDict[tuple[str, ...], Call] = OrderedDict()

    def of(self, opening: Any) -> Scope:
        """The conversation, or the turn in it, that an Open belongs to."""
        key = (opening.conversation, opening.tenant, str(opening.priority), opening.affinity, opening.traceparent)
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = Call(
                self._clock,
                id=opening.conversation or None,
                tenant=opening.tenant,
                priority="batch" if opening.priority == frames.BATCH else "interactive",
                affinity=opening.affinity,
                traceparent=opening.traceparent,
                tracestate=opening.tracestate,
            )
            call.span = int(call.parent_span, 16) if call.parent_span else call.span  # it is the caller's call
            call.watch(self._turned)
            self._forget()
        else:
            self._calls.move_to_end(key)
        return Turn(call, opening.turn, None) if opening.turn else call

    def _forget(self) -> None:
        for key in list(self._calls)[: max(0, len(self._calls) - CALLS)]:
            if not self._calls[key]._children:
                self._calls.pop(key).close()
