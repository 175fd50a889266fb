"""The reader's part in a stream that goes past its caller: it claims the items where they are made, and says what it
took of them. When it cannot get at them any more, the caller sends the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from chains.errors import ChainsError, ProtocolError
from chains.runtime.crossing import Giving
from chains.runtime.loans import TOKEN
from chains.wire.carrier import Carrier
from chains.wire.codec import Encoded
from chains.wire.pb import carrier_pb2 as pb
from chains.wire.settings import WireSettings
from chains.wire.sharing import Memory
from chains.wire.stub import Connection

REACH = 1.0
"""Seconds within which a maker must be reached; then the caller is asked to send the items."""
LONGEST = 256
"""Bytes that a reference's address and token may have."""
IDLE = 30.0
"""Seconds for which a connection that no claim uses is kept."""


class Makers:
    """Connections to the processes whose streams are read here. Those that this one calls anyway are `known`."""

    def __init__(
        self, settings: WireSettings, known: Callable[[str], Connection | None], memory: Memory | None = None
    ) -> None:
        self.connections: dict[str, Connection] = {}
        self._memory = memory
        self._settings = settings
        self._known = known
        self._users: dict[Connection, int] = {}
        self._timers: dict[Connection, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def reach(self, address: str) -> Connection:
        """The connection to `address`, dialled when there is none; `leave` it again."""
        connection = self._known(address) or self.connections.get(address)
        if connection is None or connection.state == "closed":
            connection = Connection(address, self._settings, lambda kind, sent: None, self._memory)
            self.connections[address] = connection
        if self.connections.get(address) is connection:
            self._users[connection] = self._users.get(connection, 0) + 1
            timer = self._timers.pop(connection, None)
            if timer is not None:
                timer.cancel()
        return connection

    def leave(self, connection: Connection) -> None:
        if connection in self._users:
            self._users[connection] -= 1
            if not self._users[connection]:
                self._timers[connection] = asyncio.get_running_loop().call_later(IDLE, self._drop, connection)

    def _drop(self, connection: Connection) -> None:
        del self._timers[connection], self._users[connection]
        if self.connections.get(connection.address) is connection:
            del self.connections[connection.address]
        task = asyncio.get_running_loop().create_task(connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for connection in self.connections.values():
            await connection.close()
        if self._closing:
            await asyncio.wait(self._closing)


class Reader(Protocol):
    """The stream argument that a claim is for."""

    def claimed(self, value: Encoded, size: int) -> None: ...
    def close(self, close: Any) -> None: ...
    def lost(self) -> None: ...


class Claim:
    """One claim. `received` and `taken` count its items; `closed` says that the stream's end came by it. Raises
    ProtocolError for a reference that is none."""

    def __init__(self, reader: Reader, makers: Makers, reference: Any, window: int) -> None:
        if not TOKEN <= len(reference.token) <= LONGEST or len(reference.address) > LONGEST:
            raise ProtocolError("a stream reference makes no sense", mend="name an address and a token of 16 bytes")
        self.received = self.taken = 0
        self.closed = self.over = False
        self._reader = reader
        self._makers = makers
        self._token: bytes = reference.token
        self._window = window
        self._under_way = 0
        self._connection = makers.reach(reference.address)  # so that it stands when it is needed
        self._carrier: Carrier | None = None
        self._number = 0
        self._giving = Giving(window)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None and not self.over:
            self._task = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(REACH):
                carrier = await self._connection.live()
        except (ChainsError, TimeoutError):
            self._lose()
            return
        frame = pb.Frame(open=pb.Open(claim=self._token, window=self._window))
        self._number = carrier.open(self, frame, {})
        self._carrier = carrier

    def took(self, size: int) -> bool:
        """The code took an item; whether it was the first."""
        self.taken += 1
        self._under_way -= size
        if self._carrier is not None:
            self._giving.give(self._carrier, self._number, 0, size)
        return self.taken == 1

    def met_end(self) -> None:
        if self._carrier is not None:
            self._carrier.credit(self._number, 0, 0, urgent=True, ended=True)

    def leave(self) -> None:
        """Nothing more is wanted. What was taken is told before."""
        if not self.over:
            self._ended()
            if self._carrier is not None:
                frame = pb.Frame(call=self._number, cancel=pb.Cancel(reason="its reader has ended"))
                self._carrier.send(self._number, frame)

    def _ended(self) -> None:
        self.over = True
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._makers.leave(self._connection)

    def _lose(self) -> None:
        if not self.over:
            self._ended()
            self._reader.lost()

    # what the maker says

    def on_item(self, stream: int, value: Encoded, size: int) -> None:
        if self.over or self.closed:
            return
        if self._under_way >= self._window:
            raise ProtocolError("the peer sends without credit", mend="wait for Credit frames")
        self._under_way += size
        self.received += 1
        self._reader.claimed(value, size)

    def on_close(self, stream: int, close: Any) -> None:
        if not self.over:
            self.closed = True
            self._reader.close(close)

    def on_end(self, end: Any, value: Encoded | None) -> None:
        self._lose()

    def on_lost(self, why: str) -> None:
        self._lose()

    def on_queued(self) -> None: ...
    def on_accepted(self, queued: float) -> None: ...
    def on_credit(self, credit: Any) -> None: ...
    def on_hold(self, held: bool) -> None: ...
    def on_cancel(self, reason: str) -> None: ...
    def on_turn(self, turn: Any) -> None: ...
    def on_account(self, account: Any) -> None: ...
    def on_played(self, turn: int, ms: float) -> None: ...
    def on_direct(self, sent: Any) -> None: ...
