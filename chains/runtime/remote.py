"""The caller's side of a hop to another process: an attempt goes out as an Open, and comes back as an End."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chains.call import Hop, Turn, Undo
from chains.dsl.graph import Node
from chains.errors import Cancelled, ChainsError, Unavailable, revive
from chains.policy.routing import Load
from chains.runtime.attempt import Attempt, Source
from chains.runtime.crossing import Forward
from chains.runtime.deployment import ReplicaLoad
from chains.runtime.loans import Loan
from chains.runtime.mirror import follow, learn, mirrored
from chains.timing import Clock, Timing
from chains.trace import traceparent
from chains.wire import frames
from chains.wire.accounts import Accounts
from chains.wire.carrier import Carrier
from chains.wire.codec import Encoded, decode, encode
from chains.wire.pb import carrier_pb2 as pb
from chains.wire.settings import WireSettings
from chains.wire.sharing import Memory
from chains.wire.stub import Connection

Record = Callable[[Timing], None]


class Remote:
    """A replica in another process, as a place where attempts can run."""

    def __init__(
        self,
        node: Node,
        name: str,
        address: str,
        settings: WireSettings,
        clock: Clock,
        record: Record,
        changed: Callable[[Remote], None],
        memory: Memory | None = None,
    ) -> None:
        self.node = node
        self.name = name
        self.address = address
        self.clock = clock
        self.record = record
        self.carried: dict[Carried, None] = {}
        self._changed = changed
        self._mine = 0
        self.direct = False
        self._load = ReplicaLoad(node.name, name, "starting")
        self._reported = clock.now()
        self._state = ""
        self._quiet: asyncio.Future[None] | None = None
        self._settings = settings
        self._connection = Connection(address, settings, self._told, memory)

    @property
    def connection(self) -> Connection:
        return self._connection

    def _told(self, kind: str, sent: Any) -> None:
        if kind == "hello":
            self.direct = sent.direct and self._settings.direct
        if kind == "load":
            self._reported = self.clock.now()
            self._mine = sent.mine
            self._load = ReplicaLoad(
                self.node.name,
                self.name,
                sent.state,
                running=sent.running,
                queued=sent.queued,
                batch=sent.batch,
                active=sent.active,
                streams=sent.streams,
                turns=sent.turns,
                draining=sent.draining,
                queue_wait_ms=sent.queue_wait * 1e3,
                idle_s=sent.idle,
            )
        if kind in ("load", "hello", "down"):
            self._changed(self)

    @property
    def open(self) -> bool:
        """Whether it takes calls, as far as is known here."""
        if self._connection.state not in ("up", "connecting") or self._state == "dead":
            return False
        # One that starts is not ruled out: it may be ready before its report says so.
        return self._load.state not in ("draining", "stopped", "failed", "dead")

    def standing(self) -> Load:
        """What a caller compares: the last report."""
        load = self._load
        return Load(load.running, load.queued, load.batch, self._mine, load.queue_wait_ms, self.open)

    def load(self) -> ReplicaLoad:
        """The last report, grown older: what waits or stands still does so since then. What was cancelled from here
        drains, also before the replica has heard of it. One that cannot be reached is as good as dead.
        """
        if self._state == "dead" or self._connection.state in ("down", "closed"):
            return ReplicaLoad(self.node.name, self.name, "dead")
        load, age = self._load, self.clock.now() - self._reported
        left = sum(1 for carried in self.carried if carried.left and carried.attempt.accepted)
        return replace(
            load,
            draining=min(load.running, max(load.draining, left)),
            queue_wait_ms=load.queue_wait_ms + (age * 1e3 if load.queued else 0.0),
            idle_s=load.idle_s + (age if load.idle_s else 0.0),
        )

    async def reached(self) -> None:
        """Return once the connection stands. Raises as `Connection.live`."""
        await self._connection.live()

    async def gone(self) -> None:
        """It is known to be dead: nothing goes there any more, what was under way is lost."""
        self._state = "dead"
        self._load = ReplicaLoad(self.node.name, self.name, "dead")
        self._changed(self)
        await self._connection.close()

    async def quiet(self) -> None:
        """Return once nothing is under way there."""
        while self.carried:
            self._quiet = self._quiet or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._quiet)

    def send(self, attempt: Attempt, over: Callable[[], None]) -> Carried | None:
        """Let the attempt leave now; None when that is not possible: `serve` waits, or says why. `over` is called once
        it has ended."""
        carrier = self._connection.carrier
        if carrier is None or self._connection.state != "up":
            return None
        carried = Carried(attempt, carrier, self, over)
        try:
            carried.begin()
        except Exception:  # its arguments cannot cross: that is said where it is waited for
            return None
        return carried

    async def serve(self, attempt: Attempt) -> Any:
        """Run the attempt there. Streams come to `attempt.out`; a unary result is returned."""
        try:
            carrier = await self._connection.live()
        except ChainsError:
            attempt.gone = True
            raise
        carried = Carried(attempt, carrier, self)
        carried.begin()
        await carried.ended()
        return carried.outcome()

    def ended(self, carried: Carried) -> None:
        """It is under way no longer."""
        del self.carried[carried]
        if self._quiet is not None and not self.carried:
            self._quiet.set_result(None)
            self._quiet = None


class Carried:
    """One attempt on its way, the caller's end of a call on a carrier. `told` is called once it is over."""

    __slots__ = ("_accounts", "_end", "_forwards", "_given", "_lost", "_told", "_turns", "_unwatch", "_value",
                 "_waiter", "_waits", "_wrong", "attempt", "carrier", "left", "loans", "number", "remote")  # fmt: skip

    def __init__(
        self, attempt: Attempt, carrier: Carrier, remote: Remote, told: Callable[[], None] | None = None
    ) -> None:
        self.attempt = attempt
        self.carrier = carrier
        self.remote = remote
        self.number = 0
        self.left = False
        self._told = told
        self._accounts = Accounts(attempt.hop.timing)
        self._waiter: asyncio.Future[None] | None = None
        self._end: Any = None
        self._value: Encoded | None = None
        self._lost = ""
        self._wrong: ChainsError | None = None
        self._given = 0
        self._waits = False
        self._turns: dict[int, Turn] = {}
        self._unwatch: Undo | None = None
        self._forwards: list[Forward] = []
        self.loans: dict[bytes, Loan] = {}

    @property
    def hop(self) -> Hop:
        return self.attempt.hop

    @property
    def over(self) -> bool:
        """Whether its End has come, or the connection has gone."""
        return self._end is not None or bool(self._lost)

    @property
    def server(self) -> Remote:
        return self.remote

    def begin(self) -> None:
        """Send the Open. Raises InvalidValue or LimitExceeded for what cannot travel."""
        attempt = self.attempt
        self._open(attempt.hop)
        self.remote.carried[self] = None
        attempt.carried = self
        attempt.hop.attach(self)
        if attempt.out is not None:
            attempt.out.on_taken = self._taken

    def _arrived(self) -> None:
        """It is over: nothing of it stays behind, and whoever waits for it is told."""
        attempt = self.attempt
        attempt.carried = None
        if attempt.out is not None:
            attempt.out.on_taken = None
        for forward in self._forwards:
            forward.stop()
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        for turn in list(self._turns.values()):
            follow(turn, "cancelled", "the code that made it has ended")
        self.remote.ended(self)
        if self._told is not None:
            self._told()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _open(self, hop: Hop) -> None:
        attempt, call = self.attempt, hop.call
        frame = pb.Frame()
        opening = frame.open  # filled in where it stands: a message that is put into another one is copied
        opening.method = attempt.method.name
        opening.conversation = call.id
        opening.traceparent = traceparent(call.trace_id, call.span, call.sampled)
        opening.span, opening.accounts = hop.timing.span, True
        if call.tracestate:
            opening.tracestate = call.tracestate
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
        if attempt.prefix:
            opening.prefix_digest = bytes.fromhex(attempt.prefix)
        if hop.held:
            opening.held = True
        left = hop.remaining()
        if left is not None:
            opening.time_left = left
        for number, stream in enumerate(attempt.inputs, 1):
            window = stream.source.channel.window
            forward = Forward(self, number, stream, window, self._loan)
            opening.streams.add(name=stream.name, window=window, reference=forward.reference)
            self._forwards.append(forward)
        start = hop.clock.now()
        streams = {stream.name for stream in attempt.inputs}
        arguments = {name: encode(value) for name, value in attempt.values.items() if name not in streams}
        hop.timing.serialise += hop.clock.now() - start
        if not attempt.may_queue and sum(value.nbytes for value in arguments.values()) <= frames.INLINE:
            opening.send_back = True
        self.number = self.carrier.open(self, frame, arguments)
        for forward in self._forwards:
            forward.start()
        self._unwatch = call.played.watch(self._played)

    def _loan(self, source: Source) -> Loan | None:
        """How a stream that a third process makes can go past this one; None when one of the two cannot do that."""
        made = source.elsewhere()
        if made is None or not self.remote.direct or not made.carried.remote.direct:
            return None
        return Loan(made.carried, made.carried.remote.address, made.first, made.idle)

    async def ended(self) -> None:
        """Wait for the call's end, also after a cancel: until then the code over there runs its `finally`."""
        while not self.over:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                if self.over:
                    raise
                self.leave(self.hop.reason or "cancelled")

    def leave(self, reason: str) -> None:
        if not self.left and not self.over:
            self.left = True
            self.carrier.urge(pb.Frame(call=self.number, cancel=pb.Cancel(reason=reason[:1024])))

    def outcome(self) -> Any:
        """What the End brought, once it is there. Raises what it says, and Unavailable when none came."""
        attempt, end, hop = self.attempt, self._end, self.attempt.hop
        if end is None:
            attempt.gone = True
            # Who has the Open and has not said that the call waits may have begun it, and died before it said so. Who
            # said goodbye has begun nothing that it has not told of.
            carrier, number = self.carrier, self.number
            told = carrier.goodbye and number not in carrier.unread
            attempt.accepted = attempt.accepted or (carrier.departed(number) and not self._waits and not told)
            if self.left or hop.cancelled:
                raise asyncio.CancelledError
            raise Unavailable(f"{self.remote.name} went away during {attempt.method.label}", mend="call again")
        attempt.accepted = attempt.accepted or end.accepted
        producers = [stream.source.producer for stream in attempt.inputs]
        now = hop.clock.now() - max(0.0, end.kept)
        for made in self._accounts.end(end.account, now, producers):
            self.remote.record(made)
        if end.kept:
            outcome = _OUTCOMES.get(end.kind, "done")
            hop.timing.finish(max(now, hop.timing.accepted), outcome, end.error.type_name)
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
        value, self._value = self._value, None  # large arrays do not wait for the garbage collector
        return self._decoded(value, f"{attempt.method.label} returned")

    def _decoded(self, value: Encoded, where: str) -> Any:
        timing, clock = self.attempt.hop.timing, self.attempt.hop.clock
        start = clock.now()
        result = decode(value.header, value.buffers, self.attempt.method.result, where)
        timing.serialise += clock.now() - start
        return result

    # held with the hop

    def hold(self) -> None:
        self._hold(True)

    def resume(self) -> None:
        self._hold(False)

    def _hold(self, held: bool) -> None:
        if self._end is None and self.number:
            self.carrier.urge(pb.Frame(call=self.number, hold=pb.Hold(held=held)))

    # what the replica says

    def on_queued(self) -> None:
        self._waits = True

    def on_accepted(self, queued: float) -> None:
        attempt, timing = self.attempt, self.attempt.hop.timing
        attempt.accepted, self._waits = True, False
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
        self.leave("its items cannot be read")

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

    def on_direct(self, sent: Any) -> None:
        if sent.step == pb.Direct.LENT:
            loan = self.loans.get(sent.token)
            if loan is not None:
                loan.given()
        elif 0 < sent.stream <= len(self._forwards):
            self._forwards[sent.stream - 1].told(sent)

    def on_end(self, end: Any, value: Encoded | None) -> None:
        self._end, self._value = end, value
        self._arrived()

    def on_lost(self, why: str) -> None:
        self._lost = why
        self._arrived()

    def on_turn(self, turn: Any) -> None:
        """The callee's code makes turns of this conversation: whoever watches the call here sees them too."""
        now = self.hop.clock.now()
        heard = self._accounts.began(turn.elapsed, now) + turn.elapsed if turn.elapsed else now
        opened = heard - max(0.0, turn.opened)
        known = self._turns.get(turn.number)
        if known is None:
            known = self._turns[turn.number] = mirrored(self.hop, turn.number, now - opened)
        learn(known, turn, opened)
        if follow(known, turn.event, turn.reason):
            del self._turns[turn.number]

    def on_account(self, account: Any) -> None:
        for made in self._accounts.progress(account, self.hop.clock.now()):
            self.remote.record(made)

    def _played(self, turn: int, ms: float) -> None:
        if not self.over:
            self.carrier.urge(pb.Frame(call=self.number, played=pb.Played(turn=turn, ms=ms)))

    def on_played(self, turn: int, ms: float) -> None: ...
    def on_close(self, stream: int, close: Any) -> None: ...
    def on_hold(self, held: bool) -> None: ...
    def on_cancel(self, reason: str) -> None: ...


_OUTCOMES = {frames.ERROR: "error", frames.CANCELLED: "cancelled"}
