"""Reading the slots that other processes of this machine lend: the receiver's side of `segments`."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import numpy as np

from chains.errors import ProtocolError, Unavailable
from chains.wire.segments import (
    FOLDER,
    HEADER,
    MAGIC,
    MIB,
    PAGE,
    POOL_NAME,
    RETURNED,
    RETURNED_AT,
    SLOT_NAME,
    Bytes,
    Handle,
    copied,
)

T = TypeVar("T")
MAPPINGS = 128
"""The most slots that a reader keeps open; each is two file descriptors."""


class _Mapping:
    """A slot of somebody else's, open for reading."""

    __slots__ = ("__weakref__", "bytes", "fd", "size")

    def __init__(self, path: Path) -> None:
        """Raises OSError, or ValueError for what is no slot of this user."""
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        weakref.finalize(self, os.close, self.fd)
        stat = os.fstat(self.fd)
        if stat.st_uid != os.geteuid() or stat.st_size <= PAGE:
            raise ValueError("no slot")
        self.size = stat.st_size
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self.bytes: Bytes = np.frombuffer(mmap.mmap(self.fd, self.size, flags=flags, prot=mmap.PROT_READ), np.uint8)

    @property
    def gone(self) -> bool:
        return os.fstat(self.fd).st_nlink == 0

    def lent(self, handle: Handle) -> bool:
        """Whether the handle is good. Asked with the lock held: nobody takes it back then."""
        magic, generation, length = HEADER.unpack_from(self.bytes.data, 0)
        (returned,) = RETURNED.unpack_from(self.bytes.data, RETURNED_AT)
        return bool((magic, generation, length) == (MAGIC, handle.generation, handle.length) and returned != generation)

    def lock(self) -> bool:
        """Whether it could be had at once. It cannot while the owner takes the slot back: the handle is void then."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def unlock(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def give_back(self, generation: int) -> None:
        """The lock first: once the owner sees the generation, it may lend the slot to us again."""
        self.unlock()
        os.pwrite(self.fd, RETURNED.pack(generation), RETURNED_AT)


class Reader:
    """Opens the handles that other processes of this machine and user send; used from any thread.

    Slots stay mapped, up to 128 of them, and of the memory that large values are copied to up to `keep` bytes are kept
    for the next ones, once all that looks at them is gone: fresh memory costs as much as the copy.
    """

    def __init__(self, folder: Path = FOLDER, keep: int = 64 * MIB) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        self._mappings: OrderedDict[str, _Mapping] = OrderedDict()
        self.spare = Spare(keep)

    def reaches(self, pool: str) -> bool:
        """Whether the pool of that name can be read here: its sender runs on this machine, as this user."""
        if not POOL_NAME.fullmatch(pool):
            return False
        try:
            lock = os.stat(self.folder / pool / "lock", follow_symlinks=False)
        except OSError:
            return False
        return lock.st_uid == os.geteuid()

    def get(self, handle: Handle) -> memoryview:
        """The bytes, in memory of this process. Raises as `read`."""
        return self.read(handle, self._copied)

    def _copied(self, source: Bytes) -> memoryview:
        target = self.spare.array(source.nbytes)
        copied(target, source)
        return target.data

    def read(self, handle: Handle, take: Callable[[Bytes], T]) -> T:
        """What `take` makes of the bytes where they lie; then the slot is given back. Raises Unavailable when they are
        gone (taken back, or with their sender), ProtocolError for a handle that is none."""
        mapping = self._locked(handle)
        try:
            made = take(mapping.bytes[handle.offset : handle.offset + handle.length])
        except BaseException:
            mapping.unlock()
            raise
        mapping.give_back(handle.generation)
        return made

    @contextmanager
    def borrow(self, handle: Handle) -> Iterator[memoryview]:
        """The bytes where they lie, read-only, within the block; then the slot is given back. Raises as `read`.

        Whoever keeps a view beyond the block keeps the slot: it goes back when the last view does.
        """
        mapping = self._locked(handle)
        view = np.frombuffer(mapping.bytes.data, np.uint8, handle.length, handle.offset)
        weakref.finalize(view, mapping.give_back, handle.generation)
        shown = view.data
        del view
        try:
            yield shown
        finally:
            with suppress(BufferError):
                shown.release()
            del shown

    def drop(self, handle: Handle) -> None:
        """Give the slot back unread. A handle that is void already is dropped, too."""
        with suppress(Unavailable):
            self._locked(handle).give_back(handle.generation)

    def _locked(self, handle: Handle) -> _Mapping:
        """The handle's slot with a lock on it: until that is gone, its owner does not take it back."""
        mapping = self._mapped(handle.name)
        if handle.offset != PAGE or not 0 < handle.length <= mapping.size - PAGE:
            raise ProtocolError("a shared memory handle points outside of its slot", mend=_PEER)
        locked = mapping.lock()
        if not locked or not mapping.lent(handle):
            if locked:
                mapping.unlock()
            raise Unavailable("a value in shared memory was taken back before it was read", mend="call again")
        return mapping

    def _mapped(self, name: str) -> _Mapping:
        with self._lock:
            mapping = self._mappings.get(name)
            if mapping is None:
                mapping = self._mappings[name] = self._opened(name)
                if len(self._mappings) > MAPPINGS:
                    self._mappings.popitem(last=False)
            else:
                self._mappings.move_to_end(name)
            return mapping

    def _opened(self, name: str) -> _Mapping:
        if not SLOT_NAME.fullmatch(name):
            raise ProtocolError("a shared memory handle has no name of ours", mend=_PEER)
        try:
            try:
                return _Mapping(self.folder / name)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self._mappings.clear()  # no descriptors left: what is kept here can be opened again
                return _Mapping(self.folder / name)
        except OSError:
            raise Unavailable("a value in shared memory is gone, with its sender", mend="call again") from None
        except ValueError:
            raise ProtocolError("a shared memory handle names no slot of this user", mend=_PEER) from None

    def sweep(self) -> None:
        """Close what was removed meanwhile: as long as it is open here, its memory is not free."""
        with self._lock:
            for name in [name for name, mapping in self._mappings.items() if mapping.gone]:
                del self._mappings[name]

    def close(self) -> None:
        with self._lock:
            self._mappings.clear()
            self.spare.clear()


_PEER = "both sides must run the same version of chains"


class Spare:
    """Memory for large values, the last `keep` bytes of it used again once nothing looks at it any more."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._free: dict[int, Bytes] = {}  # by identity, the longest unused first

    @property
    def free(self) -> list[int]:
        """The sizes of what is kept, the longest unused first."""
        return [memory.nbytes for memory in self._free.copy().values()]

    def array(self, length: int) -> Bytes:
        """`length` bytes with any content."""
        size = -(-length // MIB) * MIB
        if length < MIB or size > self.keep:
            return np.empty(length, np.uint8)
        memory = self._taken(size)
        shown: Bytes = np.frombuffer(memory.data, np.uint8, length)
        weakref.finalize(shown, self._back, memory)
        return shown

    def _taken(self, size: int) -> Bytes:
        for key, memory in reversed(self._free.copy().items()):
            if memory.nbytes == size and self._free.pop(key, None) is not None:
                return memory
        return np.empty(size, np.uint8)

    def _back(self, memory: Bytes) -> None:
        """Called by the garbage collector too, in the middle of anything: no lock here, each step is one of Python."""
        self._free[id(memory)] = memory
        held = sum(self.free)
        for key, oldest in self._free.copy().items():
            if held <= self.keep:
                break
            if self._free.pop(key, None) is not None:
                held -= oldest.nbytes

    def clear(self) -> None:
        self._free.clear()
