"""What a chainlet holds of another one: `self.ears.transcribe(audio)`. A call starts when it is made.

A unary call gives a Result to await, a streaming one a Stream to iterate. Leaving either (a `break`, a dropped
reference, a cancelled task) cancels the hop and everything that it opened. Within a plain `def` method, which runs in
a thread, the same call blocks and gives the value, or a plain iterator.
"""

from __future__ import annotations

import asyncio
import difflib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from typing import Any, Protocol

from chains.call import DEADLINE, Hop, context_of, current, current_or_none
from chains.channel import Channel, End
from chains.dsl.graph import Edge, Node
from chains.dsl.signature import Method
from chains.dsl.specs import CallOptions
from chains.errors import Cancelled, NotFound, Unavailable, describe, revive
from chains.policy.routing import choose
from chains.runtime.attempt import Attempt, Lender, Transfer
from chains.timing import Timing


class Server(Protocol):
    """Where an attempt can run: a replica of this process, or a stub of one elsewhere."""

    name: str

    @property
    def pressure(self) -> int: ...
    async def serve(self, attempt: Attempt) -> Any: ...


class Target(Protocol):
    """The replicas of a node, as a handle sees them."""

    node: Node

    def servers(self) -> list[Server]: ...
    async def ready(self) -> None:
        """Return once a replica can serve. Raises StartError or Unavailable when none ever will."""
        ...


class Line:
    """What all handles of a runtime share: its loop, how values pass, whom to tell of a hop that has ended."""

    def __init__(
        self, transfer: Transfer | None, record: Callable[[Timing], None], after: Callable[[Hop], None]
    ) -> None:
        self.transfer = transfer
        self.record = record
        self.after = after
        self.lender = Lender()
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.tasks: dict[Drive, None] = {}
        self._homes: dict[tuple[str, str], str] = {}

    def soon(self, fn: Callable[..., None], *args: Any) -> None:
        """Run on the loop: at once when that is here."""
        if threading.get_ident() == self.thread:
            fn(*args)
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(fn, *args)

    def pick(self, servers: list[Server], node: str, hop: Hop, tried: set[str]) -> Server | None:
        """The replica for this hop: the one that the conversation had before, unless another is clearly less loaded."""
        if len(servers) == 1 and not tried:
            return servers[0] if servers[0].pressure >= 0 else None
        open_ = [server for server in servers if server.name not in tried]
        key = (hop.call.affinity, node)
        home = self._homes.get(key)
        preferred = next((i for i, server in enumerate(open_) if server.name == home), None)
        index = choose([server.pressure for server in open_], preferred)
        if index is None:
            return None
        if key not in self._homes:
            hop.call.on_cancel(lambda _: self._leave(key))
            self._homes[key] = open_[index].name
        return open_[index]

    def _leave(self, key: tuple[str, str]) -> None:
        self._homes.pop(key, None)


