"""Large values through shared memory: who may read whose, in order, within bounds, nothing left when somebody dies."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from chains.dsl.chainlet import chainlet
from chains.dsl.graph import build
from chains.dsl.specs import Limits
from chains.errors import ChainsError, LimitExceeded, ProtocolError, Unavailable
from chains.runtime.hosting import Served
from chains.runtime.processes import Processes
from chains.wire import frames
from chains.wire.codec import encode
from chains.wire.pb import carrier_pb2 as pb
from chains.wire.segments import FOLDER, MIB, Handle, available
from chains.wire.settings import WireSettings, new_token
from chains.wire.sharing import AT_ONCE, Memory, Sharing
from tests.chains.wire.hosted import calling, eventually, hosted
from tests.chains.wire.test_carrier import Pair
from tests.shape.tree import ROOT

PEER = "a peer"
OTHER_USER = 12345
Array = np.ndarray[Any, np.dtype[np.uint8]]


class Sharers(Pair):
    """Two carriers back to back that share memory, once they have told each other."""

    def __init__(self, folder: Path, limit: int = 64 * MIB, **limits: int) -> None:
        self.memories = [Memory(limit, folder, least=0) for _ in range(2)]
        self.mine, self.theirs = (Sharing(memory, PEER) for memory in self.memories)
        super().__init__(**limits, sharing=(self.mine, self.theirs))

    def meet(self) -> Sharers:
        self.caller.urge(self.mine.offer())
        for _ in range(3):
            self.move()
        return self

    @property
    def lent(self) -> int:
        return sum(memory.pool.lent for memory in self.memories)

    def close(self) -> None:
        for memory in self.memories:
            memory.close()


@pytest.fixture
def sharers(folder: Path) -> Iterator[Sharers]:
    made = Sharers(folder).meet()
    yield made
    made.close()
    assert not list(folder.iterdir())


def array(size: int, value: int = 7) -> Array:
    return np.full(size, value, np.uint8)


def chunks_of(sharers: Sharers, value: Any) -> list[bytes]:
    """What goes over Bulk for an item of a new call."""
    number, _, _ = sharers.opened()
    sharers.replica.item(number, 0, encode(value))
    sent = []
    while sharers.replica.bulky:
        sent.append(sharers.replica.next_chunk())
    return sent


async def fed(sharers: Sharers, chunk: bytes) -> None:
    """The chunk is fed; raises what is found wrong at once or in another thread."""
    sharers.caller.feed_chunk(chunk)
    await eventually(lambda: sharers.caller.pending)
    sharers.caller.batch()


# who may read whose


async def test_both_sides_say_what_they_can_read(folder: Path) -> None:
    sharers = Sharers(folder)
    assert not (sharers.mine.readable or sharers.theirs.readable)
    assert len(chunks_of(sharers, array(MIB))) > 1, "before they have met, values go in chunks"
    sharers.meet()
    assert sharers.mine.readable and sharers.theirs.readable
    assert chunks_of(sharers, array(MIB)) == [], "a handle goes in the frame"
    sharers.close()


async def test_a_peer_that_knows_nothing_of_it_gets_chunks(folder: Path) -> None:
    memory = Memory(64 * MIB, folder, least=0)
    sharing = Sharing(memory, PEER)
    pair = Pair(sharing=(sharing, None))
    pair.caller.urge(sharing.offer())
    pair.move()
    number, _, served = pair.opened(array=array(MIB))
    assert served.arguments is not None and served.arguments["array"].nbytes > MIB
    assert not sharing.readable and memory.pool.bytes == 0 and number == 1
    memory.close()


async def test_a_peer_elsewhere_gets_chunks(folder: Path, tmp_path: Path) -> None:
    here, there = Memory(64 * MIB, folder, least=0), Memory(64 * MIB, tmp_path, least=0)
    mine, theirs = Sharing(here, PEER), Sharing(there, PEER)
    answer = theirs.heard(mine.offer().shared)
    assert not answer.shared.readable and mine.heard(answer.shared) is not None
    assert not mine.readable and not theirs.readable
    for memory in (here, there):
        memory.close()


async def test_what_another_user_owns_is_not_read(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    memory, other = Memory(64 * MIB, folder, least=0), Memory(64 * MIB, folder, least=0)
    os.chown(folder / other.pool.name / "lock", OTHER_USER, OTHER_USER)
    assert not Sharing(memory, PEER).heard(Sharing(other, PEER).offer().shared).shared.readable
    for one in (memory, other):
        one.close()


# order and bounds


async def test_values_of_all_sizes_keep_their_order(sharers: Sharers) -> None:
    chance, sizes = Random(3), [10, 40_000, 200_000, MIB, AT_ONCE + MIB, 3, 10 * MIB, 0]
    number, port, _ = sharers.opened()
    sent = []
    for value in range(24):
        size = chance.choice(sizes)
        sent.append((size, value))
        sharers.replica.item(number, 0, encode(array(size, value)))
    sharers.replica.end(pb.Frame(call=number, end=pb.End()), None)
    other, beside, _ = sharers.opened()
    sharers.replica.end(pb.Frame(call=other, end=pb.End()), None)
    sharers.move()
    assert beside.heard[-1][0] == "end", "other calls do not wait"

    def all_there() -> bool:
        sharers.move()
        return port.heard[-1][0] == "end"

    await eventually(all_there)
    for one, (size, value) in zip(port.values, sent, strict=True):
        assert b"".join(one.buffers) == bytes([value]) * size
    assert [size for kind, _, size in port.heard[:-1] if kind == "item"] == [frames.cost(one) for one in port.values]
    assert sharers.lent == 0


async def test_pieces_hold_parts_of_several_buffers(sharers: Sharers) -> None:
    sizes, chance = [5, 9 * MIB + 3, 0, 100, *[2000] * 3000, 12 * MIB, 1], np.random.default_rng(0)
    value = {"text": "x" * 300_000, "arrays": [chance.integers(0, 255, size, np.uint8) for size in sizes]}
    number, port, _ = sharers.opened()
    sharers.replica.item(number, 0, encode(value))
    slots = []

    def there() -> bool:
        while sharers.replica.bulky:
            message = sharers.replica.next_chunk()
            slots.append(frames.chunk_of(message)[3])
            sharers.caller.feed_chunk(message)
        sharers.move()
        return bool(port.values)

    await eventually(there)
    (found,) = port.values
    assert found.buffers == encode(value).buffers and found.header == encode(value).header
    assert len([slot for slot in slots if slot is not None]) == 7, "pieces of 4 MiB"
    assert sharers.lent == 0


async def test_a_slot_with_more_than_was_named_is_refused(sharers: Sharers) -> None:
    handle = sharers.memories[1].pool.put(bytes(MIB))
    assert handle is not None
    with pytest.raises(ProtocolError, match="more of a value"):
        sharers.caller.feed_chunk(frames.chunk(1, [3, MIB - 1, 1], memoryview(b"\x92\x00\x07"), _slot(handle)))


async def test_without_room_the_rest_goes_in_chunks(folder: Path) -> None:
    sharers = Sharers(folder, limit=3 * MIB).meet()
    number, port, _ = sharers.opened()
    for value in range(4):
        sharers.replica.item(number, 0, encode(array(MIB, value)))
    sharers.replica.item(number, 0, encode(array(8 * MIB, 4)))
    assert sharers.memories[1].pool.lent == 2

    def all_there() -> bool:
        sharers.move()
        return len(port.values) == 5

    await eventually(all_there)
    assert [one.buffers[0][-1] for one in port.values] == [0, 1, 2, 3, 4]
    assert sharers.memories[1].pool.bytes <= 3 * MIB and sharers.lent == 0
    sharers.close()


async def test_a_value_past_the_limit_is_refused(folder: Path) -> None:
    sharers = Sharers(folder, value_bytes=MIB).meet()
    handle = sharers.memories[1].pool.put(bytes(MIB + 1))
    assert handle is not None
    with pytest.raises(LimitExceeded, match="value_bytes"):
        sharers.caller.feed_chunk(_chunk(_slot(handle)))
    number, _, _ = sharers.opened()
    with pytest.raises(LimitExceeded, match="shared memory"):
        sharers.caller.feed(frames.framed(_item(number, slot=_slot(handle))))
    sharers.close()


# ends


async def test_a_value_of_a_call_that_has_ended_is_dropped(sharers: Sharers) -> None:
    number, _, _ = sharers.opened()
    sharers.caller.item(number, 1, encode(array(MIB)))
    sharers.replica.end(pb.Frame(call=number, end=pb.End()), None)
    sharers.move()
    assert sharers.lent == 0 and not sharers.replica._arrivals._receiving


@pytest.mark.parametrize("size", [MIB, 16 * MIB])
async def test_a_lost_connection_gives_all_slots_back(sharers: Sharers, size: int) -> None:
    number, port, _ = sharers.opened()
    sharers.replica.item(number, 0, encode(array(size)))
    sharers.replica.lose("broke")
    sharers.caller.lose("broke")
    assert port.heard == [("lost", "broke")]
    await eventually(lambda: sharers.lent == 0 and not sharers.replica.bulky)  # a copy under way ends first


HOSTILE: dict[str, dict[str, Any]] = {
    "another folder": {"name": "../../etc/passwd"},
    "the folder itself": {"name": ""},
    "no slot": {"name": "0" * 16},
    "another generation": {"generation": 99},
    "more than is there": {"sizes": [2 * MIB]},
    "less than is there": {"sizes": [5]},
    "no buffer": {"sizes": []},
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
async def test_handles_that_lie_end_the_connection(sharers: Sharers, change: dict[str, Any]) -> None:
    handle = sharers.memories[1].pool.put(bytes(MIB))
    assert handle is not None
    slot = _slot(handle, **change)
    number, _, _ = sharers.opened()
    with pytest.raises(ProtocolError):
        await fed(sharers, _chunk(slot))
    with pytest.raises(ProtocolError):
        sharers.caller.feed(frames.framed(_item(number, header=b"\x92\x00\x07", slot=slot)))


async def test_a_frame_names_little_in_shared_memory(sharers: Sharers) -> None:
    handle = sharers.memories[1].pool.put(bytes(16 * MIB))
    assert handle is not None
    number, _, _ = sharers.opened()
    with pytest.raises(LimitExceeded, match="Bulk"):
        sharers.caller.feed(frames.framed(_item(number, slot=_slot(handle))))


@pytest.mark.parametrize("size", [MIB, 16 * MIB])
async def test_a_lie_about_a_large_value_is_found_in_another_thread(sharers: Sharers, size: int) -> None:
    number, _, _ = sharers.opened()
    item = _item(number, transfer=9)
    handle = sharers.memories[1].pool.put(bytes(size))
    assert handle is not None
    sharers.caller.feed(frames.framed(item))
    with pytest.raises(ProtocolError, match="not in the slot"):
        await fed(sharers, _chunk(_slot(handle, generation=5), number=9))


async def test_a_slot_of_another_user_is_refused(sharers: Sharers, folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    handle = sharers.memories[1].pool.put(bytes(MIB))
    assert handle is not None
    os.chown(folder / handle.name, OTHER_USER, OTHER_USER)
    with pytest.raises(ProtocolError, match="no slot of this user"):
        await fed(sharers, _chunk(_slot(handle)))


async def test_nothing_is_read_of_a_peer_that_has_named_no_pool(folder: Path) -> None:
    sharers = Sharers(folder)
    handle = sharers.memories[1].pool.put(bytes(MIB))
    assert handle is not None
    with pytest.raises(ProtocolError, match="not shared"):
        sharers.caller.feed_chunk(_chunk(_slot(handle)))
    with pytest.raises(ProtocolError, match="not shared"):
        Pair().caller.feed_chunk(_chunk(_slot(handle)))
    sharers.close()


def _slot(handle: Handle, name: str | None = None, generation: int = 0, sizes: list[int] | None = None) -> Any:
    key = handle.name.rpartition("/")[2] if name is None else name
    return pb.Slot(
        name=key, generation=generation or handle.generation, sizes=[handle.length] if sizes is None else sizes
    )


def _chunk(slot: Any, number: int = 1) -> bytes:
    return frames.chunk(number, [3, *slot.sizes], memoryview(b"\x92\x00\x07"), slot)


def _item(number: int, **value: Any) -> Any:
    return pb.Frame(call=number, item=pb.Item(value=pb.Value(**value)))


# through the whole stack


@pytest.mark.parametrize("shared", [True, False])
async def test_arrays_arrive_whole_and_read_only(shared: bool) -> None:
    settings = WireSettings(new_token(), shared_memory=shared)
    async with hosted(settings) as replica, calling(replica.server.address, settings) as caller, caller.open_call():
        await caller.remote.reached()
        if shared and available():
            await eventually(lambda: caller.remote._connection.carrier._sharing.readable)  # type: ignore[union-attr]
        sizes = [100, 20_000, 300_000, 3_000_000]
        given = [np.arange(size, dtype=np.float32) for size in sizes for _ in range(3)]
        found = await asyncio.gather(*(caller.probe.scale(one, 2.0) for one in given))
        assert all(
            np.array_equal(two, 2 * one) and not two.flags.writeable for one, two in zip(given, found, strict=True)
        )
        if shared and available():
            assert replica.memory is not None and caller.memory is not None
            pools = [replica.memory.pool, caller.memory.pool]
            assert all(pool.bytes for pool in pools) and not sum(pool.lent for pool in pools)
        else:
            assert replica.memory is None and caller.memory is None


async def test_the_memory_of_arrays_is_used_again_without_a_collection() -> None:
    settings = WireSettings(new_token())
    async with hosted(settings) as replica, calling(replica.server.address, settings) as caller, caller.open_call():
        gc.disable()
        try:
            for _ in range(5):
                await caller.probe.scale(np.ones(MIB, np.float32), 2.0)
            links = [replica.server._links[key].carrier for key in replica.server._links]
            spares = [carrier._arrivals._spare for carrier in (*links, caller.remote._connection.carrier)]  # type: ignore[union-attr]
            await eventually(lambda: all(4 * MIB in spare.free for spare in spares))
            assert sum(spare.free.count(4 * MIB) for spare in spares) <= 3, "no more than one at a time was in use"
        finally:
            gc.enable()


@pytest.mark.parametrize("size", [10, MIB, 16 * MIB])
async def test_an_ended_call_leaves_nothing_to_the_garbage_collector(size: int) -> None:
    settings = WireSettings(new_token())
    async with hosted(settings) as replica, calling(replica.server.address, settings) as caller, caller.open_call():
        gc.collect()
        gc.disable()
        try:
            given = np.ones(size // 4, np.float32)
            left = weakref.ref(given)
            assert (await caller.probe.scale(given, 2.0))[-1] == 2
            del given
            await eventually(lambda: left() is None)
            await eventually(lambda: not any(isinstance(one, Served) for one in gc.get_objects()))
        finally:
            gc.enable()


# who dies


@chainlet(entry=True, limits=Limits(running=8, queued=8))
class Sink:
    async def take(self, array: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
        return int(array[-1])

    async def make(self, count: int) -> AsyncIterator[np.ndarray[Any, np.dtype[np.uint8]]]:
        for _ in range(count):
            yield np.ones(8 * MIB, np.uint8)


def pools_of(pid: int) -> list[Path]:
    """The pools that a process has open: its own, by their locks."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            path = Path(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue
        if path.name == "lock" and path.parent.parent == FOLDER:
            found.append(path.parent)
    return found


