"""The reader's part: it claims what is elsewhere, makes do without, and leaves nothing when somebody dies."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import AsyncIterator

import pytest

from chains.dsl.graph import build
from chains.errors import Unavailable
from chains.runtime import claims
from chains.runtime.processes import Processes
from chains.wire.settings import WireSettings, new_token
from tests.chains.runtime.chain_of_passing import Front
from tests.chains.runtime.past import Past, passing
from tests.chains.wire.hosted import eventually

MIB = 2**20


@pytest.fixture
async def past() -> AsyncIterator[Past]:
    async with passing() as made:
        yield made
        await eventually(made.at_rest)


async def test_one_connection_serves_all_claims_and_is_let_go(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "IDLE", 0.01)
    async with past.a.open_call():
        totals = [past.reader.total(past.maker.paced(10, 0.001)) for _ in range(5)]
        await eventually(lambda: bool(past.c.makers.connections))
        assert [await total for total in totals] == [45] * 5
        await eventually(lambda: not past.c.makers.connections)
        await eventually(lambda: len(past.b.host._peers) == 1)
        assert await past.reader.total(past.maker.paced(3, 0.001)) == 3, "dialled anew"


async def test_a_maker_that_the_reader_cannot_reach_is_relayed(past: Past) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        past.a.remote.address = f"127.0.0.1:{closed.getsockname()[1]}"  # as another network would see it
        async with past.a.open_call():
            stream = past.maker.paced(20, 0.001)
            assert await past.reader.first_of(stream, 5) == [0, 1, 2, 3, 4]
            assert await past.reader.total(stream) == sum(range(5, 20))
            assert past.passed == 20


async def test_a_maker_that_does_not_answer_is_given_up_soon(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "REACH", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        past.a.remote.address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with past.a.open_call():
            assert await past.reader.total(past.maker.paced(20, 0.001)) == sum(range(20))
            assert past.passed == 20
        await past.c.makers.close()


async def test_a_reader_of_another_deployment_gets_nothing_there() -> None:
    async with passing(reader=WireSettings(new_token())) as past, past.a.open_call():
        assert await past.reader.total(past.maker.paced(20, 0.001)) == sum(range(20))
        assert past.passed == 20, "it was refused, and got them from the caller"


async def test_a_claim_that_breaks_goes_on_by_the_caller(past: Past) -> None:
    async with past.a.open_call():
        stream = past.maker.paced(60, 0.001)
        result = past.reader.total(stream)
        await eventually(lambda: stream.timing.items_out > 0)
        (connection,) = past.c.makers.connections.values()
        await connection.close()
        assert await result == sum(range(60))
        assert past.passed, "the rest came by the caller"


# processes that die


async def _kill_the_one_that_reads(runtime: Processes) -> None:
    await eventually(lambda: any(load.node == "Reader" and load.running for load in runtime.load()))
    load = next(load for load in runtime.load() if load.node == "Reader" and load.running)
    await runtime.kill("Reader", int(load.replica.partition("#")[2]))


@pytest.mark.slow
async def test_another_reader_takes_over_while_nothing_was_taken(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "chains")
    async with Processes(build(Front), grace=0.0, replicas={"Reader": 2}) as runtime, runtime.open_call():
        maker, reader = runtime.handle("Maker"), runtime.handle("Reader")
        result = reader.total(maker.gated(50, 0))
        await eventually(lambda: any("goes straight" in record.message for record in caplog.records))
        await _kill_the_one_that_reads(runtime)
        await maker.open_gate()
        assert await result == sum(range(50))
        assert result.timing.attempts == 2


@pytest.mark.slow
async def test_what_a_killed_reader_has_not_credited_is_there_to_read() -> None:
    async with Processes(build(Front), grace=0.0, replicas={"Reader": 2}) as runtime, runtime.open_call():
        maker, reader = runtime.handle("Maker"), runtime.handle("Reader")
        stream = maker.gated(50, 10)
        result = reader.total(stream)
        await eventually(lambda: result.timing.items_in > 0)
        await _kill_the_one_that_reads(runtime)
        with pytest.raises(Unavailable):
            await result
        await maker.open_gate()
        rest = [n async for n in stream]
        assert rest and rest == list(range(rest[0], 50)) and rest[0] <= 10


async def _rests(runtime: Processes, node: str, before: dict[str, int]) -> None:
    """Return once that process holds no more than it did."""
    handle = runtime.handle(node)
    for _ in range(200):
        now = await handle.left()
        if all(now[kind] <= before[kind] for kind in before):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{node}: {before} before, {now} now")


@pytest.mark.slow
async def test_none_of_fifty_megabytes_passes_the_caller() -> None:
    async with Processes(build(Front), grace=0.0) as runtime, runtime.open_call():
        weight, grown, _ = await runtime.entry.weigh(50, MIB)
        assert weight == 50 * MIB
        assert grown < 4 * 1024, "the caller's process has not grown by as much as four of them"


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["Maker", "Reader", "Front"])
async def test_whoever_is_killed_the_others_keep_nothing(killed: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "chains")
    replicas = {"Maker": 2, "Reader": 2, "Front": 1}
    async with Processes(build(Front), grace=0.0, replicas=replicas) as runtime, runtime.open_call():
        maker, reader = runtime.handle("Maker"), runtime.handle("Reader")
        # all are connected, also those that streams went straight between: such a connection stays for a while
        assert await reader.total(maker.paced(200)) == sum(range(200))
        assert [item async for item in runtime.entry.same(200)] == list(range(200))
        others = [node for node in ("Maker", "Reader") if node != killed]
        before = {node: await runtime.handle(node).left() for node in others}
        stream = runtime.entry.same(5000) if killed == "Front" else reader.same(maker.paced(5000))
        got = [await anext(stream) for _ in range(20)]
        if killed != "Front":
            await eventually(lambda: any("goes straight" in record.message for record in caplog.records))
        for index in range(replicas[killed]):
            await runtime.kill(killed, index)
        with pytest.raises(Unavailable):
            while True:
                got.append(await anext(stream))
        del stream  # the one that it was given is held by it, and would be there to read on
        gc.collect()  # an error and the frames that it passed hold one another, and they hold the stream
        assert got == list(range(len(got))) and len(got) < 5000
        for node in others:
            await _rests(runtime, node, before[node])
