"""Tensors between processes of one machine: pooled slots in shared memory, of which only a handle crosses the wire.

A `Pool` is the sender's: `put` copies a buffer into a slot and returns its handle, which a `borrowing.Reader` opens.
Where shared memory is missing, small or full, `put` returns None and the value goes over the wire in chunks.

A pool is a folder of files under /dev/shm, each one slot: a page of header, then the data. Nobody's death leaks:

- Its owner holds a lock (flock) on the file `lock` in the folder, which the kernel drops with the process. A folder
  whose lock can be had is nobody's any more: `sweep` removes it. No process id is kept, so none can be mistaken.
- A reader holds a shared lock on the slot while it reads. `take_back` takes the exclusive one, so it never pulls a slot
  from under a reader, and moves the slot's generation on, so that an old handle opens nothing.
- The reader gives a slot back by writing the generation that it has read into the header. The owner looks there when it
  needs a slot: no message is needed, and one that comes late frees nothing that was lent anew.

Plain mmap on files rather than multiprocessing.shared_memory: that one's resource tracker unlinks a segment as soon as
any process which has opened it ends, also one that only read; it has no lock to tell the dead by; and a segment there
has a size in pages of memory that may not exist, which is a SIGBUS in mid-copy, where posix_fallocate says so before.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import secrets
import struct
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Buffer = bytes | bytearray | memoryview
Bytes = npt.NDArray[np.uint8]

FOLDER = Path("/dev/shm")
MIB = 2**20
PAGE = 4096
SMALLEST = 64 * 1024
FILES = 256
"""The most slots of a pool; each is an open file."""
ALIGN = 64
"""Buffers that share a slot begin at multiples of this."""
LEAST = 256 * MIB
"""A file system smaller than this is left to others (containers have 64 MB by default)."""

HEADER = struct.Struct("=8sQQ")  # magic, generation, length
RETURNED = struct.Struct("=Q")  # the generation that was read, in a place of its own: others write it
RETURNED_AT = 64
MAGIC = b"chains\x00\x01"
POOL_NAME = re.compile(r"chains-[0-9a-f]{32}")
SLOT_NAME = re.compile(r"chains-[0-9a-f]{32}/[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Handle:
    """Where `length` bytes lie: the slot's name, their offset in it, and the slot's generation at that time."""

    name: str
    offset: int
    length: int
    generation: int


@dataclass(frozen=True, slots=True)
class Freed:
    """What dead owners had left."""

    files: int = 0
    bytes: int = 0


def laid_out(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where buffers of these sizes begin in a slot that they share, and the bytes that they take together."""
    starts, end = [], 0
    for size in sizes:
        start = -(-end // ALIGN) * ALIGN
        starts.append(start)
        end = start + size
    return starts, end


def copied(target: Bytes, source: Bytes) -> None:
    """Copy, outside of Python's lock."""
    np.copyto(target, source)


def available(folder: Path = FOLDER, least: int = LEAST) -> bool:
    """Whether pools can work there: the folder is there, may be written, and lies on `least` bytes or more."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return False
    return stat.f_blocks * stat.f_frsize >= least and os.access(folder, os.W_OK | os.X_OK)


class _Slot:
    """A file of the pool, mapped. `size` is the room for data."""

    __slots__ = ("bytes", "generation", "map", "name", "path", "peer", "size")

    def __init__(self, folder: Path, size: int) -> None:
        """Raises OSError when there is no room: all of it is reserved here, so that writing cannot fail."""
        key = secrets.token_hex(8)
        self.path = folder / key
        self.name = f"{folder.name}/{key}"
        self.size = size
        self.generation = 0
        self.peer = ""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self.path, flags, 0o600)
        try:
            os.posix_fallocate(fd, 0, PAGE + size)
            self.map = mmap.mmap(fd, PAGE + size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except BaseException:
            self.path.unlink()
            raise
        finally:
            os.close(fd)
        self.bytes: Bytes = np.frombuffer(self.map, np.uint8)

    @property
    def returned(self) -> bool:
        (generation,) = RETURNED.unpack_from(self.map, RETURNED_AT)
        return bool(generation == self.generation)

    def fill(self, parts: Sequence[memoryview]) -> Handle:
        """Copy the parts in and lend the slot anew."""
        starts, length = laid_out([part.nbytes for part in parts])
        self.renew(length)
        for start, part in zip(starts, parts, strict=True):
            if part.nbytes:
                copied(self.bytes[PAGE + start : PAGE + start + part.nbytes], np.frombuffer(part, np.uint8))
        return Handle(self.name, PAGE, length, self.generation)

    def renew(self, length: int) -> None:
        self.generation += 1
        HEADER.pack_into(self.map, 0, MAGIC, self.generation, length)

    def take_back(self) -> bool:
        """Void the handle that is out, unless somebody reads there now."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.renew(0)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def unlink(self) -> None:
        with suppress(FileNotFoundError):
            self.path.unlink()


class Pool:
    """Slots to lend, of sizes that are powers of two, at most `limit` bytes in all; used from any thread.

    It never takes the last quarter of the file system. Where shared memory is not available, every `put` is None.
    """

    def __init__(self, limit: int = 512 * MIB, folder: Path = FOLDER, least: int = LEAST) -> None:
        self.limit = limit
        self.bytes = 0
        self._lock = threading.RLock()
        self._free: dict[int, list[_Slot]] = {}
        self._lent: dict[int, dict[str, _Slot]] = {}
        self._count = 0
        self._folder: Path | None = None
        self._removal: weakref.finalize[..., Pool] | None = None
        if available(folder, least):
            sweep(folder)
            self._open(folder)
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _orphan(this()))

    def _open(self, parent: Path) -> None:
        """A folder with its lock held. A sweep may come between making it and locking it: then another one."""
        for _ in range(16):
            folder = parent / f"chains-{secrets.token_hex(16)}"
            try:
                folder.mkdir(mode=0o700)
                fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue
            except OSError:
                return
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                continue
            if os.fstat(fd).st_nlink:
                self._folder = folder
                self._removal = weakref.finalize(self, _close, folder, fd)  # also when the interpreter ends
                return
            os.close(fd)

    @property
    def name(self) -> str:
        """What a reader on the same machine can see (`Reader.reaches`); "" where there is no shared memory."""
        return self._folder.name if self._folder is not None else ""

    @property
    def lent(self) -> int:
        """Slots that are out and not yet given back."""
        with self._lock:
            return sum(not slot.returned for slots in self._lent.values() for slot in slots.values())

    def put(self, data: Buffer, peer: str = "") -> Handle | None:
        """Copy contiguous bytes into a slot that is lent to `peer`; None when there is no room or nothing to send."""
        return self.put_all([memoryview(data).cast("B")], peer)

    def put_all(self, parts: Sequence[memoryview], peer: str = "") -> Handle | None:
        """The same of several buffers, which lie in the slot as `laid_out` says."""
        _, length = laid_out([part.nbytes for part in parts])
        if not length:
            return None
        size = max(SMALLEST, 1 << (length - 1).bit_length())
        with self._lock:
            slot = self._slot(size) if self._folder is not None else None
        if slot is None:
            return None
        slot.peer = peer
        handle = slot.fill(parts)
        with self._lock:
            if self._folder is None:  # closed meanwhile
                return None
            self._lent.setdefault(size, {})[slot.name] = slot
        return handle

    def _slot(self, size: int) -> _Slot | None:
        free = self._free.setdefault(size, [])
        if not free:
            self._reap(size)
        if free:
            return free.pop()
        return self._grown(size)

    def _reap(self, size: int) -> None:
        """Take in what was given back."""
        lent = self._lent.get(size, {})
        for name in [name for name, slot in lent.items() if slot.returned]:
            self._free.setdefault(size, []).append(lent.pop(name))

    def _grown(self, size: int) -> _Slot | None:
        """A new slot within the bounds, if need be in place of free ones of other sizes."""
        assert self._folder is not None
        if size + PAGE > self.limit:
            return None
        if self.bytes + size + PAGE > self.limit or self._count >= FILES:
            self.trim()
        sweep(self._folder.parent)  # now and then; growing is rare
        try:
            stat = os.statvfs(self._folder)
            left = stat.f_bavail * stat.f_frsize - size - PAGE
            full = left < stat.f_blocks * stat.f_frsize // 4
            if full or self.bytes + size + PAGE > self.limit or self._count >= FILES:
                return None
            slot = _Slot(self._folder, size)
        except (OSError, ValueError):  # no room, no descriptors; or the folder was taken away
            return None
        self.bytes += size + PAGE
        self._count += 1
        return slot

    def take_back(self, handle: Handle) -> bool:
        """The handle will not be used: its receiver is gone, or has no need of it. False when it is being read."""
        with self._lock:
            for size, lent in self._lent.items():
                slot = lent.get(handle.name)
                if slot is not None and slot.generation == handle.generation:
                    return self._reclaim(size, slot)
        return True

    def forget(self, peer: str) -> int:
        """The peer is gone: take back what was lent to it. How many slots it still reads (0 when it is dead)."""
        with self._lock:
            lent = [(size, slot) for size, slots in self._lent.items() for slot in slots.values() if slot.peer == peer]
            return sum(not self._reclaim(size, slot) for size, slot in lent)

    def _reclaim(self, size: int, slot: _Slot) -> bool:
        if not slot.returned and not slot.take_back():
            return False
        del self._lent[size][slot.name]
        self._free.setdefault(size, []).append(slot)
        return True

    def trim(self) -> None:
        """Give the memory of the slots that are free back to the machine."""
        with self._lock:
            for size in list(self._lent):
                self._reap(size)
            for slots in self._free.values():
                for slot in slots:
                    slot.unlink()
                    self.bytes -= slot.size + PAGE
                    self._count -= 1
                slots.clear()

    def close(self) -> None:
        """Remove all of it. Who has a slot open may read on; what is not yet opened is gone."""
        with self._lock:
            self._folder = None
            self._free.clear()
            self._lent.clear()
            self.bytes = self._count = 0
            if self._removal is not None:
                self._removal()

    def _forked(self) -> None:
        """In a forked child the pool is the parent's: the child lets go of the lock and lends nothing."""
        self._lock = threading.RLock()
        self._folder = None
        removal = self._removal.detach() if self._removal is not None else None
        if removal is not None:
            os.close(removal[2][1])


