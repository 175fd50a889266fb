"""Calls that arrive close together run as one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chains.call import current
from chains.dsl.chainlet import Model, chainlet, depends, method
from chains.dsl.graph import build
from chains.dsl.specs import Batching
from chains.errors import Cancelled, InvalidValue
from chains.runtime.inprocess import InProcess
from chains.testing import FakeClock, settle

SIZES: list[int] = []


@chainlet
class Other:
    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def wait(self) -> int:
        await self.gate.wait()
        return 1

    async def open_gate(self) -> None:
        self.gate.set()


@chainlet(entry=True)
class Scorer:
    other: Other = depends(Other)

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def seen(self) -> list[int]:
        return self.sizes

    @method(batch=Batching(size=3, wait_ms=10.0))
    async def score(self, text: list[str]) -> list[int]:
        self.sizes.append(len(text))
        return [len(one) for one in text]

    @method(batch=Batching(size=3, wait_ms=10.0))
    def score_blocking(self, text: list[str]) -> list[int]:
        return [len(one) for one in text]

    @method(batch=Batching(size=2, wait_ms=10.0))
    async def fails(self, text: list[str]) -> list[int]:
        raise ValueError("of the whole batch")

    @method(batch=Batching(size=2, wait_ms=10.0))
    async def miscounts(self, text: list[str]) -> list[int]:
        return [1]

    @method(batch=Batching(size=2, wait_ms=10.0))
    async def mistypes(self, text: list[str]) -> list[int]:
        return [1, "two"]  # type: ignore[list-item]

    @method(batch=Batching(size=2, wait_ms=10.0))
    async def asks(self, text: list[str]) -> list[int]:
        found = await self.other.wait()
        return [found for _ in text]

    @method(batch=Batching(size=2, wait_ms=10.0))
    async def whose(self, text: list[str]) -> list[str]:
        return [current().call.id for _ in text]


@pytest.fixture
async def scorer() -> Any:
    clock = FakeClock()
    async with InProcess(build(Scorer), clock=clock) as runtime, runtime.open_call():
        yield runtime, clock


async def test_a_full_batch_runs_at_once(scorer: Any) -> None:
    runtime, clock = scorer
    results = [runtime.entry.score("x" * n) for n in range(3)]
    await settle()
    assert [await result for result in results] == [0, 1, 2], "each its own"
    assert await runtime.entry.seen() == [3]
    assert clock.pending == 0


async def test_the_first_waits_no_longer_than_it_must(scorer: Any) -> None:
    runtime, clock = scorer
    first = runtime.entry.score("a")
    await settle()
    await clock.advance(0.006)
    second = runtime.entry.score("bb")
    await settle()
    assert await runtime.entry.seen() == []
    await clock.advance(0.005)
    assert (await first, await second) == (1, 2)
    assert await runtime.entry.seen() == [2]


async def test_a_call_that_is_cancelled_while_it_waits_is_left_out(scorer: Any) -> None:
    runtime, clock = scorer
    first, second = runtime.entry.score("a"), runtime.entry.score("bb")
    await settle()
    del first
    await clock.advance(0.011)
    assert await second == 2
    assert await runtime.entry.seen() == [1]


async def test_a_batch_of_which_nobody_is_left_does_not_run(scorer: Any) -> None:
    runtime, clock = scorer
    only = runtime.entry.score("a")
    await settle()
    del only
    await clock.advance(0.011)
    assert await runtime.entry.seen() == []


async def test_blocking_batches_run_in_a_thread(scorer: Any) -> None:
    runtime, _ = scorer
    results = [runtime.entry.score_blocking("x" * n) for n in range(3)]
    assert [await result for result in results] == [0, 1, 2]


async def test_an_error_of_the_batch_is_every_members(scorer: Any) -> None:
    runtime, _ = scorer
    results = [runtime.entry.fails("a"), runtime.entry.fails("b")]
    for result in results:
        with pytest.raises(ValueError, match="of the whole batch"):
            await result


async def test_the_number_of_results_is_checked(scorer: Any) -> None:
    runtime, _ = scorer
    results = [runtime.entry.miscounts("a"), runtime.entry.miscounts("b")]
    for result in results:
        with pytest.raises(InvalidValue, match=r"returned 1 results for a batch of 2.*one result for each"):
            await result


async def test_each_result_is_checked_alone(scorer: Any) -> None:
    runtime, _ = scorer
    good, bad = runtime.entry.mistypes("a"), runtime.entry.mistypes("b")
    assert await good == 1
    with pytest.raises(InvalidValue, match="int"):
        await bad


async def test_each_argument_is_checked_before_the_batch(scorer: Any) -> None:
    runtime, _ = scorer
    with pytest.raises(InvalidValue, match="str"):
        runtime.entry.score(7)


@pytest.mark.parametrize("leaver", [0, 1], ids=["first", "last"])
async def test_one_members_cancel_does_not_reach_the_others(scorer: Any, leaver: int) -> None:
    runtime, _ = scorer
    tasks = []

    async def member() -> int:
        async with runtime.open_call():
            return int(await runtime.entry.asks("a"))

    for _ in range(2):
        tasks.append(asyncio.ensure_future(member()))
        await settle()
    tasks.pop(leaver).cancel()
    await settle()
    await runtime.handle("Other").open_gate()
    assert await tasks[0] == 1


async def test_a_batch_belongs_to_nobodys_call(scorer: Any) -> None:
    runtime, _ = scorer
    results = [runtime.entry.whose("a"), runtime.entry.whose("b")]
    ids = {await result for result in results}
    assert len(ids) == 1
    assert not ids & {record.id for record in runtime.recorder.calls}


def load(name: str) -> str:
    return name


def predict(model: str, text: list[str]) -> list[str]:
    SIZES.append(len(text))
    return [f"{model} {one}" for one in text]


Greeter = Model(load=load, predict=predict, name="Greeter", batch=Batching(size=2, wait_ms=1_000.0))


@chainlet(entry=True)
class Hall:
    greeter: Greeter = depends(Greeter, name="hello")  # type: ignore[valid-type]

    async def greet(self, text: str) -> str:
        return str(await self.greeter.predict(text))  # type: ignore[attr-defined]


async def test_a_model_batches_by_a_setting() -> None:
    SIZES.clear()
    async with InProcess(build(Hall)) as runtime, runtime.open_call():
        assert await asyncio.gather(runtime.entry.greet("a"), runtime.entry.greet("b")) == ["hello a", "hello b"]
    assert SIZES == [2]


async def test_a_call_that_ends_while_its_batch_runs(scorer: Any) -> None:
    runtime, _ = scorer
    first, second = runtime.entry.asks("a"), runtime.entry.asks("b")
    await settle()
    first._hop.cancel("hang-up")
    with pytest.raises(Cancelled):
        await first
    await runtime.handle("Other").open_gate()
    assert await second == 1
