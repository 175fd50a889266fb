"""A replica: one instance of a chainlet, its caps, and the running of its methods.

Past `limits.running` a call queues, in the order of policy/quota; past `limits.queued` one is refused at once. A plain
`def` runs in a thread of the replica's own, so it never blocks the loop; cancelled, it keeps its slot until its next
step, and shows as draining.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from chains.call import DEADLINE
from chains.dsl.graph import Node
from chains.dsl.signature import Method
from chains.errors import (
    Cancelled,
    ChainsError,
    Frame,
    InvalidResult,
    InvalidValue,
    Overloaded,
    StartError,
    Unavailable,
    describe,
    how_to_install,
)
from chains.policy.quota import FairQueue, Quotas
from chains.policy.routing import Load
from chains.runtime.attempt import Attempt, BlockingInput, Input
from chains.runtime.batch import Batcher
from chains.runtime.deployment import ReplicaLoad, State
from chains.timing import Clock

_DONE = object()


class Replica:
    """One replica of `node`. `start`, then `serve` attempts, then `drain`."""

    def __init__(self, node: Node, name: str, clock: Clock, quotas: Quotas | None = None) -> None:
        self.node = node
        self.name = name
        self.clock = clock
        self.state: State = "starting"
        self.running: dict[Attempt, None] = {}
        limits = node.spec.limits
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(limits.running, limits.queued, quotas)
        self._last_wait = 0.0
        self._moved = clock.now()
        self._drained: asyncio.Future[None] | None = None
        self._batchers: dict[str, Batcher] = {}
        self._instance: Any = None
        self._pool = ThreadPoolExecutor(max_workers=limits.running, thread_name_prefix=name)

    # life

    async def start(self, handles: dict[str, Any], stage: Callable[[State], None]) -> None:
        """Construct, `load`, `warm`. Raises StartError with what the user's code raised as its cause."""
        try:
            self._enter("loading", stage)
            self._instance = await self._in_thread(self.node.construct, handles)
            await self._hook("load")
            self._enter("warming", stage)
            await self._hook("warm")
        except (Exception, SystemExit) as error:
            self._enter("failed", stage)
            raise self._failed(error) from error
        for name, method in self.node.methods.items():
            if method.batch is not None:
                self._batchers[name] = Batcher(getattr(self._instance, name), method, self.clock, self._in_thread)
        self._enter("ready", stage)

    def _enter(self, state: State, stage: Callable[[State], None]) -> None:
        self.state = state
        stage(state)

    def _failed(self, error: BaseException, what: str = "start") -> StartError:
        if isinstance(error, ChainsError):
            return StartError(f"{self.name} did not {what}: {error.message}", mend=error.mend)
        frames = describe(error, self.node.name).frames
        if isinstance(error, ModuleNotFoundError) and error.name:
            at = f" at {frames[-1].file}:{frames[-1].line}" if frames else ""
            missing = f"the module {error.name} is not installed, which is imported{at}"
            return StartError(f"{self.name} did not {what}: {missing}", mend=how_to_install(error.name))
        where = "".join(f"\n  {frame}" for frame in frames)
        return StartError(f"{self.name} did not {what}: {type(error).__name__}: {error}{where}")

    async def _hook(self, name: str) -> None:
        hook = getattr(self._instance, name, None)
        if hook is None:
            return
        if inspect.iscoroutinefunction(hook):
            await hook()
        else:
            await self._in_thread(hook)

    async def drain(self, grace: float | None = None) -> None:
        """Take no more, let what runs end (cancel it after `grace` seconds), then `close`."""
        if self.state in ("stopped", "dead"):
            return
        started, self.state = self.state == "ready", "draining"
        self._refuse_waiting("is draining")
        timer = None
        if grace is not None and self.running:
            timer = self.clock.call_at(self.clock.now() + grace, self._cancel_running)
        if self.running:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
        if timer is not None:
            timer.cancel()
        if started:
            try:
                await self._hook("close")
            except Exception as error:
                self.state = "failed"
                raise self._failed(error, "close") from error
            finally:
                self._pool.shutdown(wait=False)
        self.state = "stopped"
        self._pool.shutdown(wait=False)

    def _cancel_running(self) -> None:
        for attempt in list(self.running):
            attempt.hop.cancel("replica stopped")

    def kill(self) -> None:
        """Go away at once, as in a crash: what runs here ends as gone, what waits is refused."""
        self.state = "dead"
        self._refuse_waiting("went away")
        for attempt in list(self.running):
            attempt.gone = True
            if attempt.task is not None:
                attempt.task.cancel()
        self._pool.shutdown(wait=False)

    def _refuse_waiting(self, why: str) -> None:
        for ticket in list(self._queue):
            self._queue.remove(ticket)
            if not ticket.item.done():
                ticket.item.set_exception(Unavailable(f"{self.name} {why}"))

    # load

    @property
    def waiting(self) -> int:
        """Calls that wait for a slot."""
        return len(self._queue)

    def standing(self) -> Load:
        """What a caller in this process compares."""
        queue = self._queue
        wait = queue.wait(self.clock.now()) * 1e3 if queue else 0.0
        return Load(queue.taken, len(queue), queue.batch, 0, wait, self.state == "ready")

    def load(self) -> ReplicaLoad:
        now, queue = self.clock.now(), self._queue
        return ReplicaLoad(
            self.node.name,
            self.name,
            self.state,
            running=len(self.running),
            queued=len(queue),
            batch=queue.batch,
            active=sum(1 for a in self.running if a.at_work),
            streams=sum(len(a.inputs) + (a.out is not None) for a in self.running),
            turns=sum(1 for a in self.running if a.hop.timing.turn),
            draining=sum(1 for a in self.running if a.hop.cancelled),
            queue_wait_ms=(queue.wait(now) if queue else self._last_wait) * 1e3,
            idle_s=self._idle_seconds(now),
        )

    def _idle_seconds(self, now: float) -> float:
        """How long the oldest hop that computes (waits for nobody) has not moved; 0 when none computes."""
        stuck = [
            now - max(self._moved, a.hop.timing.accepted)
            for a in self.running
            if a.accepted and not a.hop.timing.open_waits
        ]
        return max(stuck, default=0.0)

    # serving

    async def serve(self, attempt: Attempt) -> Any:
        """Run the attempt's method here. Streams go to `attempt.out`; a unary result is returned, checked."""
        timing, tenant = attempt.hop.timing, attempt.hop.call.tenant
        timing.arrive(self.clock.now(), self.name)
        self._refuse_unless_ready()
        waited = not self._queue.admit(tenant)
        if waited:
            await self._wait(attempt)
        else:
            self._last_wait = 0.0
        self.running[attempt] = None
        try:
            if not attempt.hop.cancelled and attempt.hop.remaining() == 0.0:
                attempt.hop.cancel(f"{DEADLINE}: {timing.label} had no time left when its turn came")
            if attempt.hop.cancelled:
                raise attempt.hop.error()
            attempt.accepted = True
            timing.accepted = self._moved = self.clock.now()
            if waited and not attempt.method.idempotent:
                await attempt.announced()
            return await self._run(attempt)
        finally:
            self._moved = self.clock.now()
            del self.running[attempt]
            self._release(tenant)

    async def _wait(self, attempt: Attempt) -> None:
        """Until it is this call's turn. Raises Overloaded when it may not wait here, or when too many do."""
        call = attempt.hop.call
        if not attempt.may_queue:
            raise self._overloaded()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket, excess = self._queue.push(future, call.tenant, call.priority == "batch", self.clock.now())
        if excess is not None and not excess.item.done():
            excess.item.set_exception(self._overloaded())
        attempt.waits()
        try:
            await future
        except asyncio.CancelledError:
            if not self._queue.remove(ticket) and not future.cancelled() and future.exception() is None:
                self._release(call.tenant)  # the slot was given to it in the same moment
            raise
        self._last_wait = self.clock.now() - ticket.since
        try:
            self._refuse_unless_ready()  # it may have gone after the slot was given, and before it was taken
        except Unavailable:
            self._release(call.tenant)
            raise

    def _overloaded(self) -> Overloaded:
        limits = self.node.spec.limits
        return Overloaded(
            f"{self.name} runs {self._queue.taken} calls and {len(self._queue)} wait",
            mend=f"try again later, raise Limits({limits.running}, {limits.queued}), or add replicas",
        )

    def _refuse_unless_ready(self) -> None:
        if self.state != "ready":
            raise Unavailable(f"{self.name} is {self.state}")

    def _release(self, tenant: str) -> None:
        """A slot is free: to whoever's turn it is."""
        queue = self._queue
        queue.free(tenant)
        while queue and (ticket := queue.pop(self.clock.now())) is not None:
            if ticket.item.done():  # cancelled, and not yet gone
                queue.free(ticket.tenant)
            else:
                ticket.item.set_result(None)
        if self._drained is not None and not self.running and not self._drained.done():
            self._drained.set_result(None)

    async def _run(self, attempt: Attempt) -> Any:
        method = attempt.method
        if method.batch is not None:
            return _given(await self._batchers[method.name].submit(attempt), method, method.label)
        function = getattr(self._instance, method.name)
        if method.streams_out:
            items = self._stream(function, attempt)
            await self._pump(attempt, items)
            return None
        if method.blocking:
            result = await self._in_thread(function, **self._blocking_values(attempt))
        else:
            result = await function(**attempt.values)
        return _given(result, method, f"{method.label} returned")

    def _blocking_values(self, attempt: Attempt) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        return {k: BlockingInput(v, loop) if isinstance(v, Input) else v for k, v in attempt.values.items()}

    def _stream(self, function: Callable[..., Any], attempt: Attempt) -> AsyncIterator[Any]:
        if attempt.method.blocking:
            return self._step_through(function(**self._blocking_values(attempt)), attempt)
        made = function(**attempt.values)
        if inspect.iscoroutine(made):
            return _awaited(made)
        return aiter(made)

    async def _step_through(self, items: Iterator[Any], attempt: Attempt) -> AsyncIterator[Any]:
        """A blocking generator, one step at a time in a thread: it stops between steps when the hop is cancelled."""
        try:
            while not attempt.hop.cancelled:
                item = await self._in_thread(next, items, _DONE)
                if item is _DONE:
                    return
                yield item
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                await self._in_thread(close)

    async def _pump(self, attempt: Attempt, items: AsyncIterator[Any]) -> None:
        """Move the method's items to its reader while there is credit. A cancel that lands while we wait for credit
        is thrown into the generator, as if it had been suspended at its own await."""
        out, check, where = attempt.out, attempt.method.result, f"{attempt.method.label} yielded"
        assert out is not None
        timing = attempt.hop.timing
        step = items.__anext__
        try:
            while True:
                try:
                    item = await step()
                except StopAsyncIteration:
                    return
                step = items.__anext__
                item = _given(item, attempt.method, where)
                if attempt.transfer is not None:
                    item = attempt.transfer(item, check, timing)
                if not out.offer(item):
                    try:
                        await self._send(attempt, item)
                    except asyncio.CancelledError as cancel:
                        throw = getattr(items, "athrow", None)
                        if throw is None:
                            raise
                        step = _Throw(throw, cancel)
                        continue
                attempt.delivered = True
                timing.items_out += 1
                if not timing.first_item:
                    timing.first_item = self.clock.now()
                self._moved = self.clock.now()
        except Cancelled:
            if out.ended is None:
                raise
        finally:
            aclose = getattr(items, "aclose", None)
            if aclose is not None:
                await aclose()

    async def _send(self, attempt: Attempt, item: Any) -> None:
        assert attempt.out is not None
        turn = attempt.hop.turn
        timing = attempt.hop.timing
        wait = timing.begin_wait(self.clock.now(), "credit", timing.parent, turn.number if turn else 0)
        try:
            await attempt.out.send(item)
        finally:
            timing.end_wait(wait, self.clock.now())

    async def _in_thread(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run blocking code in the replica's own threads. A cancel waits for the code to come to its end."""
        context = contextvars.copy_context()
        future = asyncio.get_running_loop().run_in_executor(
            self._pool, lambda: context.run(_called, function, args, kwargs)
        )
        cancelled = False
        while True:
            try:
                outcome, value = await asyncio.shield(future)
                break
            except asyncio.CancelledError:
                if future.cancelled() or self.state == "dead":
                    raise
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        if outcome is _DONE:
            raise value
        return value


def _given(value: Any, method: Method, where: str) -> Any:
    """What a method gave, checked. That it does not fit is the method's fault: InvalidResult, at its `def`."""
    try:
        return method.result.check(value, where)
    except InvalidValue as wrong:
        mend = wrong.mend or f"give {method.result.name}, or change the annotation"
        error = InvalidResult(wrong.message, mend=mend)
        file, _, line = method.where.rpartition(":")
        error.chains_frames = (Frame(method.chainlet, file, int(line or 0), method.name),)  # type: ignore[attr-defined]
        raise error from None


class _Throw:
    """The next step of a generator into which a cancel is thrown."""

    def __init__(self, throw: Callable[[BaseException], Any], error: BaseException) -> None:
        self._throw = throw
        self._error = error

    def __call__(self) -> Any:
        return self._throw(self._error)


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Errors travel as values: a StopIteration cannot be set on a future."""
    try:
        return None, function(*args, **kwargs)
    except StopIteration:
        return _DONE, InvalidValue(
            "StopIteration was raised by user code", mend="return instead of raising StopIteration"
        )
    except BaseException as error:
        return _DONE, error


async def _awaited(made: Any) -> AsyncIterator[Any]:
    """An `async def` that returns a stream instead of yielding one."""
    async for item in await made:
        yield item
