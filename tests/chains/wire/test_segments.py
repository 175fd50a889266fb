"""Slots in shared memory: lent, given back, taken back, and never left behind, whoever is killed."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from chains.wire.borrowing import Reader
from chains.wire.segments import FILES, MIB, PAGE, SMALLEST, Freed, Handle, Pool, available, sweep
from tests.chains.wire.lender import parsed, written
from tests.shape.tree import ROOT

Program = subprocess.Popen[str]
Start = Callable[[str], Program]


@pytest.fixture
def pool(folder: Path) -> Iterator[Pool]:
    made = Pool(64 * MIB, folder, least=0)
    yield made
    made.close()
    assert not list(folder.iterdir())


@pytest.fixture
def reader(folder: Path) -> Iterator[Reader]:
    made = Reader(folder)
    yield made
    made.close()


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """`start(role)`: a process of lender.py."""
    programs: list[Program] = []

    def started(role: str) -> Program:
        command = [sys.executable, "-m", "tests.chains.wire.lender", role, str(folder)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        program = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd=ROOT, env=environment
        )
        programs.append(program)
        return program

    yield started
    for program in programs:
        with program:
            program.kill()


def line(program: Program) -> str:
    assert program.stdout is not None
    found = program.stdout.readline()
    assert found, "it ended"
    return found.strip()


def tell(program: Program, text: str) -> None:
    assert program.stdin is not None
    program.stdin.write(text + "\n")
    program.stdin.flush()


def kill(program: Program) -> None:
    program.send_signal(signal.SIGKILL)
    program.wait()


def put(pool: Pool, data: bytes, peer: str = "") -> Handle:
    handle = pool.put(data, peer)
    assert handle is not None
    return handle


def usage(folder: Path) -> tuple[int, int]:
    """Files and bytes of memory there."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return len(files), sum(path.stat().st_blocks * 512 for path in files)


# lending and giving back


@pytest.mark.parametrize("size", [1, 1000, SMALLEST, SMALLEST + 1, 3 * MIB + 7])
def test_what_was_put_is_got(pool: Pool, reader: Reader, size: int) -> None:
    data = Random(size).randbytes(size)
    assert reader.get(put(pool, data)) == data
    with reader.borrow(put(pool, data)) as view:
        assert view == data and view.readonly
    assert pool.lent == 0


def test_nothing_to_send(pool: Pool) -> None:
    assert pool.put(b"") is None


def test_a_copy_is_the_readers_own(pool: Pool, reader: Reader) -> None:
    first = reader.get(put(pool, b"1" * 2 * MIB))
    second = reader.get(put(pool, b"2" * 2 * MIB))
    first[0:1] = b"x"
    assert first[1:3] == b"11" and second[:2] == b"22"


def test_a_slot_is_used_again_once_it_is_back(pool: Pool, reader: Reader) -> None:
    first = put(pool, b"a")
    second = put(pool, b"b")
    assert first.name != second.name and pool.lent == 2
    reader.get(second)
    third = put(pool, b"c")
    assert third.name == second.name and third.generation == second.generation + 1
    assert reader.get(first) == b"a" and reader.get(third) == b"c"
    assert pool.bytes == 2 * (SMALLEST + PAGE)


def test_a_handle_opens_once(pool: Pool, reader: Reader) -> None:
    handle = put(pool, b"a")
    reader.get(handle)
    with pytest.raises(Exception, match="taken back"):
        reader.get(handle)
    with pytest.raises(Exception, match="taken back"), reader.borrow(handle):
        pass
    reader.drop(handle)


def test_dropped_unread(pool: Pool, reader: Reader) -> None:
    reader.drop(put(pool, b"a"))
    assert pool.lent == 0


def test_taken_back(pool: Pool, reader: Reader) -> None:
    handle = put(pool, b"a")
    assert pool.take_back(handle) and pool.take_back(handle)
    assert pool.lent == 0
    again = put(pool, b"b")
    assert again.name == handle.name
    with pytest.raises(Exception, match="taken back"):
        reader.get(handle)
    assert pool.take_back(handle)  # the old handle takes nothing from the new one
    assert reader.get(again) == b"b"


def test_what_is_being_read_is_not_taken_back(pool: Pool, reader: Reader) -> None:
    handle = put(pool, b"a", "peer")
    with reader.borrow(handle) as view:
        assert not pool.take_back(handle)
        assert pool.forget("peer") == 1
        assert put(pool, b"b").name != handle.name
        assert view == b"a"
    assert pool.take_back(handle)


def test_a_view_that_is_kept_keeps_the_slot(pool: Pool, reader: Reader) -> None:
    handle = put(pool, b"abc")
    with reader.borrow(handle) as view:
        kept = view[1:]
    assert pool.lent == 1 and not pool.take_back(handle)
    put(pool, b"xyz")
    assert kept == b"bc"
    del view, kept
    assert pool.lent == 1  # the other one
    assert put(pool, b"d").name == handle.name


