"""What a chainlet holds of another one: `self.ears.transcribe(audio)`. A call starts when it is made.

A unary call gives a Result to await, a streaming one a Stream to iterate. Leaving either (a `break`, a dropped
reference, a cancelled task) cancels the hop and everything that it opened. Within a plain `def` method, which runs in
a thread, the same call blocks and gives the value, or a plain iterator.
"""

from __future__ import annotations

import asyncio
import difflib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from chains.call import DEADLINE, Hop, Scope, current
from chains.channel import Channel
from chains.dsl.graph import Edge, Node
from chains.dsl.signature import Method
from chains.dsl.specs import CallOptions
from chains.errors import NotFound
from chains.policy.routing import digest
from chains.runtime.alternatives import Alternatives
from chains.runtime.attempt import Attempt
from chains.runtime.drive import Drive, Line, Target
from chains.runtime.results import BlockingStream, Result, Stream


class Handle:
    """A chainlet as others see it: one callable for each public method. Asking for another name raises NotFound."""

    def __init__(self, target: Target, edge: Edge | None, line: Line, fallback: Handle | None = None) -> None:
        options = edge.options if edge is not None else CallOptions(timeout=None)
        self._node = target.node.name
        self._methods = target.node.methods
        for name, method in target.node.methods.items():
            bound = Bound(target, method, options, line)
            instead = None if fallback is None else getattr(fallback, name)
            hedge = options.hedge if method.idempotent and not method.streams_in else None
            if instead is not None or hedge is not None:
                ways = Alternatives(bound, hedge, instead)
                bound = Bound(ways, method, CallOptions(timeout=None, retries=0, window=options.window), line)
            setattr(self, name, bound)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        near = difflib.get_close_matches(name, self._methods, 1)
        mend = f"did you mean {near[0]}?" if near else f"it has {', '.join(self._methods) or 'no public method'}"
        raise NotFound(f"{self._node} has no method {name}", mend=mend)

    def __repr__(self) -> str:
        return f"<handle on {self._node}: {', '.join(self._methods)}>"


class Bound:
    """One method of a handle."""

    def __init__(self, target: Target, method: Method, options: CallOptions, line: Line) -> None:
        self.method = method
        self.target = target
        self._options = options
        self._line = line
        self._streams = {param.name: param.checker for param in method.params if param.stream}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Start the call. Raises InvalidValue for arguments that the signature does not admit, before anything runs."""
        values = self.method.bind(args, kwargs)
        if threading.get_ident() != self._line.thread:
            return self._from_thread(values)
        return self.open(values)

    def open(self, values: dict[str, Any], avoid: frozenset[str] = frozenset()) -> Result | Stream:
        """Start the call with arguments that were checked, on none of the replicas in `avoid`."""
        method, options, line = self.method, self._options, self._line
        scope = current()
        whole = method.streams_out or bool(self._streams)
        deadline = None if whole or options.timeout is None else scope.clock.now() + options.timeout
        hop = Hop(scope, self.target.node.name, method.name, deadline)
        out: Channel[Any] | None = Channel(options.window) if method.streams_out else None
        attempt = Attempt(hop, method, values, out, line.transfer)
        if method.prefix:
            attempt.prefix = digest(values[method.prefix])
        try:
            self._pass_arguments(attempt, scope)
        except BaseException:  # it never began
            hop.close()
            raise
        if out is not None:
            hop.attach(out)
        drive = Drive(attempt, self.target, options, line, avoid)
        if deadline is not None:
            hop.arm(f"{hop.timing.label} gave no result within {options.timeout:g} s")
        if out is None:
            return Result(hop, drive)
        return Stream(hop, out, options, drive)

    def _pass_arguments(self, attempt: Attempt, scope: Scope) -> None:
        values, line, hop = attempt.values, self._line, attempt.hop
        if line.transfer is not None:
            for param in self.method.params:
                if not param.stream:
                    values[param.name] = line.transfer(values[param.name], param.checker, hop.timing)
        for name, checker in self._streams.items():
            where = f"{self.method.label}({name})"
            source, via = line.lender.source(values[name], where, scope, self._options.window)
            attempt.lend(name, source, checker, via).on_ended = self._after_input(hop)

    def _after_input(self, hop: Hop) -> Callable[[], None] | None:
        """A unary method on streams has `timeout` seconds from the end of its input."""
        timeout = self._options.timeout
        if self.method.streams_out or timeout is None:
            return None

        def begin() -> None:
            if not hop.closed:
                late = f"{DEADLINE}: {hop.timing.label} gave no result within {timeout:g} s of its input's end"
                timer = hop.clock.call_at(hop.clock.now() + timeout, lambda: hop.cancel(late))
                hop.on_cancel(lambda _: timer.cancel())

        return begin

    def _from_thread(self, values: dict[str, Any]) -> Any:
        scope, loop = current(), self._line.loop

        async def opened() -> Any:
            with scope.activate():
                result = self.open(values)
            return result if isinstance(result, Stream) else await result

        value = asyncio.run_coroutine_threadsafe(opened(), loop).result()
        return BlockingStream(value, loop) if isinstance(value, Stream) else value


def handles_of(node: Node, targets: Mapping[str, Target], line: Line) -> dict[str, Any]:
    """A handle for each dependency of `node`, by attribute or parameter name."""

    def handle(edge: Edge) -> Handle:
        spare = node.edges.get(f"{edge.attribute}.fallback")
        return Handle(targets[edge.target], edge, line, None if spare is None else handle(spare))

    return {name: handle(edge) for name, edge in node.edges.items() if edge.via != "fallback"}
