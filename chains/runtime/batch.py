"""Calls that arrive close together run as one: the method is written on lists, its callers see one item each."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any

from chains.call import Call
from chains.dsl.signature import Method
from chains.errors import InvalidValue
from chains.runtime.attempt import Attempt
from chains.timing import Clock, Timer

InThread = Callable[..., Awaitable[Any]]


class Batcher:
    """Collects calls until `batch.size` are there or the first has waited `batch.wait_ms`, then runs them together.

    A call that is cancelled while it waits is left out; an error of the batch is every member's error. What the
    batch itself calls belongs to a scope of the batch's own: one member's cancel does not reach the others.
    """

    def __init__(self, function: Callable[..., Any], method: Method, clock: Clock, in_thread: InThread) -> None:
        assert method.batch is not None
        self._function = function
        self._method = method
        self._size = method.batch.size
        self._wait = method.batch.wait_ms / 1e3
        self._clock = clock
        self._in_thread = in_thread
        self._waiting: list[tuple[Attempt, asyncio.Future[Any]]] = []
        self._timer: Timer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, attempt: Attempt) -> Any:
        """This call's own result."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((attempt, future))
        if len(self._waiting) >= self._size:
            self._flush()
        elif self._timer is None:
            self._timer = self._clock.call_at(self._clock.now() + self._wait, self._flush)
        return await future

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        members = [(attempt, future) for attempt, future in self._waiting if not future.done()]
        self._waiting = []
        if members:
            task = asyncio.get_running_loop().create_task(self._within_own_call(members), context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _within_own_call(self, members: list[tuple[Attempt, asyncio.Future[Any]]]) -> None:
        call = Call(self._clock)
        try:
            with call.activate():
                await self._run(members)
        finally:
            call.close()

    async def _run(self, members: list[tuple[Attempt, asyncio.Future[Any]]]) -> None:
        names = [param.name for param in self._method.params]
        columns = {name: [attempt.values[name] for attempt, _ in members] for name in names}
        try:
            if inspect.iscoroutinefunction(self._function):
                results = await self._function(**columns)
            else:
                results = await self._in_thread(self._function, **columns)
            if len(results) != len(members):
                raise InvalidValue(
                    f"{self._method.label} returned {len(results)} results for a batch of {len(members)}",
                    mend="return one result for each item, in the same order",
                )
        except Exception as error:
            for _, future in members:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(members, results, strict=True):
            if not future.done():
                future.set_result(result)
