"""The chain on this machine, each replica in a process of its own: no core, no interpreter lock and no crash is shared.

`async with Processes(graph) as runtime`: the same interface as in one process. The hops go over the wire.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from chains.dsl.graph import Graph, Node
from chains.errors import StartError
from chains.policy.quota import Quotas
from chains.policy.routing import Routing
from chains.runtime.conversations import ChainRuntime
from chains.runtime.cores import settings as cores_settings
from chains.runtime.cores import share
from chains.runtime.deployment import Health, Progress, ProgressFn, ReplicaLoad
from chains.runtime.drive import Line
from chains.runtime.nodes import Place, RemoteNode, health_of
from chains.runtime.remote import Remote
from chains.runtime.target import target_of
from chains.spans import Recorder
from chains.timing import Clock
from chains.wire.settings import WireSettings, new_token
from chains.wire.sharing import Memory

SHOWN = 40
"""How many lines of a dead process's stderr are shown."""
LINE = 2**22


class Process:
    """One replica's process, as its parent sees it."""

    def __init__(self, node: Node, name: str) -> None:
        self.node = node
        self.name = name
        self.address = ""
        self.dead = asyncio.Event()
        self.listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stopped: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        self._lines: deque[str] = deque(maxlen=SHOWN)
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def spawn(self, environ: dict[str, str], stage: Any) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "chains.runtime.host",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                env=environ,
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # an interrupt at the terminal is the parent's to handle
                limit=LINE,
            )
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=LINE)
        self._tasks = [asyncio.ensure_future(self._listen(reader, stage)), asyncio.ensure_future(self._errors())]

    def tell(self, **message: Any) -> None:
        if self._writer is not None and not self.dead.is_set():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def _listen(self, reader: asyncio.StreamReader, stage: Any) -> None:
        while line := await _line(reader):
            message = json.loads(line)
            if "listening" in message:
                self.address = message["listening"]
                _set(self.listening, self.address)
            elif "stage" in message:
                stage(message["stage"])
                if message["stage"] == "ready":
                    _set(self.ready, None)
            elif "failed" in message:
                self._fail(StartError(message["failed"], mend=message["mend"]))
            elif "stopped" in message:
                _set(self.stopped, (message["stopped"], message["mend"]))
        assert self._process is not None
        code = await self._process.wait()
        self.dead.set()
        _set(self.stopped, ("", ""))
        shown = "".join(f"\n  {line}" for line in self._lines)
        self._fail(StartError(f"the process of {self.name} ended with code {code}{shown}"))

    def _fail(self, error: StartError) -> None:
        for future in (self.listening, self.ready):
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever waits for it is told; nobody need be

    async def _errors(self) -> None:
        """What it writes to stderr is seen here, under its name."""
        assert self._process is not None and self._process.stderr is not None
        while line := await _line(self._process.stderr):
            text = line.decode(errors="replace").rstrip("\n")
            self._lines.append(text)
            print(f"[{self.name}] {text}", file=sys.stderr)  # noqa: T201

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
        await self.dead.wait()

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readline()
    except ConnectionError:
        return b""
    except ValueError:  # longer than any limit
        return b"(a line that is too long)\n"


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


