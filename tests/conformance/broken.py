"""Runtimes that break the contract on purpose, one sentence each: the suite must notice every one of them."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any

from chains.call import Call, Scope
from chains.channel import Channel
from chains.dsl.graph import Graph, Node
from chains.dsl.signature import Checker, Method
from chains.dsl.specs import Limits
from chains.errors import ChainsError, Unavailable
from chains.runtime.attempt import Attempt, Lender, Pump, Source
from chains.runtime.deployment import ReplicaLoad
from chains.runtime.drive import Line
from chains.runtime.inprocess import InProcess
from chains.runtime.replica import Replica
from chains.testing.harness import AT_ONCE
from chains.timing import LoopClock, Timer


class Breaking(InProcess):
    """Tidies up what its breakage leaves behind, so that a test of it ends."""

    def __init__(self, graph: Graph, **settings: Any) -> None:
        super().__init__(graph, grace=0.0, **settings)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for replicas in self._nodes.values():
            for replica in replicas.replicas:
                for task in getattr(replica, "kept", ()):
                    task.cancel()
        await super().__aexit__(kind, error, trace)


class Keeping(Replica):
    """A replica that has tasks of its own."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kept: set[asyncio.Task[Any]] = set()

    def keep(self, coro: Any) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(coro)
        self.kept.add(task)
        task.add_done_callback(self.kept.discard)
        return task


class _Bottomless(Channel[Any]):
    """Goes on taking items when nobody reads them any more."""

    __slots__ = ()

    def offer(self, item: Any) -> bool:
        return True if self.ended is not None else super().offer(item)


class _Uncancelled(Keeping):
    async def serve(self, attempt: Attempt) -> Any:
        if attempt.out is not None:
            attempt.out.__class__ = _Bottomless
        return await asyncio.shield(self.keep(super().serve(attempt)))


class DropsCancels(Breaking):
    """Releases the caller and never tells the callee."""

    _replica_type = _Uncancelled


class _Unthrottled(Replica):
    async def _pump(self, attempt: Attempt, items: AsyncIterator[Any]) -> None:
        assert attempt.out is not None
        attempt.out.window = 2**20  # not without any bound: an endless producer must end at some time
        await super()._pump(attempt, items)


class IgnoresCredit(Breaking):
    """Sends on when the window is full."""

    _replica_type = _Unthrottled


class _GreedyLender(Lender):
    def source(self, value: Any, where: str, scope: Scope, window: int) -> tuple[Source, Attempt | None]:
        return super().source(value, where, scope, 2**40)


class _GreedyLine(Line):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.lender = _GreedyLender()


class IgnoresCreditOfInputs(Breaking):
    """Bounds what comes out, and not what goes in."""

    _line_type = _GreedyLine


class _Hushed(Replica):
    async def serve(self, attempt: Attempt) -> Any:
        try:
            return await super().serve(attempt)
        except Exception:
            if attempt.out is None:
                raise
            return None


class EndsBare(Breaking):
    """A stream that fails just ends, as a connection does that is cut: errors become clean ends."""

    _replica_type = _Hushed


class _Leaking(Keeping):
    async def serve(self, attempt: Attempt) -> Any:
        self.keep(asyncio.Event().wait())
        return await super().serve(attempt)


class LeaksTasks(Breaking):
    """A task for each call, which nobody ends."""

    _replica_type = _Leaking


class _Insistent(Replica):
    async def serve(self, attempt: Attempt) -> Any:
        try:
            return await super().serve(attempt)
        except asyncio.CancelledError:
            if attempt.gone:
                attempt.accepted = attempt.delivered = attempt.consumed = False
            raise


class RepeatsAccepted(Breaking):
    """Tries again whatever had begun."""

    _replica_type = _Insistent


class _Timid(Replica):
    async def serve(self, attempt: Attempt) -> Any:
        try:
            return await super().serve(attempt)
        except (asyncio.CancelledError, Unavailable):
            if attempt.gone or self.state != "ready":
                attempt.accepted = attempt.consumed = attempt.gone = True
            raise


class NeverRetries(Breaking):
    """Gives up at the first fault, also of what never began."""

    _replica_type = _Timid


class _Credulous(Checker):
    def check(self, value: Any, where: str) -> Any:
        return value


def _unchecked(method: Method) -> Method:
    params = tuple(replace(param, checker=_Credulous(param.checker.annotation)) for param in method.params)
    return replace(method, params=params, result=_Credulous(method.result.annotation))


def _unchecked_node(node: Node) -> Node:
    return replace(node, methods={name: _unchecked(method) for name, method in node.methods.items()})


class ChecksNothing(Breaking):
    """Takes and gives every value as it comes."""

    def __init__(self, graph: Graph, **settings: Any) -> None:
        nodes = {name: _unchecked_node(node) for name, node in graph.nodes.items()}
        super().__init__(replace(graph, nodes=nodes), **settings)


class CopiesValues(Breaking):
    """Every value is copied on its way: the callee may write into what it was given."""

    def __init__(self, graph: Graph, **settings: Any) -> None:
        super().__init__(graph, **settings)
        self._transfer = lambda value, checker, timing: copy.deepcopy(value)


class _Never:
    def cancel(self) -> None: ...


class _StoppedClock(LoopClock):
    def __init__(self) -> None:
        super().__init__()
        self.stopped = True

    def call_at(self, when: float, fn: Any) -> Timer:
        return _Never() if self.stopped else super().call_at(when, fn)


