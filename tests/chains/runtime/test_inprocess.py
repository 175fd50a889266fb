"""The in-process runtime: how a chain starts and stops, its calls, its load and its health."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from chains.call import current
from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build
from chains.errors import Cancelled, DeadlineExceeded, NotFound, SettingError, StartError, Unavailable
from chains.runtime.deployment import Progress
from chains.runtime.inprocess import InProcess
from chains.testing import FakeClock, settle

LOG: list[str] = []
BARRIER = threading.Barrier(2)


@pytest.fixture(autouse=True)
def empty_log() -> None:
    LOG.clear()
    BARRIER.reset()


@chainlet
class Left:
    def load(self) -> None:
        BARRIER.wait(5.0)  # passes only while the other one loads too
        LOG.append("left loads")

    def close(self) -> None:
        LOG.append("left closes")

    async def wait(self) -> int:
        await asyncio.Event().wait()
        return 1


@chainlet
class Right:
    def load(self) -> None:
        BARRIER.wait(5.0)
        LOG.append("right loads")

    def close(self) -> None:
        LOG.append("right closes")

    async def name(self) -> str:
        return current().hop.timing.replica  # type: ignore[union-attr]


@chainlet(entry=True)
class Both:
    left: Left = depends(Left)
    right: Right = depends(Right)

    def close(self) -> None:
        LOG.append("both closes")

    async def talk(self, count: int) -> AsyncIterator[int]:
        try:
            for n in range(count):
                yield n
            await asyncio.Event().wait()
        finally:
            LOG.append("talk ends")


@chainlet
class Fails:
    def load(self) -> None:
        BARRIER.wait(5.0)
        raise ValueError("no such file")

    async def answer(self) -> int:
        return 1


@chainlet(entry=True)
class OneFails:
    left: Left = depends(Left)
    fails: Fails = depends(Fails)

    async def answer(self) -> int:
        return 1


# start and stop


async def test_chainlets_start_side_by_side_with_progress() -> None:
    told: list[Progress] = []
    clock = FakeClock()
    async with InProcess(build(Both), clock=clock, progress=told.append) as runtime:
        assert sorted(LOG) == ["left loads", "right loads"]
        assert runtime.health().ok
    assert LOG[2:] == ["both closes", *LOG[3:]], "callers close before those that they call"
    assert sorted(LOG[3:]) == ["left closes", "right closes"]
    stages = {name: [p.stage for p in told if p.node == name] for name in ("Left", "Right", "Both")}
    assert set(map(tuple, stages.values())) == {("loading", "warming", "ready")}
    assert {p.replica for p in told} == {"Left#0", "Right#0", "Both#0"}


async def test_a_failed_start_stops_what_was_started() -> None:
    told: list[Progress] = []
    runtime = InProcess(build(OneFails), progress=told.append)
    with pytest.raises(StartError, match=r"Fails#0 did not start: ValueError: no such file"):
        await runtime.__aenter__()
    assert LOG == ["left loads", "left closes"]
    assert [p.stage for p in told if p.node == "Fails"] == ["loading", "failed"]
    assert {load.state for load in runtime.load()} == {"stopped"}


GO, BEGUN = threading.Event(), threading.Event()


@chainlet(entry=True)
class SlowStart:
    def load(self) -> None:
        BEGUN.set()
        GO.wait(10.0)
        LOG.append("loaded")

    async def answer(self) -> int:
        return 1


async def test_a_start_that_is_cancelled_lets_go_of_its_threads() -> None:
    starting = asyncio.ensure_future(InProcess(build(SlowStart)).__aenter__())
    await asyncio.to_thread(BEGUN.wait, 5.0)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("SlowStart#0")]
    starting.cancel()
    GO.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    for thread in threads:
        await asyncio.to_thread(thread.join, 5.0)
    assert LOG == ["loaded"]
    assert threads
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("replicas", [{"Nobody": 1}, {"Left": 0}, {"Left": -1}])
def test_unknown_replicas_are_refused_with_the_names(replicas: dict[str, int]) -> None:
    with pytest.raises(SettingError, match=r"at least 1, for one of .*Both"):
        InProcess(build(Both), replicas=replicas)


async def test_before_the_start_there_is_nothing_to_call() -> None:
    runtime = InProcess(build(Both))
    with pytest.raises(Unavailable, match="async with InProcess"):
        runtime.entry  # noqa: B018
    health = runtime.health()
    assert (health.ok, health.why, health.replicas) == (False, "not started", ())


async def test_an_unknown_chainlet_names_those_that_are_there() -> None:
    async with InProcess(build(Both)) as runtime:
        with pytest.raises(NotFound, match=r"the chain has .*Left"):
            runtime.handle("Lift")


async def test_replicas_are_counted_and_named() -> None:
    BARRIER.abort()

    @chainlet(entry=True)
    class Named:
        async def name(self) -> str:
            return current().hop.timing.replica  # type: ignore[union-attr]

    async with InProcess(build(Named), replicas={"Named": 3}) as runtime:
        names = set()
        for _ in range(3):
            async with runtime.open_call():
                names.add(await runtime.entry.name())
        assert [load.replica for load in runtime.load()] == ["Named#0", "Named#1", "Named#2"]
        assert names <= {"Named#0", "Named#1", "Named#2"}


async def test_leaving_on_an_error_does_not_wait_for_what_runs() -> None:
    with pytest.raises(KeyError, match="own"):
        async with InProcess(build(Both), grace=60.0) as runtime, runtime.open_call():
            stream = runtime.entry.talk(1)
            assert await anext(stream) == 0
            raise KeyError("own")
    assert "talk ends" in LOG


async def test_stopping_cancels_calls_that_are_still_open() -> None:
    async with InProcess(build(Both), grace=0.0) as runtime:
        opened = runtime.open_call()
        call = await opened.__aenter__()
        stream = runtime.entry.talk(1)
        assert await anext(stream) == 0
    assert call.reason == "the runtime stopped"
    with pytest.raises(Cancelled):
        await anext(stream)
    await opened.__aexit__(None, None, None)


# calls


async def test_a_call_id_is_open_once() -> None:
    async with InProcess(build(Both)) as runtime:
        async with runtime.open_call(id="c1"):
            with pytest.raises(SettingError, match="c1 is open already"):
                async with runtime.open_call(id="c1"):
                    pass
            assert len(runtime.recorder.calls) == 1
        async with runtime.open_call(id="c1"):
            pass


async def test_leaving_a_call_cancels_what_is_left_of_it() -> None:
    async with InProcess(build(Both)) as runtime:
        async with runtime.open_call() as call:
            stream = runtime.entry.talk(1)
            assert await anext(stream) == 0
        await settle()
        assert LOG[2:] == ["talk ends"]
        assert call.closed
        record = runtime.recorder.find(call.id)
        assert record is not None
        assert record.closed >= call.opened
        assert [hop.outcome for hop in record.hops] == ["cancelled"]
        with pytest.raises(Cancelled), call.activate():
            await anext(runtime.entry.talk(1))


async def test_a_calls_longest_duration() -> None:
    clock = FakeClock()
    async with InProcess(build(Both), clock=clock) as runtime:
        async with runtime.open_call(deadline_s=30.0):
            waiting = runtime.handle("Left").wait()
            await settle()
            await clock.advance(31.0)
            with pytest.raises(DeadlineExceeded):
                await waiting
        assert clock.pending == 0


async def test_calls_that_run_side_by_side_do_not_mix() -> None:
    async with InProcess(build(Both)) as runtime:

        async def one(number: int) -> Any:
            async with runtime.open_call(id=f"c{number}"):
                await runtime.handle("Right").name()
                return current().call.id

        assert await asyncio.gather(*(one(n) for n in range(20))) == [f"c{n}" for n in range(20)]
        assert {len(record.hops) for record in runtime.recorder.calls} == {1}


async def test_health_names_what_is_missing() -> None:
    async with InProcess(build(Both)) as runtime:
        await runtime.kill("Right", 0)
        health = runtime.health()
        assert (health.ok, health.why) == (False, "Right has no replica that serves")
        assert {load.node: load.state for load in health.replicas}["Right"] == "dead"
        async with runtime.open_call():
            with pytest.raises(Unavailable, match="no replica of Right takes calls now"):
                await runtime.handle("Right").name()
