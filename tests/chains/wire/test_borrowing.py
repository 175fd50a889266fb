"""The reader's memory: mapped slots and buffers that are used again. What it reads is tested in test_segments.py."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from chains.errors import ProtocolError, Unavailable
from chains.wire.borrowing import MAPPINGS, Reader
from chains.wire.segments import MIB, PAGE, Handle, Pool


@pytest.fixture
def pool(folder: Path) -> Iterator[Pool]:
    made = Pool(1024 * MIB, folder, least=0)
    yield made
    made.close()


def got(pool: Pool, reader: Reader, data: bytes) -> memoryview:
    handle = pool.put(data)
    assert handle is not None
    return reader.get(handle)


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_memory_is_used_again_when_nothing_looks_at_it(pool: Pool, folder: Path) -> None:
    reader = Reader(folder)
    first = got(pool, reader, b"a" * 2 * MIB)
    where, array = address(first), np.frombuffer(first, np.float32)[10:]
    del first
    second = got(pool, reader, b"b" * 2 * MIB)
    assert address(second) != where and bytes(array[:1].data) == b"aaaa"  # a view of a view still looks at it
    del array
    third = got(pool, reader, b"c" * (2 * MIB - 5))
    assert address(third) == where and third.nbytes == 2 * MIB - 5 and third == b"c" * third.nbytes


def test_memory_that_is_kept_is_bounded(pool: Pool, folder: Path) -> None:
    reader = Reader(folder, keep=4 * MIB)
    views = [got(pool, reader, bytes(2 * MIB)) for _ in range(4)]
    del views
    assert reader.spare.free == [2 * MIB] * 2
    got(pool, reader, bytes(3 * MIB))
    assert reader.spare.free == [3 * MIB], "what was used last is kept, the longest unused makes room"
    assert got(pool, reader, bytes(5 * MIB)).nbytes == 5 * MIB  # too large to be kept
    reader.close()
    assert not reader.spare.free


def test_mappings_are_bounded(folder: Path) -> None:
    reader = Reader(folder)
    for _ in range(2):
        pool = Pool(1024 * MIB, folder, least=0)
        handles = [pool.put(b"x") for _ in range(MAPPINGS // 2 + 10)]
        for handle in handles:
            assert handle is not None and reader.get(handle) == b"x"
        assert len(reader._mappings) <= MAPPINGS
        pool.close()
    reader.sweep()
    assert not reader._mappings


def test_without_descriptors_it_lets_go_of_what_it_keeps(pool: Pool, folder: Path) -> None:
    reader = Reader(folder)
    handles = [pool.put(b"x") for _ in range(20)]
    for handle in handles[:10]:
        assert handle is not None and reader.get(handle) == b"x"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(fd) for fd in os.listdir("/proc/self/fd")), hard))
    taken = list[int]()
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for handle in handles[10:]:
            assert handle is not None and reader.get(handle) == b"x"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


def test_errors_are_ours(pool: Pool, folder: Path) -> None:
    reader = Reader(folder)
    with pytest.raises(ProtocolError, match="both sides must run the same version"):
        reader.get(Handle("/etc/passwd", PAGE, 1, 1))
    with pytest.raises(Unavailable, match="call again"):
        reader.get(Handle(f"{pool.name}/{'0' * 16}", PAGE, 1, 1))
