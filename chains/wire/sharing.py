"""Large values through shared memory: what a process lends and reads, and who on a connection may read whose pool."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from chains.errors import ChainsError, ProtocolError, Unavailable
from chains.wire.borrowing import Reader, Spare
from chains.wire.pb import carrier_pb2 as pb
from chains.wire.segments import FOLDER, LEAST, MIB, PAGE, Bytes, Handle, Pool, copied, laid_out, sweep
from chains.wire.settings import WireSettings

log = logging.getLogger("chains")
AT_ONCE = 2 * MIB
"""Copies of up to this many bytes are made in the loop: a thread's two switches cost as much."""
LITTLE = 256 * 1024
"""Of a piece on its way in, so much is copied in the loop."""
SETTLED = 0.5
"""Seconds after which a process that was killed has let go of its locks."""

Lent = Callable[[Handle | None], None]
Fetched = Callable[[ChainsError | None], None]


class Memory:
    """The shared memory of this process, for all of its connections: a pool to lend from, and a reader of others'.

    `limit` bounds the pool's bytes; a quarter as much of the memory that values were copied to is kept for the next.
    Where the machine has none or too little, nothing is lent. Close it at the end: a process that does not is swept up
    after by others. `threads` copy; of one value `abreast` pieces at a time, since its other end needs as many.
    """

    def __init__(self, limit: int, folder: Path = FOLDER, least: int = LEAST) -> None:
        self.folder = folder
        self.pool = Pool(limit, folder, least)
        self.reader = Reader(folder, keep=limit // 4)
        cores = len(os.sched_getaffinity(0))
        self.abreast = max(1, min(4, cores // 2))
        self.threads = ThreadPoolExecutor(min(4, cores), "chains-copy")

    @classmethod
    def of(cls, settings: WireSettings) -> Self | None:
        """As the settings want it; None when they want none."""
        return cls(settings.shared_bytes) if settings.shared_memory else None

    def close(self) -> None:
        self.threads.shutdown(wait=False)
        self.pool.close()
        self.reader.close()
        sweep(self.folder)

    def settle(self, peer: str) -> None:
        """The peer has gone: take back what was lent to it, and remove what it may have left behind."""
        self.pool.forget(peer)
        sweep(self.folder)
        self.reader.sweep()


class Sharing:
    """The shared memory of one connection to `peer`. `readable`: it can read what we lend.

    Each side names its pool and says whether it can read the other's, in Shared frames. Until the peer has said so of
    ours, nothing is lent to it; what it lends is read from the pool that it has named, and from no other.
    """

    def __init__(self, memory: Memory, peer: str) -> None:
        self._memory = memory
        self._peer = peer
        self.readable = False
        self._pool = ""
        self._told = ""
        self._lost = False

    @property
    def spare(self) -> Spare:
        """Memory for values that come another way."""
        return self._memory.reader.spare

    def offer(self) -> Any:
        """What we have to say."""
        return pb.Frame(shared=pb.Shared(pool=self._memory.pool.name, readable=bool(self._pool)))

    def heard(self, shared: Any) -> Any:
        """What the peer says; our answer, or None when there is nothing new to say."""
        self.readable = shared.readable and bool(self._memory.pool.name)
        self._pool = shared.pool if self._memory.reader.reaches(shared.pool) else ""
        if shared.pool == self._told:
            return None
        self._told = shared.pool
        return self.offer()

    def lend(self, buffers: Sequence[memoryview]) -> Handle | None:
        """Copy the buffers to a slot; its handle, or None without room."""
        return self._memory.pool.put_all([buffer.cast("B") for buffer in buffers], self._peer)

    def lend_apart(self, pieces: Sequence[Sequence[memoryview]], then: Lent) -> None:
        """The same of each piece, in other threads; `then` hears the handles in order."""
        loop, threads = asyncio.get_running_loop(), self._memory.threads
        waiting, done, after = deque(enumerate(pieces)), dict[int, Handle | None](), iter(range(len(pieces)))
        head = next(after)

        def copy() -> None:
            try:
                number, piece = waiting.popleft()
            except IndexError:
                return
            handle = self._put(piece)
            with suppress(RuntimeError):  # the threads or the loop are closed: nobody waits
                threads.submit(copy)  # behind what others want copied; before the loop is woken and wants Python too
                loop.call_soon_threadsafe(told, number, handle)

        def told(number: int, handle: Handle | None) -> None:
            nonlocal head
            done[number] = self._unless_lost(handle)
            while head in done:
                then(done.pop(head))
                head = next(after, -1)

        for _ in range(min(self._memory.abreast, len(pieces))):
            threads.submit(copy)

    def _put(self, piece: Sequence[memoryview]) -> Handle | None:
        try:
            return self._memory.pool.put_all(piece, self._peer) if not self._lost else None
        except Exception as error:
            log.error("a value was not copied to shared memory", exc_info=error)
            return None

    def _unless_lost(self, handle: Handle | None) -> Handle | None:
        if handle is not None and self._lost:
            self._memory.pool.take_back(handle)
        return handle

    def fetch(self, slot: Any) -> list[memoryview]:
        """Copy the buffers out of the peer's slot and give it back. Raises ProtocolError when they do not lie there."""
        starts, length = laid_out(slot.sizes)
        try:
            memory = self._memory.reader.get(self._handle(slot, length))
        except Unavailable:  # the peer says that they do, and has not gone
            raise _missing() from None
        return [memory[start : start + size] for start, size in zip(starts, slot.sizes, strict=True)]

    def fetch_apart(self, slot: Any, targets: Sequence[memoryview], then: Fetched) -> None:
        """The same to where they belong, in another thread; `then` hears what is wrong, or None. Little is copied at
        once. Raises ProtocolError as `drop` does."""
        starts, length = laid_out(slot.sizes)
        handle = self._handle(slot, length)

        def take(source: Bytes) -> None:
            for start, target in zip(starts, targets, strict=True):
                copied(np.frombuffer(target, np.uint8), source[start : start + target.nbytes])

        def copy() -> ChainsError | None:
            try:
                self._memory.reader.read(handle, take)
            except Unavailable:
                return _missing()
            except ChainsError as error:
                return error
            except Exception as error:
                log.error("a value was not copied from shared memory", exc_info=error)
                return ProtocolError("a value in shared memory cannot be read", mend=_PEER)
            return None

        if length <= LITTLE:
            then(copy())
        else:
            self._apart(copy, then)

    def drop(self, slot: Any) -> None:
        """Give the slot back unread. Raises ProtocolError for one that cannot be the peer's."""
        self._memory.reader.drop(self._handle(slot, laid_out(slot.sizes)[1]))

    def _handle(self, slot: Any, length: int) -> Handle:
        if not self._pool:
            raise ProtocolError("the peer sends a value in shared memory that is not shared", mend="send it in chunks")
        return Handle(f"{self._pool}/{slot.name}", PAGE, length, slot.generation)

    def _apart(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        future = asyncio.get_running_loop().run_in_executor(self._memory.threads, work)
        future.add_done_callback(lambda done: None if done.cancelled() else then(done.result()))

    def lost(self) -> None:
        """The connection is gone. A peer that was killed is looked after once more, when the kernel is done with it."""
        self._lost, self.readable = True, False
        self._memory.settle(self._peer)
        asyncio.get_running_loop().call_later(SETTLED, self._memory.settle, self._peer)


def _missing() -> ProtocolError:
    return ProtocolError("a value is not in the slot that the peer names", mend=_PEER)


_PEER = "both sides must run the same version of chains"