class Handle:
    """A chainlet as others see it: one callable for each public method. Asking for another name raises NotFound."""

    def __init__(self, target: Target, edge: Edge | None, line: Line) -> None:
        options = edge.options if edge is not None else CallOptions(timeout=None)
        self._node = target.node.name
        self._methods = target.node.methods
        for name, method in target.node.methods.items():
            setattr(self, name, Bound(target, method, options, line))

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
        self._target = target
        self._options = options
        self._line = line
        self._streams = {param.name: param.checker for param in method.params if param.stream}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Start the call. Raises InvalidValue for arguments that the signature does not admit, before anything runs."""
        values = self.method.bind(args, kwargs)
        if threading.get_ident() != self._line.thread:
            return self._from_thread(values)
        return self._open(values)

    def _open(self, values: dict[str, Any]) -> Result | Stream:
        method, options, line = self.method, self._options, self._line
        scope = current()
        whole = method.streams_out or bool(self._streams)
        deadline = None if whole or options.timeout is None else scope.clock.now() + options.timeout
        hop = Hop(scope, self._target.node.name, method.name, deadline)
        out: Channel[Any] | None = Channel(options.window) if method.streams_out else None
        if line.transfer is not None:
            for param in method.params:
                if not param.stream:
                    values[param.name] = line.transfer(values[param.name], param.checker, hop.timing)
        attempt = Attempt(hop, method, values, out, line.transfer)
        for name, checker in self._streams.items():
            source, via = line.lender.source(values[name], f"{method.label}({name})", scope, options.window)
            attempt.lend(name, source, checker, via).on_ended = self._after_input(hop)
        drive = Drive(attempt, self._target, options, line)
        if deadline is not None:
            hop.arm(f"{hop.timing.label} gave no result within {options.timeout:g} s")
        if out is None:
            return Result(hop, drive)
        hop.attach(out)
        return Stream(hop, out, options, drive)

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
                result = self._open(values)
            return result if isinstance(result, Stream) else await result

        value = asyncio.run_coroutine_threadsafe(opened(), loop).result()
        return BlockingStream(value, loop) if isinstance(value, Stream) else value


class Drive:
    """Carries one hop to its end: picks replicas, retries by the contract's rule, releases the caller on a cancel."""

    __slots__ = ("_begun", "_undo", "attempt", "future", "line", "options", "target", "task")

    def __init__(self, attempt: Attempt, target: Target, options: CallOptions, line: Line) -> None:
        self.attempt = attempt
        self.target = target
        self.options = options
        self.line = line
        self.future: asyncio.Future[Any] | None = None
        hop = attempt.hop
        self._begun = False
        self.task: asyncio.Task[None] = line.loop.create_task(self._run(), context=context_of(hop))
        line.tasks[self] = None
        attempt.task = self.task
        self._undo = hop.on_cancel(self._cancelled)

    def _cancelled(self, reason: str) -> None:
        """Release the caller now; the callee's code is cancelled and runs its `finally`."""
        self.settle(self.attempt.hop.error(), reason)
        self.task.cancel()
        if not self._begun:  # a task that is cancelled before its first step runs none of its code
            self.line.loop.call_soon(self._finish, "cancelled", "")

    def settle(self, error: BaseException, reason: str = "") -> None:
        """The caller's side ends with `error`, now."""
        if self.attempt.out is not None:
            cancelled = isinstance(error, Cancelled)
            self.attempt.out.end(End("cancelled" if cancelled else "error", error, reason or str(error)))
        elif self.future is not None and not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # it may have no reader left: that is no fault

    async def _run(self) -> None:
        self._begun = True
        hop, outcome, name = self.attempt.hop, "cancelled", ""
        try:
            value = await self._attempts()
            if not hop.reason:
                outcome = "done"
                if self.attempt.out is not None:
                    self.attempt.out.end()
                elif self.future is not None and not self.future.done():
                    self.future.set_result(value)
        except asyncio.CancelledError:
            if not hop.reason:
                self.settle(Cancelled("the code was cancelled from within"))
        except Exception as error:
            detail = describe(error, self.target.node.name)
            outcome, name = "error", detail.type_name
            if not hop.reason:
                self.settle(revive(detail, self.attempt.method.raises))
        finally:
            self._finish(outcome, name)

    def _finish(self, outcome: str, error: str) -> None:
        hop = self.attempt.hop
        if hop.closed:
            return
        hop.timing.finish(hop.clock.now(), outcome, error)
        self._undo()
        hop.close()
        del self.line.tasks[self]
        self.line.record(hop.timing)
        if hop.afters:
            self.line.after(hop)

    async def _attempts(self) -> Any:
        attempt, left, tried = self.attempt, self.options.retries, set[str]()
        while True:
            server = await self._pick(tried)
            try:
                value = await server.serve(attempt)
                if attempt.out is None and attempt.transfer is not None:
                    value = attempt.transfer(value, attempt.method.result, attempt.hop.timing)
                return value
            except (Unavailable, asyncio.CancelledError) as error:
                fault = self._carrier_fault(error, server)
                if not left or not attempt.may_retry():
                    raise fault from None
                tried.add(server.name)
                left -= 1
                attempt.gone = attempt.accepted = False
                attempt.hop.timing.attempts += 1

    def _carrier_fault(self, error: BaseException, server: Server) -> Unavailable:
        """The replica is gone, or refuses because it goes: a fault of the way there. Anything else is raised on."""
        attempt = self.attempt
        if isinstance(error, Unavailable):
            if attempt.accepted and not attempt.gone:
                raise error  # the user's code raised it, or a hop further down did
            return error
        if not attempt.gone or attempt.hop.cancelled:
            raise error
        self.task.uncancel()
        return Unavailable(f"{server.name} went away during {attempt.method.label}", mend="call again")

    async def _pick(self, tried: set[str]) -> Server:
        hop, target = self.attempt.hop, self.target
        await target.ready()
        server = self.line.pick(target.servers(), target.node.name, hop, tried)
        if server is None and tried:
            raise Unavailable(f"no other replica of {target.node.name} can take the call", mend="call again")
        if server is None:
            raise Unavailable(f"no replica of {target.node.name} takes calls now", mend="call again")
        return server