def test_a_block_that_fails_gives_back(pool: Pool, reader: Reader) -> None:
    with pytest.raises(KeyError), reader.borrow(put(pool, b"a")):
        raise KeyError
    assert pool.lent == 0


def test_forget_takes_back_what_one_peer_had(pool: Pool) -> None:
    for peer in ("a", "b", "a"):
        put(pool, b"x", peer)
    assert pool.forget("a") == 0 and pool.lent == 1
    assert pool.forget("nobody") == 0 and pool.lent == 1


# bounds


def test_bounded_bytes(folder: Path, reader: Reader) -> None:
    pool = Pool(2 * (MIB + PAGE), folder, least=0)
    handles = [put(pool, b"x" * MIB) for _ in range(2)]
    assert pool.put(b"x" * MIB) is None and pool.put(b"x") is None
    assert pool.put(b"x" * 4 * MIB) is None
    for handle in handles:
        reader.get(handle)
    assert pool.put(b"x") is not None  # in place of a free one of another size
    assert pool.bytes == SMALLEST + PAGE == usage(folder)[1]
    pool.close()


def test_bounded_files(folder: Path) -> None:
    pool = Pool(1024 * MIB, folder, least=0)
    assert sum(pool.put(b"x") is not None for _ in range(FILES + 10)) == FILES
    pool.close()


def test_trim_gives_memory_back(pool: Pool, reader: Reader, folder: Path) -> None:
    held = put(pool, b"x" * MIB)
    reader.get(put(pool, b"x" * MIB))
    pool.trim()
    reader.sweep()
    assert pool.bytes == MIB + PAGE == usage(folder)[1]
    assert reader.get(held)[:1] == b"x"