def _orphan(pool: Pool | None) -> None:
    if pool is not None:
        pool._forked()


def sweep(folder: Path = FOLDER) -> Freed:
    """Remove the pools whose owner is dead, of this user. Any process may do this at any time."""
    files = size = 0
    try:
        names = [name for name in os.listdir(folder) if POOL_NAME.fullmatch(name)]
    except OSError:
        return Freed()
    for name in names:
        pool = folder / name
        try:
            if os.lstat(pool).st_uid != os.geteuid():
                continue
            fd = os.open(pool / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            with suppress(OSError):
                pool.rmdir()  # empty, since the lock goes last: half made or half removed
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                freed = _remove(pool)
                files, size = files + freed.files, size + freed.bytes
        except OSError:
            pass  # its owner lives
        finally:
            os.close(fd)
    return Freed(files, size)


def _close(pool: Path, fd: int) -> None:
    _remove(pool)
    os.close(fd)


def _remove(pool: Path) -> Freed:
    """Remove a pool's folder, its lock last; whoever does this holds the lock. Counts the slots."""
    files = size = 0
    with suppress(OSError):
        for entry in os.scandir(pool):
            if entry.name != "lock":
                size += entry.stat(follow_symlinks=False).st_size
                files += 1
                os.unlink(entry.path)
        os.unlink(pool / "lock")
        pool.rmdir()
    return Freed(files, size)
