"""A hop under way: what is tried where, and again, and how its caller is released on a cancel."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection
from typing import Any, Protocol

from chains.call import Hop, context_of
from chains.channel import End
from chains.dsl.graph import Node
from chains.dsl.specs import CallOptions
from chains.errors import Cancelled, DeadlineExceeded, Overloaded, Unavailable, describe, revive
from chains.runtime.attempt import Attempt, Lender, Transfer
from chains.timing import Timing

SENT_BACK = 2
"""From so many replicas without a free slot a call is sent back; then it waits where it looks best, by their word."""


class Server(Protocol):
    """Where an attempt can run: a replica of this process, or a stub of one elsewhere."""

    name: str

    async def serve(self, attempt: Attempt) -> Any: ...


class Sent(Protocol):
    """An attempt that has left for another process."""

    @property
    def server(self) -> Server: ...

    def leave(self, reason: str) -> None:
        """Nobody waits for it any more: its code is cancelled. Its end comes all the same."""
        ...

    def outcome(self) -> Any:
        """What its end brought: the value, or the error is raised."""
        ...


class Target(Protocol):
    """The replicas of a node, as a handle sees them."""

    node: Node

    @property
    def count(self) -> int:
        """How many replicas there are."""
        ...

    def pick(self, attempt: Attempt, avoid: Collection[str]) -> Server | None:
        """The replica for this attempt, none of those named in `avoid`; None when no other takes calls. One that the
        attempt's conversation had before may let it queue."""
        ...

    def send(self, attempt: Attempt, over: Callable[[], None]) -> Sent | None:
        """Let the attempt leave in this very step, where nothing has to be waited for; None where something has, or
        where it would run in this process. `over` is called once it has ended."""
        ...

    def done(self, server: Server, fault: bool) -> None:
        """The attempt there has ended. `fault`: the way there broke."""
        ...

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

    def who(self, task: asyncio.Task[Any]) -> str:
        """Which hop a task is, by node and method; a task of user code's own by its name."""
        hop = next((drive.attempt.hop for drive in list(self.tasks) if drive.task is task), None)
        return hop.timing.label if hop is not None else task.get_name()

    async def settled(self, seconds: float) -> None:
        """Return once all hops have ended, or after so many seconds."""
        if self.tasks:
            ends = [self.loop.create_task(drive.ended()) for drive in self.tasks]
            for late in (await asyncio.wait(ends, timeout=seconds))[1]:
                late.cancel()

    def soon(self, fn: Callable[..., None], *args: Any) -> None:
        """Run on the loop: at once when that is here."""
        if threading.get_ident() == self.thread:
            fn(*args)
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(fn, *args)