async def busy(runtime: Processes) -> None:
    """Large values both ways, until the replica is gone."""

    async def give() -> None:
        while True:
            assert await runtime.entry.take(array(8 * MIB)) == 7

    async def take() -> None:
        async for one in runtime.entry.make(1000):
            assert one[-1] == 1

    with pytest.raises(ChainsError):
        await asyncio.gather(give(), take())


@pytest.mark.skipif(not available(), reason="no shared memory here")
async def test_a_killed_replica_leaves_nothing() -> None:
    async with Processes(build(Sink), grace=0.0) as runtime:
        assert runtime._memory is not None and runtime._processes["Sink"][0]._process is not None
        theirs = pools_of(runtime._processes["Sink"][0]._process.pid)
        mine = FOLDER / runtime._memory.pool.name
        async with runtime.open_call():
            load = asyncio.ensure_future(busy(runtime))
            await eventually(lambda: runtime._memory.pool.bytes > 0 and any(theirs[0].glob("[0-9a-f]*")))
            await runtime.kill("Sink", 0)
            await load
            with pytest.raises(Unavailable):
                await runtime.entry.take(array(10))
        await eventually(lambda: not theirs[0].exists() and runtime._memory.pool.lent == 0)
    assert len(theirs) == 1 and not mine.exists()


@pytest.mark.skipif(not available(), reason="no shared memory here")
def test_a_killed_caller_leaves_nothing() -> None:
    command = [sys.executable, "-m", "tests.chains.wire.test_sharing"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as program:
        assert program.stdout is not None
        pids = [int(word) for word in program.stdout.readline().split()]
        pools = [pool for pid in pids for pool in pools_of(pid)]
        assert len(pools) == 2 and all(pool.exists() for pool in pools)
        assert program.stdout.readline() == "busy\n"
        program.send_signal(signal.SIGKILL)
    asyncio.run(eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids)))
    Memory(MIB).close()  # whoever comes next sweeps up
    assert not any(pool.exists() for pool in pools)


async def _caller() -> None:
    async with Processes(build(Sink)) as runtime:
        process = runtime._processes["Sink"][0]._process
        assert process is not None and runtime._memory is not None
        print(os.getpid(), process.pid, flush=True)
        async with runtime.open_call():
            load = asyncio.ensure_future(busy(runtime))
            await eventually(lambda: runtime._memory.pool.bytes > 0)
            print("busy", flush=True)
            await load


if __name__ == "__main__":
    asyncio.run(_caller())