class Result(Awaitable[Any]):
    """What a unary call will give. Awaiting it waits for the value; dropping it cancels the hop."""

    __slots__ = ("_drive", "_future", "_hop")

    def __init__(self, hop: Hop, drive: Drive) -> None:
        self._hop = hop
        self._drive = drive
        self._future = drive.future = drive.line.loop.create_future()
        if hop.cancelled:
            drive.settle(hop.error())

    @property
    def timing(self) -> Timing:
        return self._hop.timing

    def __await__(self) -> Generator[Any, None, Any]:
        future = self._future
        if future.done():
            return future.result()
        hop, clock = self._hop, self._hop.clock
        waiter = current_or_none()
        turn = waiter.turn if waiter is not None else None
        timing = waiter.hop.timing if waiter is not None and waiter.hop is not None else None
        wait = timing.begin_wait(clock.now(), "hop", hop.timing, turn.number if turn else 0) if timing else None
        try:
            return (yield from future)
        except asyncio.CancelledError:
            hop.cancel("consumer left")
            raise
        finally:
            if timing is not None and wait is not None:
                timing.end_wait(wait, clock.now())

    def __del__(self) -> None:
        if not self._future.done():
            self._drive.line.soon(self._hop.cancel, "the result was dropped")


class Stream(AsyncIterator[Any]):
    """What a streaming call gives, item by item. `break` out of its loop, `aclose()` and dropping it cancel the hop.

    As an argument of another call it is lent: that callee reads it, and it stays in the scope of whoever made it.
    """

    __slots__ = ("__weakref__", "_channel", "_drive", "_hop", "_options")

    def __init__(self, hop: Hop, channel: Channel[Any], options: CallOptions, drive: Drive) -> None:
        self._hop = hop
        self._channel = channel
        self._options = options
        self._drive = drive

    @property
    def timing(self) -> Timing:
        return self._hop.timing

    @property
    def queued_bytes(self) -> int:
        return self._channel.queued

    @property
    def peak_bytes(self) -> int:
        return self._channel.peak

    def __aiter__(self) -> Reader:
        return Reader(self)

    async def __anext__(self) -> Any:
        channel = self._channel
        if channel.ready():
            return channel.take()
        waiter = current_or_none()
        if waiter is None or waiter.hop is None:
            return await self.next()
        timing, clock, turn = waiter.hop.timing, self._hop.clock, waiter.turn
        wait = timing.begin_wait(clock.now(), "hop", self._hop.timing, turn.number if turn else 0)
        try:
            return await self.next()
        finally:
            timing.end_wait(wait, clock.now())

    async def next(self) -> Any:
        """The next item, within the `first` or `idle` timeout."""
        hop, options, clock = self._hop, self._options, self._hop.clock
        first = not hop.timing.items_out
        seconds = options.first if first else options.idle
        if seconds is None:
            return await self._channel.receive()
        due = hop.timing.opened + seconds if first else clock.now() + seconds
        late = f"{DEADLINE}: {hop.timing.label} gave no {'first' if first else 'further'} item within {seconds:g} s"
        timer = clock.call_at(due, lambda: hop.cancel(late))
        try:
            return await self._channel.receive()
        finally:
            timer.cancel()

    async def aclose(self) -> None:
        """Cancel the hop; return when its code has run its `finally`."""
        self._hop.cancel("consumer left")
        await asyncio.wait([self._drive.task])

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def as_source(self) -> _Lent:
        return _Lent(self)

    def __del__(self) -> None:
        if self._channel.ended is None:
            self._drive.line.soon(self._hop.cancel, "consumer left")


class Reader(AsyncIterator[Any]):
    """One loop over a stream. When the loop is left, so is the stream."""

    __slots__ = ("_stream",)

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def __aiter__(self) -> Reader:
        return self

    def __anext__(self) -> Awaitable[Any]:
        return self._stream.__anext__()

    def __del__(self) -> None:
        self._stream.__del__()


class _Lent:
    """A hop's stream on loan to another hop."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.producer: Timing | None = stream.timing
        self.ready = stream._channel.ready
        self.take = stream._channel.take

    async def next(self) -> Any:
        return await self._stream.next()


class BlockingStream(Iterator[Any]):
    """A stream as a plain `def` method reads it, in its own thread."""

    def __init__(self, stream: Stream, loop: asyncio.AbstractEventLoop) -> None:
        self._reader = aiter(stream)
        self._loop = loop

    def __next__(self) -> Any:
        async def step() -> tuple[bool, Any]:
            try:
                return True, await self._reader.__anext__()
            except StopAsyncIteration:
                return False, None

        more, item = asyncio.run_coroutine_threadsafe(step(), self._loop).result()
        if not more:
            raise StopIteration
        return item


def handles_of(node: Node, targets: Mapping[str, Target], line: Line) -> dict[str, Any]:
    """A handle for each dependency of `node`, by attribute or parameter name."""
    return {name: Handle(targets[edge.target], edge, line) for name, edge in node.edges.items()}
