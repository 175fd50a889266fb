"""A hop under way: which replica it goes to, what is tried again, and how its caller is released on a cancel."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Protocol

from chains.call import Hop, context_of
from chains.channel import End
from chains.dsl.graph import Node
from chains.dsl.specs import CallOptions
from chains.errors import Cancelled, Unavailable, describe, revive
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

    def who(self, task: asyncio.Task[Any]) -> str:
        """Which hop a task is, by node and method; a task of user code's own by its name."""
        hop = next((drive.attempt.hop for drive in list(self.tasks) if drive.task is task), None)
        return hop.timing.label if hop is not None else task.get_name()

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
        # made directly, as loop.create_task would after a detour
        self.task: asyncio.Task[None] = asyncio.Task(self._run(), loop=line.loop, context=context_of(hop))
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
        except BaseException as error:  # a method that calls sys.exit ends its hop, not the process
            if isinstance(error, GeneratorExit) and not self._stepping():
                raise  # this coroutine is being closed
            detail = describe(error, self.target.node.name)
            outcome, name = "error", detail.type_name
            if not hop.reason:
                self.settle(revive(detail, self.attempt.method.raises))
        finally:
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
                attempt.hop.timing.again()

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
