"""The caller's side of a hop to another process: an attempt goes out as an Open, and comes back as an End."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from chains.call import Hop, Turn, Undo
from chains.dsl.graph import Node
from chains.errors import Cancelled, ChainsError, Unavailable, revive
from chains.runtime.attempt import Attempt
from chains.runtime.crossing import Forward
from chains.runtime.deployment import ReplicaLoad
from chains.runtime.drive import Server
from chains.runtime.mirror import follow, mirrored
from chains.timing import Clock, Timing
from chains.wire import frames
from chains.wire.accounts import take_over
from chains.wire.carrier import Carrier
from chains.wire.codec import Encoded, decode, encode
from chains.wire.pb import carrier_pb2 as pb
from chains.wire.settings import WireSettings
from chains.wire.stub import Connection

Record = Callable[[Timing], None]


class Remote:
    """A replica in another process, as a place where attempts can run."""

    def __init__(
        self, node: Node, name: str, address: str, settings: WireSettings, clock: Clock, record: Record
    ) -> None:
        self.node = node
        self.name = name
        self.address = address
        self.clock = clock
        self.record = record
        self.carried: dict[Carried, None] = {}
        self._load = ReplicaLoad(node.name, name, "starting")
        self._reported = clock.now()
        self._state = ""
        self._connection = Connection(address, settings, self._told)

    def _told(self, kind: str, sent: Any) -> None:
        if kind == "load":
            self._reported = self.clock.now()
            self._load = ReplicaLoad(
                self.node.name,
                self.name,
                sent.state,
                sent.running,
                sent.queued,
                sent.streams,
                sent.turns,
                sent.draining,
                sent.queue_wait * 1e3,
                sent.idle,
            )

    @property
    def pressure(self) -> int:
        """As reported, or what is under way from here, whichever is more; -1 when it takes nothing."""
        if self._connection.state not in ("up", "connecting") or self._state == "dead":
            return -1
        load = self._load
        # One that starts is not ruled out: it may be ready before its report says so.
        if load.state in ("draining", "stopped", "failed", "dead"):
            return -1
        return max(load.running + load.queued, len(self.carried))

    def load(self) -> ReplicaLoad:
        """The last report, grown older: what waits or stands still does so since then. What was cancelled from here
        drains, also before the replica has heard of it. One that cannot be reached is as good as dead.
        """
        if self._state == "dead" or self._connection.state in ("down", "closed"):
            return ReplicaLoad(self.node.name, self.name, "dead")
        load, age = self._load, self.clock.now() - self._reported
        left = sum(1 for carried in self.carried if carried.left and carried.attempt.accepted)
        return ReplicaLoad(
            load.node,
            load.replica,
            load.state,
            load.running,
            load.queued,
            load.streams,
            load.turns,
            min(load.running, max(load.draining, left)),
            load.queue_wait_ms + (age * 1e3 if load.queued else 0.0),
            load.idle_s + (age if load.idle_s else 0.0),
        )

    async def reached(self) -> None:
        """Return once the connection stands. Raises as `Connection.live`."""
        await self._connection.live()

    async def gone(self) -> None:
        """It is known to be dead: nothing goes there any more, what was under way is lost."""
        self._state = "dead"
        self._load = ReplicaLoad(self.node.name, self.name, "dead")
        await self._connection.close()

    async def serve(self, attempt: Attempt) -> Any:
        """Run the attempt there. Streams come to `attempt.out`; a unary result is returned."""
        try:
            carrier = await self._connection.live()
        except ChainsError:
            attempt.gone = True
            raise
        carried = Carried(attempt, carrier, self)
        self.carried[carried] = None
        try:
            return await carried.run()
        finally:
            del self.carried[carried]


class Carried:
    """One attempt on its way. The caller's end of a call on a carrier."""

    __slots__ = (
        "_end",
        "_forwards",
        "_given",
        "_lost",
        "_turns",
        "_unwatch",
        "_value",
        "_waiter",
        "_wrong",
        "attempt",
        "carrier",
        "left",
        "number",
        "remote",
    )  # fmt: skip

    def __init__(self, attempt: Attempt, carrier: Carrier, remote: Remote) -> None:
        self.attempt = attempt
        self.carrier = carrier
        self.remote = remote
        self.number = 0
        self.left = False
        self._waiter: asyncio.Future[None] | None = None
        self._end: Any = None
        self._value: Encoded | None = None
        self._lost = ""
        self._wrong: ChainsError | None = None
        self._given = 0
        self._turns: dict[int, Turn] = {}
        self._unwatch: Undo | None = None
        self._forwards: list[Forward] = []

    @property
    def hop(self) -> Hop:
        return self.attempt.hop

    @property
    def over(self) -> bool:
        """Whether its End has come, or the connection has gone."""
        return self._end is not None or bool(self._lost)

    async def run(self) -> Any:
        attempt, hop = self.attempt, self.attempt.hop
        self._open(hop)
        hop.attach(self)
        out = attempt.out
        if out is not None:
            out.on_taken = self._taken
        try:
            await self._ended(hop)
            return self._outcome(hop)
        finally:
            if out is not None:
                out.on_taken = None
            for forward in self._forwards:
                forward.stop()
            if self._unwatch is not None:
                self._unwatch()
            for turn in list(self._turns.values()):
                turn.cancel("the code that made it has ended")
                turn.close()

    def _open(self, hop: Hop) -> None:
        attempt, call = self.attempt, hop.call
        frame = pb.Frame()
        opening = frame.open  # filled in where it stands: a message that is put into another one is copied
        opening.method = attempt.method.name
        opening.conversation = call.id
        opening.traceparent = f"00-{call.trace_id}-{call.parent_span or _NO_SPAN}-01"
        if attempt.out is not None:
            opening.window = attempt.out.window
        if call.tenant:
            opening.tenant = call.tenant
        if call.priority == "batch":
            opening.priority = frames.BATCH
        if call.affinity != call.id:
            opening.affinity = call.affinity
        if hop.timing.turn:
            opening.turn = hop.timing.turn
        if hop.held:
            opening.held = True
        left = hop.remaining()
        if left is not None:
            opening.time_left = left
        for number, stream in enumerate(attempt.inputs, 1):
            window = stream.source.channel.window
            opening.streams.append(pb.StreamArgument(name=stream.name, window=window))
            self._forwards.append(Forward(self, number, stream, window))
        start = hop.clock.now()
        streams = {stream.name for stream in attempt.inputs}
        arguments = {name: encode(value) for name, value in attempt.values.items() if name not in streams}
        hop.timing.serialise += hop.clock.now() - start
        self.number = self.carrier.open(self, frame, arguments)
        for forward in self._forwards:
            forward.start()
        self._unwatch = call.played.watch(self._played)

    async def _ended(self, hop: Hop) -> None:
        """Wait for the call's end, also after a cancel: until then the code over there runs its `finally`."""
        loop = asyncio.get_running_loop()
        while not self.over:
            self._waiter = loop.create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                if self.over:
                    raise
                self._leave(hop.reason or "cancelled")

    def _leave(self, reason: str) -> None:
        if not self.left:
            self.left = True
            self.carrier.urge(pb.Frame(call=self.number, cancel=pb.Cancel(reason=reason[:1024])))

    def _outcome(self, hop: Hop) -> Any:
        attempt, end = self.attempt, self._end
        if end is None:
            attempt.gone = True
            if self.left or hop.cancelled:
                raise asyncio.CancelledError
            raise Unavailable(f"{self.remote.name} went away during {attempt.method.label}", mend="call again")
        attempt.accepted = attempt.accepted or end.accepted
        producers = [stream.source.producer for stream in attempt.inputs]
        for made in take_over(hop.timing, end.account, hop.clock.now(), producers):
            self.remote.record(made)
        hop.timing.replica = self.remote.name
        if self._wrong is not None:
            raise self._wrong
        if self.left:
            raise asyncio.CancelledError
        if end.kind == frames.ERROR:
            raise revive(frames.detail_from(end.error), attempt.method.raises)
        if end.kind == frames.CANCELLED:
            raise Cancelled(end.reason or "the code was cancelled from within")
        if attempt.out is not None:
            return None
        if self._value is None:
            raise Unavailable(f"{self.remote.name} ended {attempt.method.label} without a value")
        return self._decoded(self._value, f"{attempt.method.label} returned")

    def _decoded(self, value: Encoded, where: str) -> Any:
        timing, clock = self.attempt.hop.timing, self.attempt.hop.clock
        start = clock.now()
        result = decode(value.header, value.buffers, self.attempt.method.result, where)
        timing.serialise += clock.now() - start
        return result

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # held with the hop

    def hold(self) -> None:
        self._hold(True)

    def resume(self) -> None:
        self._hold(False)

    def _hold(self, held: bool) -> None:
        if self._end is None and self.number:
            self.carrier.urge(pb.Frame(call=self.number, hold=pb.Hold(held=held)))

    # what the replica says

    def on_accepted(self, queued: float) -> None:
        attempt, timing = self.attempt, self.attempt.hop.timing
        attempt.accepted = True
        timing.accepted = now = attempt.hop.clock.now()
        timing.arrive(max(timing.opened, now - max(0.0, queued)), self.remote.name)

    def on_item(self, stream: int, value: Encoded, size: int) -> None:
        attempt, out = self.attempt, self.attempt.out
        if out is None or stream != 0:
            self._fail(Unavailable(f"{self.remote.name} sent an item that nobody waits for"))
            return
        if out.ended is not None:
            return
        try:
            item = self._decoded(value, f"{attempt.method.label} yielded")
        except ChainsError as error:
            self._fail(error)
            return
        attempt.accepted = attempt.delivered = True
        timing = attempt.hop.timing
        timing.items_out += 1
        if not timing.first_item:
            timing.first_item = attempt.hop.clock.now()
        out.push(item, size)

    def _fail(self, error: ChainsError) -> None:
        self._wrong = self._wrong or error
        self._leave("its items cannot be read")

    def _taken(self, size: int) -> None:
        out = self.attempt.out
        if self._end is None and out is not None:
            self._given += size
            urgent = self._given * 4 >= out.window
            if urgent:
                self._given = 0
            self.carrier.credit(self.number, 0, size, urgent=urgent)

    def on_credit(self, credit: Any) -> None:
        if 0 < credit.stream <= len(self._forwards):
            self._forwards[credit.stream - 1].credited(credit)

    def on_end(self, end: Any, value: Encoded | None) -> None:
        self._end, self._value = end, value
        self._wake()

    def on_lost(self, why: str) -> None:
        self._lost = why
        self._wake()

    def on_turn(self, turn: Any) -> None:
        """The callee's code makes turns of this conversation: whoever watches the call here sees them too."""
        hop = self.attempt.hop
        known = self._turns.get(turn.number)
        if known is None:
            known = mirrored(hop, turn.number, max(0.0, turn.opened))
            self._turns[turn.number] = known
        for mark in turn.marks:
            known.mark(mark.name, known.opened + mark.after)
        if follow(known, turn.event, turn.reason):
            del self._turns[turn.number]

    def _played(self, turn: int, ms: float) -> None:
        if not self.over:
            self.carrier.urge(pb.Frame(call=self.number, played=pb.Played(turn=turn, ms=ms)))

    def on_played(self, turn: int, ms: float) -> None: ...
    def on_close(self, stream: int, close: Any) -> None: ...
    def on_hold(self, held: bool) -> None: ...
    def on_cancel(self, reason: str) -> None: ...


_NO_SPAN = "0" * 15 + "1"


class RemoteNode:
    """The replicas of a node in other processes, as handles see them. The address book says which there are."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.remotes: dict[str, Remote] = {}
        self._ready = asyncio.Event()
        self._failed = ""

    def servers(self) -> list[Server]:
        return list(self.remotes.values())

    async def ready(self) -> None:
        if not self._ready.is_set():
            await self._ready.wait()
        if self._failed:
            raise Unavailable(f"{self.node.name} did not start", mend=self._failed)

    def opened(self) -> None:
        """Its replicas serve."""
        self._ready.set()

    def failed(self, why: str) -> None:
        """It will never serve."""
        self._failed = why
        self._ready.set()
