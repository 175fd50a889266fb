"""The chain in this process: every replica here, no server of any kind, nothing copied.

The same handles, scopes, streams and errors as between machines. With `codec=True` each value passes the codec as it
would on the wire: what the conformance suite also runs on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Self

from chains.call import Call
from chains.dsl.graph import Graph, Node
from chains.errors import StartError, Unavailable
from chains.policy.quota import Quotas
from chains.runtime.attempt import Attempt, through_codec
from chains.runtime.choice import Choice
from chains.runtime.conversations import ChainRuntime
from chains.runtime.cores import share_out
from chains.runtime.deployment import Health, Progress, ProgressFn, ReplicaLoad, State
from chains.runtime.drive import Line, Server
from chains.runtime.handle import handles_of
from chains.runtime.replica import Replica
from chains.runtime.watch import LoopWatch
from chains.spans import Recorder
from chains.timing import Clock


class Replicas:
    """The replicas of one node in this process."""

    def __init__(self, node: Node, count: int, clock: Clock, replica: type[Replica], quotas: Quotas) -> None:
        self.node = node
        self.replicas = [replica(node, f"{node.name}#{index}", clock, quotas) for index in range(count)]
        self._by_name = {one.name: one for one in self.replicas}
        self._choice = Choice(node, clock, quotas)
        self._choice.update(dict.fromkeys(self._by_name, ""))
        self._started = asyncio.Event()
        self._error: StartError | None = None

    @property
    def count(self) -> int:
        return len(self.replicas)

    def pick(self, attempt: Attempt, avoid: Collection[str]) -> Server | None:
        if len(self.replicas) == 1:
            only = self.replicas[0]
            return only if only.state == "ready" and not avoid else None
        for replica in self.replicas:
            self._choice.report(replica.name, replica.standing())
        name = self._choice.pick(attempt, avoid)
        if name is None:
            return None
        self._choice.done(name, False)  # what it runs is in its report
        return self._by_name[name]

    def send(self, attempt: Attempt, over: Callable[[], None]) -> None:
        return None

    def done(self, server: Server, fault: bool) -> None: ...

    async def ready(self) -> None:
        if not self._started.is_set():
            await self._started.wait()
        if self._error is not None:
            raise Unavailable(f"{self.node.name} did not start", mend=self._error.message)

    async def start(self, handles: dict[str, Any], progress: Mapping[str, Any]) -> None:
        """Start them all side by side. Raises the first StartError after all have come to an end."""
        results = await asyncio.gather(
            *(replica.start(handles, progress[replica.name]) for replica in self.replicas),
            return_exceptions=True,
        )
        failed = next((result for result in results if isinstance(result, BaseException)), None)
        self._error = failed if isinstance(failed, StartError) else None
        self._started.set()
        if failed is not None:
            raise failed


class InProcess(ChainRuntime):
    """The in-process runtime: `async with InProcess(graph) as runtime`.

    `replicas` maps node names to counts (1 each when not given), `grace` is how many seconds running calls have when
    the block is left, `stuck_s` how long a hop may compute without a step before health calls it stuck. `quotas` say
    who waits for whom on each replica.
    """

    _line_type = Line
    _replica_type = Replica

    def __init__(
        self,
        graph: Graph,
        *,
        clock: Clock | None = None,
        replicas: Mapping[str, int] | None = None,
        codec: bool = False,
        progress: ProgressFn | None = None,
        grace: float = 5.0,
        stuck_s: float = 60.0,
        recorder: Recorder | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        super().__init__(graph, clock, recorder, replicas)
        self._quotas = quotas or Quotas()
        self._transfer = through_codec if codec else None
        self._progress = progress
        self._grace = grace
        self._stuck = stuck_s
        self._nodes: dict[str, Replicas] = {}
        self._watch: LoopWatch | None = None

    # life

    async def __aenter__(self) -> Self:
        began = self.clock.now()
        share_out((node.spec.resources for node in self.graph.nodes.values()), os.environ)
        line = self._line = self._line_type(self._transfer, self.recorder.add, self._after)
        self._nodes = {
            name: Replicas(node, self._counts.get(name, 1), self.clock, self._replica_type, self._quotas)
            for name, node in self.graph.nodes.items()
        }
        starts = []
        for name, replicas in self._nodes.items():
            handles = handles_of(replicas.node, self._nodes, line)
            stages = {replica.name: self._stage(name, replica.name, began) for replica in replicas.replicas}
            starts.append(replicas.start(handles, stages))
        self._watch = LoopWatch(line.loop, line.who)
        self._watch.start()
        startup = Call(self.clock, id="start")  # hooks may call other chainlets: `warm` often does
        try:
            with startup.activate():
                results = await asyncio.gather(*starts, return_exceptions=True)
        except BaseException:
            await self._stop(0.0)
            raise
        finally:
            startup.close()
        failed = next((result for result in results if isinstance(result, BaseException)), None)
        if failed is not None:
            await self._stop(0.0)
            raise failed
        return self

    def _stage(self, node: str, replica: str, began: float) -> Any:
        def told(state: State) -> None:
            if self._progress is not None:
                self._progress(Progress(node, replica, state, self.clock.now() - began))

        return told

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        faults = await self._stop(self._grace if error is None else 0.0)
        if faults and error is None:
            raise faults[0]

    async def _stop(self, grace: float) -> list[BaseException]:
        """Callers first: a node is drained before those that it depends on, which may still have work for after it.

        Everything is stopped, whatever fails on the way: what a `close` raised is returned.
        """
        faults: list[BaseException] = []
        for replicas in reversed(list(self._nodes.values())):
            drains = (replica.drain(grace) for replica in replicas.replicas)
            ends = await asyncio.gather(*drains, return_exceptions=True)
            faults += [end for end in ends if isinstance(end, BaseException)]
            await self._settle(grace)
        self._cancel_calls("the runtime stopped")
        if self._line is not None:
            await self._line.settled(1.0)
        self.recorder.flush()
        if self._watch is not None:
            self._watch.stop()
        return faults

    async def kill(self, node: str, index: int) -> None:
        self._nodes[node].replicas[index].kill()

    # seeing

    def load(self) -> list[ReplicaLoad]:
        return [replica.load() for replicas in self._nodes.values() for replica in replicas.replicas]

    def health(self) -> Health:
        loads = tuple(self.load())
        missing = [f"{name} has no replica that serves" for name in self._nodes if not self._serving(name)]
        stuck = [
            f"{load.replica} has not moved for {load.idle_s:.0f} s with {load.running} calls running"
            for load in loads
            if load.idle_s > self._stuck
        ]
        why = "; ".join([*missing, *stuck]) or ("" if loads else "not started")
        return Health(not why, why, loads)

    def _serving(self, name: str) -> bool:
        return any(replica.state == "ready" for replica in self._nodes[name].replicas)
