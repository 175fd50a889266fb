"""The end of a connection in good order: what was said before it is heard, however slow the one who hears."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from chains.dsl.chainlet import chainlet
from chains.dsl.graph import Graph, build
from chains.dsl.specs import Limits
from chains.errors import Unavailable
from chains.runtime.host import Hosted
from chains.runtime.nodes import Place
from chains.wire.link import CLOSING
from chains.wire.settings import WireSettings, new_token
from chains.wire.stub import Connection
from tests.chains.wire.hosted import GRAPH, calling, eventually, hosted

SETTINGS = WireSettings(new_token())
ITEMS = 600  # of seven streams: more than one message of each, and within their windows


class Elsewhere:
    """The probe in a thread of its own, with a loop that goes on while the caller's stands still."""

    def __init__(self, settings: WireSettings, graph: Graph) -> None:
        self.up, self.gone = threading.Event(), threading.Event()
        self._settings, self._graph = settings, graph
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    async def _main(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with hosted(self._settings, self._graph) as self.replica:
            self.up.set()
            await self._ended.wait()
        self.gone.set()

    def __enter__(self) -> Elsewhere:
        self._thread.start()
        assert self.up.wait(30)
        self.address = self.replica.server.address
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def do(self, what: Callable[[Hosted], Any]) -> None:
        """There, in one step of the loop; what it gives is awaited there."""

        async def there() -> None:
            made = what(self.replica)
            if made is not None:
                await made

        self._loop.call_soon_threadsafe(lambda: setattr(self, "_doing", asyncio.ensure_future(there())))


@contextmanager
def elsewhere(settings: WireSettings = SETTINGS, graph: Graph = GRAPH) -> Iterator[Elsewhere]:
    with Elsewhere(settings, graph) as made:
        yield made


async def _first(stream: Any) -> Any:
    return await anext(stream)


def _open_and_stop(replica: Hosted) -> Any:
    instance: Any = replica.replica._instance
    instance.gate.set()
    return replica.stop(30.0)


async def test_a_caller_that_stands_still_hears_all_that_a_replica_said_before_it_went() -> None:
    with elsewhere() as there:
        async with calling(there.address, SETTINGS) as caller, caller.open_call():
            streams = [aiter(caller.probe.gated_numbers(ITEMS, 1)) for _ in range(7)]
            assert await asyncio.gather(*map(_first, streams)) == [0] * 7
            there.do(_open_and_stop)
            assert not there.gone.wait(1.0), "it waits until it was read"  # this loop stands still meanwhile
            for stream in streams:
                assert [number async for number in stream] == list(range(1, ITEMS))


@chainlet(entry=True, limits=Limits(running=8))
class Probe:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun: list[str] = []

    async def large(self, mib: int) -> np.ndarray[Any, Any]:
        await self.gate.wait()
        return np.ones(mib * (1 << 17))

    async def at_once(self, mib: int) -> np.ndarray[Any, Any]:
        self.begun.append("at once")
        return np.ones(mib * (1 << 17))

    async def several(self, mib: int, count: int) -> AsyncIterator[np.ndarray[Any, Any]]:
        yield np.ones(1)
        await self.gate.wait()
        for _ in range(count):
            yield np.ones(mib * (1 << 17))

    async def eat(self, arrays: AsyncIterator[np.ndarray[Any, Any]]) -> int:
        return sum([len(array) async for array in arrays])


LARGE = build(Probe)


@pytest.mark.parametrize("shared", [True, False])
async def test_large_values_come_before_the_goodbye(shared: bool) -> None:
    """Also those that threads still copy to shared memory when all else was said."""
    settings = WireSettings(new_token(), shared_memory=shared)
    with elsewhere(settings, LARGE) as there:
        async with calling(there.address, settings, LARGE) as caller, caller.open_call():
            results = [caller.probe.large(mib) for mib in (1, 3, 24)]
            stream = aiter(caller.probe.several(8, 3))
            assert len(await anext(stream)) == 1
            await eventually(lambda: all(result.timing.accepted for result in results))
            there.do(_open_and_stop)
            for mib, result in zip((1, 3, 24), results, strict=True):
                assert np.array_equal(await result, np.ones(mib * (1 << 17)))
            assert [len(array) async for array in stream] == [8 << 17] * 3


@pytest.mark.parametrize("shared", [True, False])
async def test_what_was_done_is_not_done_again_elsewhere(shared: bool) -> None:
    """The result is under way beside the connection when the goodbye comes, which has overtaken it."""
    settings = WireSettings(new_token(), shared_memory=shared)
    with elsewhere(settings, LARGE) as there:
        ways = calling(there.address, settings, LARGE)
        async with hosted(settings, LARGE) as other, ways as caller, caller.open_call():
            result = caller.probe.at_once(48)
            begun: list[str] = there.replica.replica._instance.begun  # type: ignore[attr-defined,union-attr]
            await eventually(lambda: bool(begun))
            there.do(lambda replica: replica.stop(0.0))
            caller.target.update({"Probe#0": Place(there.address), "Probe#1": Place(other.server.address)})
            assert len(await result) == 48 << 17
            assert (begun, result.timing.attempts) == (["at once"], 1)


async def test_one_stream_that_breaks_breaks_the_connection_at_once() -> None:
    settings = WireSettings(new_token(), shared_memory=False)

    async def too_large() -> AsyncIterator[np.ndarray[Any, Any]]:
        yield np.ones(8 << 17)

    async with (
        hosted(replace(settings, value_bytes=4 << 20), LARGE) as replica,
        calling(replica.server.address, settings, LARGE) as caller,
        caller.open_call(),
        asyncio.timeout(5),
    ):
        with pytest.raises(Unavailable):
            await caller.probe.eat(too_large())
        await eventually(lambda: caller.remote.open)


async def test_who_dials_while_a_replica_stops_does_not_hold_it_up() -> None:
    for turns in range(0, 60, 4):
        async with hosted(SETTINGS) as replica:
            dialling = [Connection(replica.server.address, SETTINGS, lambda kind, sent: None) for _ in range(3)]
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(4):
                await replica.stop(0.0)
            for connection in dialling:
                await connection.close()


async def test_what_a_replica_has_not_begun_when_it_goes_another_does() -> None:
    """The Open lies there unread while it says goodbye; the method may not be called twice, and is not."""
    read = threading.Event()
    with elsewhere() as there:
        async with hosted(SETTINGS) as other, calling(there.address, SETTINGS) as caller, caller.open_call():
            assert await caller.probe.echo(1) == 1
            sent = threading.Event()

            def stand_still(replica: Hosted) -> Any:
                read.set()
                assert sent.wait(30)
                return replica.server.stop(CLOSING)

            there.do(stand_still)
            assert await asyncio.to_thread(read.wait, 30)
            result = caller.probe.echo(2)
            await eventually(lambda: result.timing.attempts == 1)
            await eventually(lambda: not caller.remote.connection.carrier.pending)  # type: ignore[union-attr]
            caller.target.update({"Probe#0": Place(there.address), "Probe#1": Place(other.server.address)})
            await caller.target.remotes["Probe#1"].reached()
            sent.set()
            assert await result == 2
            assert result.timing.attempts == 2 and result.timing.replica == "Probe#1"


async def test_a_caller_that_does_not_know_goodbyes_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chains.wire.link.CLOSING", 0.1)
    async with hosted(SETTINGS) as replica, calling(replica.server.address, SETTINGS) as caller, caller.open_call():
        assert await caller.probe.echo(1) == 1
        link = caller.remote.connection._link
        assert link is not None
        monkeypatch.setattr(link, "close", lambda: None)
        async with asyncio.timeout(10):
            await replica.stop(0.0)