class Processes(ChainRuntime):
    """The runtime with a process for each replica. Raises StartError, with what the process has to say, when one does
    not start.

    Parameters as of the in-process runtime, but a chainlet that is not in `replicas` has its `scaling.min`, at least
    1, and stays at that. `wire` sets where the replicas listen and how (loopback, and a token that is drawn anew, when
    not given), `routing` how callers choose among them. The chain must stand in a file or module, which each process
    loads.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        clock: Clock | None = None,
        replicas: Mapping[str, int] | None = None,
        progress: ProgressFn | None = None,
        grace: float = 5.0,
        stuck_s: float = 60.0,
        recorder: Recorder | None = None,
        wire: WireSettings | None = None,
        quotas: Quotas | None = None,
        routing: Routing | None = None,
    ) -> None:
        super().__init__(graph, clock, recorder, replicas)
        self._progress = progress
        self._grace = grace
        self._stuck = stuck_s
        self._quotas = quotas or Quotas()
        self._routing = routing or Routing()
        self._wire = wire or WireSettings(token=new_token())
        self._target = target_of(graph)
        self._nodes: dict[str, RemoteNode] = {}
        self._processes: dict[str, list[Process]] = {}
        self._watches: list[asyncio.Task[None]] = []
        self._memory: Memory | None = None
        self._stopping = False

    # life

    async def __aenter__(self) -> Self:
        self._line = Line(None, self.recorder.add, self._after)
        self._processes = {
            name: [Process(node, f"{name}#{index}") for index in range(self._count(node))]
            for name, node in self.graph.nodes.items()
        }
        try:
            await self._start()
        except BaseException:
            await self._stop(0.0, at_once=True)
            raise
        return self

    def _count(self, node: Node) -> int:
        return self._counts.get(node.name, max(1, node.spec.scaling.min))

    def _each(self) -> list[Process]:
        return [process for processes in self._processes.values() for process in processes]

    async def _start(self) -> None:
        began = self.clock.now()
        environ = self._environ()
        every = self._each()
        await asyncio.gather(
            *(
                process.spawn({**environ, **process.node.spec.environment.env}, self._stage(process, began))
                for process in every
            )
        )
        wire = {name: value for name, value in _plain(self._wire).items() if name != "tls"}
        tls = None if self._wire.tls is None else _plain(self._wire.tls)
        for process in every:
            process.tell(
                target=self._target,
                node=process.node.name,
                name=process.name,
                settings=wire,
                tls=tls,
                quotas=self._quotas.plain(),
                routing=_plain(self._routing),
            )
        await _all(process.listening for process in every)
        book = {name: [[p.name, p.address] for p in processes] for name, processes in self._processes.items()}
        for process in every:
            process.tell(book=book)
        await _all(self._opened(name) for name in self._processes)
        memory = self._memory = Memory.of(self._wire)
        nodes = {
            name: RemoteNode(
                node,
                self._wire,
                self.clock,
                self.recorder.add,
                quotas=self._quotas,
                routing=self._routing,
                memory=memory,
            )
            for name, node in self.graph.nodes.items()
        }
        for name, processes in self._processes.items():
            nodes[name].update({process.name: Place(process.address) for process in processes})
        for process in every:
            remote = nodes[process.node.name].remotes[process.name]
            self._watches.append(asyncio.ensure_future(self._watch(process, remote)))
        self._nodes = nodes
        for node in nodes.values():
            for remote in node.remotes.values():
                await remote.reached()
            node.opened()

    async def _opened(self, node: str) -> None:
        """Tell everybody when a node serves, or that it never will."""
        try:
            await _all(process.ready for process in self._processes[node])
        except StartError as error:
            for process in self._each():
                process.tell(failed=node, why=error.message)
            raise
        for process in self._each():
            process.tell(ready=node)

    def _stage(self, process: Process, began: float) -> Any:
        def told(state: Any) -> None:
            if self._progress is not None:
                self._progress(Progress(process.node.name, process.name, state, self.clock.now() - began))

        return told

    def _environ(self) -> dict[str, str]:
        threads = share(len(os.sched_getaffinity(0)), (node.spec.resources for node in self.graph.nodes.values()))
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        return {**os.environ, **cores_settings(threads, os.environ), "PYTHONPATH": path}

    async def _watch(self, process: Process, remote: Remote) -> None:
        """When a process dies, nobody goes there any more."""
        await process.dead.wait()
        await remote.gone()
        if not self._stopping:
            for other in self._each():
                other.tell(lost=process.name)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        faults = await self._stop(self._grace if error is None else 0.0)
        if faults and error is None:
            raise faults[0]

    async def _stop(self, grace: float, *, at_once: bool = False) -> list[StartError]:
        """Callers first, as in one process. What does not end by itself is killed."""
        self._stopping = True
        faults: list[StartError] = []
        for processes in reversed(list(self._processes.values())):
            ends = await asyncio.gather(*(self._end(process, grace, at_once) for process in processes))
            faults += [StartError(message, mend=mend) for message, mend in ends if message]
            await self._settle(grace)
        self._cancel_calls("the runtime stopped")
        if self._watches:
            await asyncio.wait(self._watches)
        if self._line is not None:
            await self._line.settled(1.0)
        for process in self._each():
            await process.close()
        if self._memory is not None:
            self._memory.close()
        self.recorder.flush()
        return faults

    async def _end(self, process: Process, grace: float, at_once: bool) -> tuple[str, str]:
        if process._process is None:
            return "", ""
        if not at_once and not process.dead.is_set():
            process.tell(stop=grace)
            await asyncio.wait((process.stopped,), timeout=grace + 10.0)
        fault = process.stopped.result() if process.stopped.done() else ("", "")
        if at_once or not process.stopped.done():
            await process.kill()
        await process.dead.wait()
        return fault

    async def kill(self, node: str, index: int) -> None:
        """SIGKILL to a replica's process."""
        process = self._processes[node][index]
        await process.kill()
        await self._nodes[node].remotes[process.name].gone()

    # seeing

    def load(self) -> list[ReplicaLoad]:
        return [remote.load() for node in self._nodes.values() for remote in node.remotes.values()]

    def health(self) -> Health:
        return health_of(self._nodes, self._stuck)


async def _all(waits: Any) -> None:
    """All of them, or the first error once it is there."""
    await asyncio.gather(*waits)


def _plain(settings: Any) -> dict[str, Any]:
    return asdict(settings)