def test_no_room_on_the_file_system(folder: Path) -> None:
    """A limit on the size of files: reserving room fails as it does on a full one. Nothing stays, nothing is raised."""
    code = (
        "import resource, signal; from pathlib import Path; from chains.wire.segments import Pool\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({MIB}, {MIB}))\n"
        f"pool = Pool(folder=Path({str(folder)!r}), least=0)\n"
        "print(pool.put(b'x' * 2 ** 22), pool.put(b'x') is not None, pool.bytes)"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert found.split() == ["None", "True", str(SMALLEST + PAGE)]
    assert not list(folder.iterdir())


def test_where_there_is_no_shared_memory(tmp_path: Path) -> None:
    missing = tmp_path / "shm"
    assert not available(missing) and not available(tmp_path, least=2**60)
    for pool in (Pool(folder=missing), Pool(folder=tmp_path, least=2**60)):
        assert pool.put(b"x") is None and pool.name == "" and pool.lent == 0
        pool.trim()
        pool.close()
    assert not list(tmp_path.iterdir())
    assert sweep(missing) == Freed()


def test_a_closed_pool(folder: Path, reader: Reader) -> None:
    pool = Pool(folder=folder, least=0)
    opened, unopened = put(pool, b"a"), put(pool, b"b")
    with reader.borrow(opened) as view:
        pool.close()
        pool.close()
        assert view == b"a"
    assert pool.put(b"c") is None and not list(folder.iterdir())
    with pytest.raises(Exception, match="gone, with its sender"):
        reader.get(unopened)


# who may see it


def test_only_this_user_may_open_it_and_nobody_guesses_its_name(pool: Pool, folder: Path) -> None:
    names = {put(pool, b"x").name.partition("/")[2] for _ in range(3)} | {pool.name}
    assert len(names) == 4 and all(len(name) >= 16 for name in names)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert modes.pop(pool.name) == 0o700
    assert set(modes.values()) == {0o600}


def test_reaches(pool: Pool, reader: Reader, tmp_path: Path) -> None:
    assert reader.reaches(pool.name)
    assert not Reader(tmp_path).reaches(pool.name)
    assert not reader.reaches("") and not reader.reaches("../x") and not reader.reaches("chains-" + "0" * 32)


def test_handles_that_are_none(pool: Pool, reader: Reader, folder: Path) -> None:
    good = put(pool, b"x" * 100)
    link = f"{pool.name}/{'0' * 16}"
    (folder / link).symlink_to(folder / good.name)
    (folder / pool.name / ("1" * 16)).write_bytes(b"short")
    hostile = [
        Handle("../../etc/passwd", PAGE, 1, 1),
        Handle(good.name + "/../lock", PAGE, 1, 1),
        Handle(f"{pool.name}/lock", PAGE, 1, 1),
        Handle(good.name, 0, 100, 1),
        Handle(good.name, PAGE, SMALLEST + 1, 1),
        Handle(good.name, PAGE, 0, 1),
        Handle(good.name, PAGE, -1, 1),
        Handle(good.name, PAGE, 100, 2),
        Handle(good.name, PAGE, 99, 1),
        Handle(link, PAGE, 100, 1),
        Handle(f"{pool.name}/{'1' * 16}", PAGE, 1, 1),
        Handle(f"{pool.name}/{'2' * 16}", PAGE, 1, 1),
        Handle("chains-" + "0" * 32 + "/" + "0" * 16, PAGE, 1, 1),
    ]
    for handle in hostile:
        with pytest.raises(Exception, match=r"shared memory"):
            reader.get(handle)
    assert reader.get(good) == b"x" * 100


# deaths


def test_a_killed_owner_leaves_nothing(folder: Path, reader: Reader, start: Start) -> None:
    before = usage(folder)
    owner = start("lend")
    first, second, third = [parsed(line(owner)) for _ in range(3)]
    assert sweep(folder) == Freed()  # it lives
    assert reader.get(first)[:1] == b"\1"
    with reader.borrow(second) as view:
        kill(owner)
        assert sweep(folder) == Freed(3, 3 * (MIB + PAGE))
        assert view[0] == 2  # what is open can be read to its end
    with pytest.raises(Exception, match="gone, with its sender"):
        reader.get(third)
    assert usage(folder) == before
    reader.sweep()
    assert not reader._mappings
    assert sweep(folder) == Freed()


def test_an_owner_killed_in_mid_copy_leaves_nothing(folder: Path, start: Start) -> None:
    for _ in range(3):
        owner = start("busy")
        for _ in range(3):
            line(owner)
        kill(owner)
        sweep(folder)
        assert usage(folder) == (0, 0) and not list(folder.iterdir())


def test_a_new_pool_removes_what_the_dead_left(folder: Path, start: Start) -> None:
    owner = start("lend")
    line(owner)
    kill(owner)
    Pool(folder=folder, least=0).close()
    assert not list(folder.iterdir())


def test_an_owner_that_ends_without_closing_leaves_nothing(folder: Path, start: Start) -> None:
    owner = start("lend")
    line(owner)
    tell(owner, "end")
    assert owner.wait() == 0 and not list(folder.iterdir())


def test_a_killed_reader_keeps_nothing(pool: Pool, folder: Path, start: Start) -> None:
    peer = start("read")
    handle, unread = put(pool, b"\7" * MIB, "peer"), put(pool, b"x" * MIB, "peer")
    before = (usage(folder), pool.bytes)
    tell(peer, written(handle))
    assert line(peer) == "reading 7"
    assert pool.forget("peer") == 1 and not pool.take_back(handle)  # it reads, and lives
    kill(peer)
    assert pool.forget("peer") == 0 and pool.lent == 0
    assert {put(pool, b"y" * MIB).name for _ in range(2)} == {handle.name, unread.name}
    assert (usage(folder), pool.bytes) == before


def test_a_forked_child_does_not_keep_the_dead_alive(folder: Path, start: Start) -> None:
    owner = start("fork")
    assert line(owner) == "child None True"  # the child lends nothing, and its close removes nothing
    assert len(list(folder.iterdir())) == 1 and sweep(folder) == Freed()
    kill(owner)
    assert sweep(folder) == Freed(1, MIB + PAGE)
    assert not list(folder.iterdir())


def test_half_made_and_half_removed_pools(folder: Path) -> None:
    made = [folder / f"chains-{digit * 32}" for digit in "abc"]
    for path in made:
        path.mkdir()
    (made[1] / "lock").touch()
    (made[2] / "lock").touch()
    (made[2] / ("0" * 16)).write_bytes(b"x")
    (folder / "chains-something else").mkdir()
    assert sweep(folder) == Freed(1, 1)
    assert [path.name for path in folder.iterdir()] == ["chains-something else"]


def test_sweeps_and_new_pools_side_by_side(folder: Path, start: Start) -> None:
    programs = [start("churn") for _ in range(3)]
    assert [line(program) for program in programs] == ["done"] * 3
    assert [program.wait() for program in programs] == [0] * 3
    assert not list(folder.iterdir())


# many at once


def test_threads_and_processes_at_once(pool: Pool, folder: Path, start: Start) -> None:
    """Four threads lend, four threads of another process read, slots are used again all the time: no byte is wrong."""
    peer, count = start("answer"), 400
    sums: dict[int, int] = {}
    lock, chance = threading.Lock(), Random(0)
    block = chance.randbytes(4 * MIB)
    room = threading.Semaphore(16)

    def lend(first: int) -> None:
        mine = Random(first)
        for number in range(first, count, 4):
            begin, size = mine.randrange(2 * MIB), int(2 ** mine.uniform(0, 21))
            data = block[begin : begin + size]
            room.acquire()
            handle = put(pool, data)
            with lock:
                sums[number] = zlib.crc32(data)
                tell(peer, f"{number} {written(handle)}")

    threads = [threading.Thread(target=lend, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    answers = {}
    for _ in range(count):
        number, found = map(int, line(peer).split())
        answers[number] = found
        room.release()
    for thread in threads:
        thread.join()
    assert answers == sums
    assert pool.lent == 0 and pool.bytes <= pool.limit
    assert usage(folder)[1] == pool.bytes
