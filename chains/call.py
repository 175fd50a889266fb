"""Call, turn and hop: the scopes of a conversation. They nest; cancelling one cancels what was opened inside it.

A *call* is one conversation, a *turn* one exchange in it, a *hop* one method call on a chainlet. The scope that the
running code belongs to is `current()`; tasks inherit it. Scopes are used from the event loop's thread alone; blocking
code may read `cancelled` and `remaining()`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, Token, copy_context
from types import TracebackType
from typing import Any, Literal, Protocol, TypeVar

from chains.errors import Cancelled, ChainsError, DeadlineExceeded, NotFound, SettingError
from chains.timing import Clock, Note, Played, Timer, Timing, Work
from chains.trace import TraceContext, nest, new_span, traceparent

T = TypeVar("T")
log = logging.getLogger("chains")
Undo = Callable[[], None]
DEADLINE, HANG_UP, ENDED = "deadline", "hang-up", "the call ended"


class Holdable(Protocol):
    """What a hold pauses: a stream whose credit can be withdrawn and given back."""

    def hold(self) -> None: ...
    def resume(self) -> None: ...


class Scope:
    """A stretch of work that can be cancelled, held and given a deadline, together with all that it opened.

    `hop` and `turn` are the innermost ones around (or the scope itself), None outside of any.
    """

    kind: Literal["call", "turn", "hop", "stream"]

    def __init__(self, parent: Scope | None, clock: Clock, id: str, deadline: float | None = None) -> None:
        self.parent = parent
        self.clock = clock
        self.id = id
        self.deadline: float | None
        if parent is not None and parent.deadline is not None:
            deadline = parent.deadline if deadline is None else min(deadline, parent.deadline)
        self.deadline = deadline
        self.reason = ""
        self.closed = False
        self._held = False
        self._children: dict[Scope, None] = {}
        self._on_cancel: dict[int, Callable[[str], None]] = {}
        self._holdable: Holdable | None = None
        self._timer: Timer | None = None
        self._call: Call | None = None if parent is None else parent._call
        self.turn: Turn | None = None if parent is None else parent.turn
        self.hop: Hop | None = None if parent is None else parent.hop
        if parent is not None:
            parent._children[self] = None
            self._held = parent._held
            if parent.reason or parent.closed:  # what is opened in a scope that has ended never begins
                self.reason = parent.reason or f"{parent.kind} ended"

    @property
    def call(self) -> Call:
        """The conversation that this belongs to. Raises NotFound outside of one."""
        if self._call is None:
            raise _outside()
        return self._call

    @property
    def cancelled(self) -> bool:
        return bool(self.reason)

    def error(self) -> ChainsError:
        """What somebody outside is told of the cancel: DeadlineExceeded when time ran out, else Cancelled."""
        if self.reason.startswith(DEADLINE):
            what = self.reason.partition(": ")[2] or f"the {self.kind} ran out of time"
            return DeadlineExceeded(what, mend="give it more time, or ask for less")
        return Cancelled(self.reason or "cancelled")

    def remaining(self) -> float | None:
        """Seconds until the deadline (never below 0), None when there is none."""
        return None if self.deadline is None else max(0.0, self.deadline - self.clock.now())

    def arm(self, what: str = "") -> None:
        """Cancel by itself when the deadline passes, with `what` as the message. A parent watches its own."""
        inherited = self.parent is not None and self.deadline == self.parent.deadline
        if self.deadline is not None and not inherited and not self.closed:
            reason = f"{DEADLINE}: {what}" if what else DEADLINE
            self._timer = self.clock.call_at(self.deadline, lambda: self.cancel(reason))

    def cancel(self, reason: str = "cancelled") -> None:
        """Stop this and everything opened inside it. The second cancel of a scope does nothing."""
        if self.reason or self.closed:
            return
        self.reason = reason or "cancelled"
        for child in list(self._children):
            child.cancel(self.reason)
        self._tell(self.reason)

    def _tell(self, reason: str) -> None:
        """Tell all who listen: one that fails must not keep a cancel from the others."""
        for fn in list(self._on_cancel.values()):
            try:
                fn(reason)
            except Exception as error:
                log.error("a callback on the cancel of a %s failed: %s", self.kind, type(error).__name__)

    def on_cancel(self, fn: Callable[[str], None]) -> Undo:
        """Call `fn(reason)` when this is cancelled (at once if it is already). Returns what takes it back."""
        if self.reason:
            fn(self.reason)
            return lambda: None
        key = next(_numbers)
        self._on_cancel[key] = fn

        def undo() -> None:
            self._on_cancel.pop(key, None)

        return undo

    @property
    def held(self) -> bool:
        return self._held

    def hold(self) -> None:
        """Withdraw the credit of every stream in here: producers pause, nothing is lost."""
        self._set_held(True)

    def resume(self) -> None:
        """Give the credit back."""
        self._set_held(False)

    def _set_held(self, held: bool) -> None:
        if self._held == held or self.closed:
            return
        self._held = held
        if self._holdable is not None:
            if held:
                self._holdable.hold()
            else:
                self._holdable.resume()
        for child in self._children:
            child._set_held(held)

    def attach(self, holdable: Holdable) -> None:
        """Let holds of this scope reach `holdable`, a hop's stream, for as long as the scope is open."""
        self._holdable = holdable
        if self._held:
            holdable.hold()

    def close(self) -> None:
        """The scope has ended; nothing in it remains to be cancelled."""
        if self.closed:
            return
        if self._children:
            for child in list(self._children):
                child.cancel(f"{self.kind} ended")
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.parent is not None:
            self.parent._children.pop(self, None)
            for child in self._children:  # that still runs its `finally`: whoever accounts for the parent finds it
                child.parent = self.parent
                self.parent._children[child] = None
            self._children.clear()
        if self._on_cancel:
            self._tell(self.reason or f"{self.kind} ended")
            self._on_cancel.clear()
        self._holdable = None

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Code in the block belongs to this scope."""
        token = _scope.set(self)
        try:
            yield
        finally:
            _scope.reset(token)

    @contextmanager
    def work(self, name: str) -> Iterator[None]:
        """Name a stretch of the hop's own work, so that the account shows it and never calls it waiting."""
        hop, now = self.hop, self.clock.now()
        if hop is None:
            raise NotFound("there is no hop here to account for", mend="name work within a chainlet's method")
        hop.timing.begin_work(now)
        work = Work(name, now, 0.0, self.turn.number if self.turn else 0)
        try:
            yield
        finally:
            hop.timing.end_work(work, self.clock.now())

    def worked(self, name: str, start: float, end: float) -> None:
        """Name a stretch that is over (monotonic seconds): one that is known only afterwards, as an end of turn is."""
        if self.hop is not None:
            self.hop.timing.add_work(Work(name, start, end, self.turn.number if self.turn else 0))

    def note(self, name: str, value: Note) -> None:
        """Let the hop's span bear a figure or name, never what a caller said: see Timing.note, which raises."""
        if self.hop is None:
            raise NotFound("there is no hop to note it of", mend="note it within a chainlet's method")
        self.hop.timing.note(name, value)

    @property
    def traceparent(self) -> str:
        """W3C trace context for what this code calls elsewhere: the running hop is its parent, else the call."""
        span = self.call.span if self.hop is None else self.hop.timing.span
        return traceparent(self.call.trace_id, span, self.call.sampled)

    def after(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` once this hop has ended, however it ends: in a call of its own, of batch priority, that a hang-up
        does not cancel. For what must not be lost, such as the summary of a conversation.
        """
        if self.hop is None:
            raise NotFound("there is no hop here that could end", mend="use it within a chainlet's method")
        self.hop.afters.append(work)


class Hop(Scope):
    """One method call on a chainlet. `timing` is its account, `current()` within the method's code is this."""

    kind = "hop"

    def __init__(self, parent: Scope, node: str, method: str, deadline: float | None) -> None:
        super().__init__(parent, parent.clock, f"{next(_numbers):x}", deadline)
        caller, turn = parent.hop, parent.turn
        self.hop = self
        self.afters: list[Callable[[], Awaitable[None]]] = []
        self.timing: Timing = Timing(
            self.id,
            None if caller is None else caller.timing,
            parent.call.id,
            0 if turn is None else turn.number,
            node,
            method,
            self.clock.now(),
        )


class Call(Scope):
    """One conversation. Holds what is true of all of it: tenant, priority, affinity, trace, what was played."""

    kind = "call"

    def __init__(
        self,
        clock: Clock,
        *,
        id: str | None = None,
        tenant: str = "",
        priority: Literal["interactive", "batch"] = "interactive",
        affinity: str = "",
        deadline: float | None = None,
        traceparent: str | None = None,
        tracestate: str | None = None,
    ) -> None:
        if priority not in ("interactive", "batch"):
            raise SettingError(f"priority is {priority!r}", mend='write "interactive" or "batch"')
        super().__init__(None, clock, id or secrets.token_hex(8), deadline)
        self._call = self
        self.tenant = tenant
        self.priority = priority
        self.affinity = affinity or self.id
        trace = TraceContext.read(traceparent, tracestate)
        self.trace_id, self.parent_span, self.span = trace.trace_id, trace.parent, new_span()
        self.sampled, self.tracestate = trace.sampled, trace.state
        self.opened = clock.now()
        self.opened_wall = clock.wall()
        self.played = Played()
        self.turns: list[Turn] = []
        self.on_turn_over: list[Callable[[Turn], None]] = []
        self._watchers: list[Callable[[str, Turn], None]] = []

    def new_turn(self, deadline_s: float | None = None) -> Turn:
        """A new exchange: `async with call.new_turn() as turn: ...`. Its number is 1, 2, ... within the call."""
        deadline = None if deadline_s is None else self.clock.now() + deadline_s
        turn = Turn(self, len(self.turns) + 1, deadline)
        self.turns.append(turn)
        return turn

    def watch(self, fn: Callable[[str, Turn], None]) -> Undo:
        """Call `fn(event, turn)` on turn_started, turn_held, turn_resumed, turn_cancelled, turn_ended."""
        self._watchers.append(fn)
        return lambda: self._watchers.remove(fn)

    def tell(self, event: str, turn: Turn) -> None:
        for fn in list(self._watchers):
            fn(event, turn)


class Turn(Scope):
    """One exchange. As an `async with` block it ends quietly when it is cancelled; ask `turn.cancelled` afterwards.

    Tasks from `spawn` belong to it: a block that ends well waits for them, a cancelled one cancels them. A deadline
    that passes raises DeadlineExceeded out of the block. `marks` are moments (monotonic seconds) by name; of a turn
    that was made in another process, `path` is what its time went into.
    """

    kind = "turn"

    def __init__(self, call: Call, number: int, deadline: float | None) -> None:
        around = _scope.get(None)
        parent = around if around is not None and not around.closed and around._call is call else call
        super().__init__(parent, call.clock, f"{call.id}/{number}", deadline)
        self.turn = self
        self.number = number
        self.opened = call.clock.now()
        self.marks: dict[str, float] = {}
        self.ended: float = 0.0
        self.path: tuple[Any, ...] = ()
        self._tasks = set[asyncio.Task[Any]]()
        self._host: asyncio.Task[Any] | None = None
        self._token: Token[Scope | None] | None = None
        self._interrupted = False

    def mark(self, name: str, at: float | None = None) -> None:
        """Remember a moment, e.g. "speech_end" or "first_audio"; the first mark of a name stands."""
        self.marks.setdefault(name, self.clock.now() if at is None else at)

    def spawn(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `coro` beside the block, within this turn."""
        with self.activate():
            task = asyncio.ensure_future(coro)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.cancelled:
            task.cancel()
        return task

    def hold(self) -> None:
        if not self.held and not self.closed:
            super().hold()
            self.call.tell("turn_held", self)

    def resume(self) -> None:
        if self.held and not self.closed:
            super().resume()
            self.call.tell("turn_resumed", self)

    def cancel(self, reason: str = "cancelled") -> None:
        if self.cancelled or self.closed:
            return
        super().cancel(reason)
        for task in list(self._tasks):
            task.cancel()
        if self._host is not None:
            self._interrupted = True
            self._host.cancel()
        self.call.tell("turn_cancelled", self)

    def close(self) -> None:
        over = self.call.on_turn_over if self.ended and not self.closed else []
        super().close()
        for fn in over:
            fn(self)

    async def __aenter__(self) -> Turn:
        self._host = asyncio.current_task()
        self._token = _scope.set(self)
        self.arm(f"turn {self.number} ran out of time")
        self.call.tell("turn_started", self)
        if self.cancelled and self._host is not None:
            self._interrupted = True
            self._host.cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._token is not None and self._host is not None
        try:
            if error is None and not self.cancelled:
                await self._finish_tasks()
            elif error is not None and not self.cancelled:
                self._fail("turn failed" if not isinstance(error, asyncio.CancelledError) else "task cancelled")
        except asyncio.CancelledError as late:
            if not self._interrupted:
                self._fail("task cancelled")
                raise
            error = late
        finally:
            host, self._host = self._host, None
            for task in self._tasks:
                task.cancel()
            _scope.reset(self._token)
            self.ended = self.clock.now()
            if not self.cancelled:
                self.call.tell("turn_ended", self)
            self.close()
        ours = self._interrupted and host.uncancel() == 0
        if ours and not isinstance(error, asyncio.CancelledError):
            with suppress(asyncio.CancelledError):  # asked for above, and no await for it to land on until now
                await asyncio.sleep(0)
            if host.cancelling():  # somebody else's, that came meanwhile
                raise asyncio.CancelledError
        if ours and self.reason.startswith(DEADLINE) and (error is None or isinstance(error, asyncio.CancelledError)):
            raise DeadlineExceeded(
                f"turn {self.number} ran out of time", mend="give new_turn(deadline_s=...) more seconds"
            ) from None
        return ours and isinstance(error, asyncio.CancelledError | Cancelled)

    def _fail(self, reason: str) -> None:
        """Cancelled from within: the block's own error goes on its way, and nobody interrupts it."""
        Scope.cancel(self, reason)
        self.call.tell("turn_cancelled", self)

    async def _finish_tasks(self) -> None:
        while self._tasks:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                if not task.cancelled() and task.exception() is not None:
                    raise task.exception()  # type: ignore[misc]


_scope: ContextVar[Scope | None] = ContextVar("chains_scope", default=None)
_numbers = itertools.count(1)


def current() -> Scope:
    """The scope of the running code: a hop within a chainlet's method. Raises NotFound outside of a call."""
    scope = _scope.get(None)
    if scope is None:
        raise _outside()
    return scope


def _outside() -> NotFound:
    return NotFound("this code runs outside of a call", mend="open one: async with runtime.open_call() as call")


def current_or_none() -> Scope | None:
    return _scope.get(None)


def context_of(scope: Scope) -> Context:
    """A copy of the running code's context in which `scope` is the current one: for a task of its own."""
    context = copy_context()
    context.run(_scope.set, scope)
    if scope.hop is not None and (call := scope._call) is not None:
        nest(context, call.trace_id, scope.hop.timing.span, call.sampled, call.tracestate)
    return context
