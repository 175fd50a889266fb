"""A process of one replica: `python -m chains.runtime.host FD`, where FD is a socket to the process that started it.

Over that socket go lines of JSON: what to host, the address book of the others, the order to drain; back come the
address, the stages of the start and the end. When the socket ends, so does this process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import sys
from typing import Any

from chains.call import Call
from chains.dsl.graph import Graph, Node, load
from chains.errors import ChainsError, StartError
from chains.policy.quota import Quotas
from chains.policy.routing import Routing
from chains.runtime.claims import Makers
from chains.runtime.conversations import Conversations
from chains.runtime.deployment import State
from chains.runtime.drive import Line
from chains.runtime.handle import handles_of
from chains.runtime.hosting import Host
from chains.runtime.nodes import Place, RemoteNode
from chains.runtime.replica import Replica
from chains.spans import Recorder
from chains.timing import LoopClock, Timing
from chains.wire.link import CLOSING
from chains.wire.server import WireServer
from chains.wire.settings import Tls, WireSettings
from chains.wire.sharing import Memory
from chains.wire.stub import Connection


class Hosted(Conversations):
    """The replica of this process, its server, and its way to the others."""

    def __init__(
        self,
        graph: Graph,
        node: Node,
        name: str,
        settings: WireSettings,
        quotas: Quotas | None = None,
        routing: Routing | None = None,
        machine: str = "",
    ) -> None:
        clock = LoopClock()
        super().__init__(clock, Recorder(clock))
        self.replica = Replica(node, name, clock, quotas)
        self.memory = Memory.of(settings)
        self.makers = Makers(settings, self._known, self.memory)
        self.host = Host(self.replica, self._after, self.makers)
        self.line = Line(None, self._record, self._after)
        self.targets = {
            edge.target: RemoteNode(
                graph.nodes[edge.target],
                settings,
                clock,
                self._record,
                quotas=quotas,
                routing=routing,
                machine=machine,
                memory=self.memory,
            )
            for edge in node.edges.values()
        }
        host = self.host
        self.server = WireServer(settings, node.name, name, host.answer, host.joined, host.left, self.memory)

    def _record(self, timing: Timing) -> None:
        self.host.record(timing)
        self.recorder.add(timing)

    def know(self, book: dict[str, list[list[str]]]) -> None:
        """Where the replicas of the others are."""
        for name, target in self.targets.items():
            target.update({replica: Place(address) for replica, address in book[name]})

    def _known(self, address: str) -> Connection | None:
        """The connection on which this process calls the replica at `address`, if it does."""
        remotes = (remote for target in self.targets.values() for remote in target.remotes.values())
        return next((remote.connection for remote in remotes if remote.address == address), None)

    async def start(self, stage: Any) -> None:
        def entered(state: State) -> None:
            self.host.changed()
            stage(state)

        startup = Call(self.clock, id="start")  # hooks may call other chainlets: `warm` often does
        try:
            with startup.activate():
                await self.replica.start(handles_of(self.replica.node, self.targets, self.line), entered)
        finally:
            startup.close()
        gc.collect()
        gc.freeze()  # what was loaded stays: collections need not look at it again and again

    async def lost(self, replica: str) -> None:
        for target in self.targets.values():
            await target.lost(replica)

    async def stop(self, grace: float) -> None:
        """Drain, and leave nothing behind. Raises StartError when the user's `close` failed."""
        try:
            await self.replica.drain(grace)
            await self.host.keeps.settled(grace)
        finally:
            await self._settle(grace)
            self._cancel_calls("the runtime stopped")
            await self.server.stop(grace + 2 * CLOSING + 1.0)
            for target in self.targets.values():
                await target.close()
            await self.makers.close()
            if self.memory is not None:
                self.memory.close()


class _Parent:
    """The socket to the process that started this one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def tell(self, **message: Any) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def told(self) -> dict[str, Any]:
        line = await self._reader.readline()
        if not line:
            os._exit(1)  # nobody is left to serve
        message: dict[str, Any] = json.loads(line)
        return message

    async def end(self) -> None:
        await self._writer.drain()
        self._writer.close()


async def serve(parent: _Parent) -> None:
    """Host what the parent asks for until it says stop."""
    wanted = await parent.told()
    try:
        graph = load(wanted["target"])
        if wanted["node"] not in graph.nodes:
            raise StartError(
                f"{wanted['target']} has no chainlet {wanted['node']}", mend="build the chain from its file"
            )
        tls = None if wanted["tls"] is None else Tls(**wanted["tls"])
        settings = WireSettings(**{**wanted["settings"], "tls": tls})
        quotas, routing = Quotas.read(wanted["quotas"]), Routing(**wanted["routing"])
        hosted = Hosted(graph, graph.nodes[wanted["node"]], wanted["name"], settings, quotas, routing)
        parent.tell(listening=await hosted.server.start())
    except ChainsError as error:
        parent.tell(failed=error.message, mend=error.mend)
        await parent.end()
        return
    starting: asyncio.Task[None] | None = None
    while True:
        message = await parent.told()
        if "book" in message:
            hosted.know(message["book"])
            starting = asyncio.ensure_future(_start(hosted, parent))
        elif "ready" in message:
            if message["ready"] in hosted.targets:
                hosted.targets[message["ready"]].opened()
        elif "failed" in message:
            if message["failed"] in hosted.targets:
                hosted.targets[message["failed"]].failed(message["why"])
        elif "lost" in message:
            await hosted.lost(message["lost"])
        elif "stop" in message:
            if starting is not None and not starting.done():
                os._exit(0)  # nothing has begun that would have to end well
            await _stop(hosted, parent, message["stop"])
            return


async def _start(hosted: Hosted, parent: _Parent) -> None:
    try:
        await hosted.start(lambda state: parent.tell(stage=state))
    except ChainsError as error:
        parent.tell(failed=error.message, mend=error.mend)


async def _stop(hosted: Hosted, parent: _Parent, grace: float) -> None:
    fault, mend = "", ""
    try:
        await hosted.stop(grace)
    except ChainsError as error:
        fault, mend = error.message, error.mend
    parent.tell(stopped=fault, mend=mend)
    await parent.end()


def _die_with_parent() -> None:
    """Where Linux can: be killed when the parent is, even while blocking code keeps the loop from noticing."""
    try:
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (OSError, AttributeError):
        pass  # the socket's end is noticed all the same


async def _main(fd: int) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd))
    await serve(_Parent(reader, writer))


def _runner() -> asyncio.Runner:
    """With uvloop where that is installed: a hop costs less CPU on it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    _die_with_parent()
    with _runner() as runner:
        runner.run(_main(int(sys.argv[1])))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of blocking code that never ends must not keep the process