class IgnoresDeadlines(Breaking):
    """No timer ever fires."""

    def __init__(self, graph: Graph, **settings: Any) -> None:
        self.watch = _StoppedClock()
        super().__init__(graph, clock=self.watch, **settings)

    async def __aexit__(self, *error: Any) -> None:
        self.watch.stopped = False
        await super().__aexit__(*error)


class _Possessive(Replica):
    async def serve(self, attempt: Attempt) -> Any:
        try:
            return await super().serve(attempt)
        finally:
            for stream in attempt.inputs:
                if isinstance(stream.source, Pump):
                    stream.source._stop("its reader has ended")


class ClosesWhatItBorrows(Breaking):
    """A stream that was passed as an argument ends with the callee."""

    _replica_type = _Possessive


class _Unresuming(Channel[Any]):
    __slots__ = ()

    def resume(self) -> None: ...


class _Frozen(Replica):
    async def serve(self, attempt: Attempt) -> Any:
        if attempt.out is not None:
            attempt.out.__class__ = _Unresuming
        return await super().serve(attempt)


class NeverResumes(Breaking):
    """What was held stays held."""

    _replica_type = _Frozen


class _Unheld(Channel[Any]):
    __slots__ = ()

    def hold(self) -> None: ...


class _Restless(Replica):
    async def serve(self, attempt: Attempt) -> Any:
        if attempt.out is not None:
            attempt.out.__class__ = _Unheld
        return await super().serve(attempt)


class NeverHolds(Breaking):
    """A hold changes nothing."""

    _replica_type = _Restless


class _Forgetful(Channel[Any]):
    __slots__ = ()

    def hold(self) -> None:
        self._items.clear()
        self.queued = 0
        super().hold()


class _Careless(Replica):
    async def serve(self, attempt: Attempt) -> Any:
        if attempt.out is not None:
            attempt.out.__class__ = _Forgetful
        return await super().serve(attempt)


class HoldLoses(Breaking):
    """A hold drops what was under way."""

    _replica_type = _Careless


class _Briefly(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(AT_ONCE + 0.2)


class _Inline(Replica):
    async def _in_thread(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if hasattr(result, "hold") and hasattr(result, "gate"):
            result.hold = _Briefly()  # the probe's own wait is long enough to look like a hang
        return result


class BlocksTheLoop(Breaking):
    """A plain def runs where everything else does."""

    _replica_type = _Inline


class _Patient(Replica):
    def __init__(self, node: Node, *args: Any) -> None:
        limits = Limits(node.spec.limits.running, 1_000_000)
        super().__init__(replace(node, spec=replace(node.spec, limits=limits)), *args)


class LosesTheQueueCap(Breaking):
    """Lets any number of calls wait."""

    _replica_type = _Patient


class _Generous(Replica):
    def __init__(self, node: Node, *args: Any) -> None:
        limits = Limits(1_000, node.spec.limits.queued)
        super().__init__(replace(node, spec=replace(node.spec, limits=limits)), *args)


class LosesTheRunningCap(Breaking):
    """Runs any number of calls at once."""

    _replica_type = _Generous


class TreatsAllAlike(Breaking):
    """Knows no priority, no tenant and no affinity."""

    @asynccontextmanager
    async def open_call(self, **settings: Any) -> AsyncIterator[Call]:
        for name in ("priority", "tenant", "affinity"):
            settings.pop(name, None)
        async with super().open_call(**settings) as call:
            yield call


class ReportsNoLoad(Breaking):
    """Says of every replica that it is idle."""

    def load(self) -> list[ReplicaLoad]:
        return [ReplicaLoad(one.node, one.replica, one.state) for one in super().load()]


class KeepsNoAccount(Breaking):
    """Forgets where the time went."""

    def __init__(self, graph: Graph, **settings: Any) -> None:
        super().__init__(graph, **settings)
        self.recorder.add = lambda timing: None  # type: ignore[method-assign]


class _Miscounting(Replica):
    async def _send(self, attempt: Attempt, item: Any) -> None:
        await super()._send(attempt, item)
        attempt.hop.timing.waited += 1.0

    async def serve(self, attempt: Attempt) -> Any:
        try:
            return await super().serve(attempt)
        finally:
            attempt.hop.timing.waited += 1.0


class MiscountsTime(Breaking):
    """Its accounts claim more waiting than there was time."""

    _replica_type = _Miscounting


class _Deaf(Line):
    def soon(self, fn: Any, *args: Any) -> None: ...


class KeepsTheDropped(Breaking):
    """Goes on with what nobody holds any more."""

    _line_type = _Deaf


class _Plain(Replica):
    async def serve(self, attempt: Attempt) -> Any:
        try:
            return await super().serve(attempt)
        except ChainsError:
            raise
        except Exception:
            raise RuntimeError("internal error") from None


class HidesErrors(Breaking):
    """Whatever the user's code raised, its caller learns that something failed."""

    _replica_type = _Plain


class _Lossy(Replica):
    async def _pump(self, attempt: Attempt, items: AsyncIterator[Any]) -> None:
        async def but_the_last() -> AsyncIterator[Any]:
            last: list[Any] = []
            async for item in items:
                if last:
                    yield last.pop()
                last.append(item)

        await super()._pump(attempt, but_the_last())


class LosesTheLast(Breaking):
    """Ends a stream before its last item is out."""

    _replica_type = _Lossy


class _Single(Replica):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._one = asyncio.Lock()

    async def _pump(self, attempt: Attempt, items: AsyncIterator[Any]) -> None:
        async with self._one:
            await super()._pump(attempt, items)


class OneStreamAtATime(Breaking):
    """A stalled stream stalls the others of its replica."""

    _replica_type = _Single