class Drive:
    """Carries one hop to its end: picks replicas (those in `avoid` never), retries by the contract's rule, releases the
    caller on a cancel. `place` is where it is, or was last.

    A hop that can leave at once needs no task, until what comes back has to be tried again.
    """

    __slots__ = ("_begun", "_ends", "_sent", "_undo", "attempt", "avoid", "future", "line", "options", "place",
                 "target", "task")  # fmt: skip

    def __init__(
        self, attempt: Attempt, target: Target, options: CallOptions, line: Line, avoid: frozenset[str] = frozenset()
    ) -> None:
        self.attempt = attempt
        self.target = target
        self.options = options
        self.line = line
        self.avoid = avoid
        self.place = ""
        self.future: asyncio.Future[Any] | None = None
        self.task: asyncio.Task[None] | None = None
        self._ends: asyncio.Future[None] | None = None
        self._begun = False
        line.tasks[self] = None
        hop = attempt.hop
        self._sent = None if avoid or hop.reason or attempt.inputs else target.send(attempt, self._arrived)
        if self._sent is None:
            self._start()
        else:
            self.place = self._sent.server.name
        self._undo = hop.on_cancel(self._cancelled)

    def _start(self, error: BaseException | None = None) -> None:
        """In a task, made directly, as loop.create_task would after a detour. `error`: what came of the first try."""
        context = context_of(self.attempt.hop)
        self.task = self.attempt.task = asyncio.Task(self._run(error), loop=self.line.loop, context=context)

    def _cancelled(self, reason: str) -> None:
        """Release the caller now; the callee's code is cancelled and runs its `finally`."""
        self.settle(self.attempt.hop.error(), reason)
        if self.task is None:
            assert self._sent is not None, "one of the two"
            self._sent.leave(reason)
            return
        self.task.cancel()
        if not self._begun:  # a task that is cancelled before its first step runs none of its code
            self.line.loop.call_soon(self._finish, "cancelled", "")

    async def ended(self) -> None:
        """Return once the callee's code has run its `finally`."""
        if not self.attempt.hop.closed:
            self._ends = self._ends or self.line.loop.create_future()
            await asyncio.wait([self._ends])

    def settle(self, error: BaseException, reason: str = "") -> None:
        """The caller's side ends with `error`, now."""
        if self.attempt.out is not None:
            cancelled = isinstance(error, Cancelled)
            self.attempt.out.end(End("cancelled" if cancelled else "error", error, reason or str(error)))
        elif self.future is not None and not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # it may have no reader left: that is no fault

    def _arrived(self) -> None:
        """The end of what had left at once is here."""
        sent = self._sent
        assert sent is not None
        try:
            value = sent.outcome()
        except BaseException as error:
            if isinstance(error, Overloaded | Unavailable) and not self.attempt.hop.reason:
                self._start(error)  # which knows whether it is tried again
            else:
                self._over(error)
        else:
            self._over(None, value)

    async def _run(self, error: BaseException | None) -> None:
        self._begun = True
        try:
            value = await self._attempts(error)
        except BaseException as fault:
            if isinstance(fault, GeneratorExit) and not self._stepping():
                self._finish("cancelled", "")
                raise  # this coroutine is being closed
            self._over(fault)
        else:
            self._over(None, value)

    def _over(self, error: BaseException | None, value: Any = None) -> None:
        """The hop has ended with a value, or an error: one of a method that calls sys.exit ends it, not the process."""
        hop, outcome, name = self.attempt.hop, "cancelled", ""
        if error is None:
            if not hop.reason:
                outcome = "done"
                if self.attempt.out is not None:
                    self.attempt.out.end()
                elif self.future is not None and not self.future.done():
                    self.future.set_result(value)
        elif isinstance(error, asyncio.CancelledError):
            if not hop.reason:
                self.settle(Cancelled("the code was cancelled from within"))
        else:
            detail = describe(error, self.target.node.name)
            outcome, name = "error", detail.type_name
            if not hop.reason:
                self.settle(revive(detail, self.attempt.method.raises))
        self._finish(outcome, name)

    def _stepping(self) -> bool:
        """Whether the loop runs this task now."""
        try:
            return asyncio.current_task() is self.task
        except RuntimeError:  # no loop any more
            return False

    def _finish(self, outcome: str, error: str) -> None:
        hop = self.attempt.hop
        if hop.closed:
            return
        hop.timing.finish(hop.clock.now(), outcome, error)
        self._undo()
        hop.close()
        self.attempt.values = {}  # large arguments do not wait for the garbage collector
        del self.line.tasks[self]
        if self._sent is not None:
            self.target.done(self._sent.server, self.attempt.gone)
            self._sent = None
        self.line.record(hop.timing)
        if self._ends is not None and not self._ends.done():
            self._ends.set_result(None)
        if hop.afters:
            self.line.after(hop)

    async def _attempts(self, error: BaseException | None) -> Any:
        """`error` is what came of the first try, when it had left at once."""
        attempt, target, left = self.attempt, self.target, self.options.retries
        tried, full = set[str](), set[str]()
        while True:
            sent, self._sent = self._sent, None
            server = await self._pick(tried, full) if sent is None else sent.server
            self.place = server.name
            try:
                if sent is not None and error is not None:
                    raise error
                value = await server.serve(attempt)
                if attempt.out is None and attempt.transfer is not None:
                    value = attempt.transfer(value, attempt.method.result, attempt.hop.timing)
                return value
            except Overloaded:
                if attempt.accepted or attempt.may_queue:
                    raise
                full.add(server.name)
                attempt.hop.timing.sent_back()
            except (Unavailable, asyncio.CancelledError) as lost:
                fault = self._carrier_fault(lost, server)
                if not left or not attempt.may_retry():
                    raise fault from None
                tried.add(server.name)
                left -= 1
                attempt.hop.timing.again()
            finally:
                target.done(server, attempt.gone)
            attempt.gone = attempt.accepted = False

    def unserved(self, error: BaseException) -> bool:
        """Whether `error` says that nobody has answered, and somebody else may: by the rule of what is tried again."""
        attempt = self.attempt
        if attempt.hop.cancelled:
            return isinstance(error, DeadlineExceeded) and attempt.may_retry()
        lost = attempt.gone or not attempt.accepted
        return lost and isinstance(error, Unavailable | Overloaded) and attempt.may_retry()

    def _carrier_fault(self, error: BaseException, server: Server) -> Unavailable:
        """The replica is gone, or refuses because it goes: a fault of the way there. Anything else is raised on."""
        attempt = self.attempt
        if isinstance(error, Unavailable):
            if attempt.accepted and not attempt.gone:
                raise error  # the user's code raised it, or a hop further down did
            return error
        if not attempt.gone or attempt.hop.cancelled:
            raise error
        assert self.task is not None
        self.task.uncancel()
        return Unavailable(f"{server.name} went away during {attempt.method.label}", mend="call again")

    async def _pick(self, tried: set[str], full: set[str]) -> Server:
        attempt, target = self.attempt, self.target
        await target.ready()
        attempt.may_queue = target.count == 1 or len(full) >= SENT_BACK
        avoid = self.avoid | tried if tried else self.avoid
        server = target.pick(attempt, avoid if attempt.may_queue else avoid | full)
        if server is None and full:  # nobody has a free slot
            attempt.may_queue = True
            server = target.pick(attempt, avoid)
        if server is None and tried:  # one that was tried may be back, and is better than none
            server = target.pick(attempt, self.avoid)
        if server is None and avoid:
            raise Unavailable(f"no other replica of {target.node.name} can take the call", mend="call again")
        if server is None:
            raise Unavailable(f"no replica of {target.node.name} takes calls now", mend="call again")
        return server
