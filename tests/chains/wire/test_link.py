"""The end of a connection in good order: what was said before it is heard, however slow the one who hears."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from chains.runtime.host import Hosted
from chains.runtime.nodes import Place
from chains.wire.link import CLOSING
from chains.wire.settings import WireSettings, new_token
from tests.chains.wire.hosted import calling, eventually, hosted

SETTINGS = WireSettings(new_token())
ITEMS = 600  # of seven streams: more than one message of each, and within their windows


class Elsewhere:
    """The probe in a thread of its own, with a loop that goes on while the caller's stands still."""

    def __init__(self, settings: WireSettings) -> None:
        self.up, self.gone = threading.Event(), threading.Event()
        self._settings = settings
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    async def _main(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with hosted(self._settings) as self.replica:
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
def elsewhere(settings: WireSettings = SETTINGS) -> Iterator[Elsewhere]:
    with Elsewhere(settings) as made:
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


async def test_large_values_come_before_the_goodbye() -> None:
    chunks = WireSettings(new_token(), shared_memory=False)
    array = np.arange(500_000, dtype=np.float64)
    with elsewhere(chunks) as there:
        async with calling(there.address, chunks) as caller, caller.open_call():
            results = [caller.probe.scale(array, 2.0) for _ in range(3)]
            await eventually(lambda: all(result.timing.accepted for result in results))
            there.do(lambda replica: replica.stop(30.0))
            assert not there.gone.wait(0.5)
            for result in results:
                assert np.array_equal(await result, array * 2.0)


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
