"""A hop on its way: which replica takes it, what is tried again, what its account says."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from chains.dsl.chainlet import chainlet, depends, method
from chains.dsl.graph import build
from chains.dsl.specs import Limits
from chains.errors import Cancelled, RemoteError, Unavailable
from chains.runtime.inprocess import InProcess
from chains.testing import settle


@chainlet(limits=Limits(running=4, queued=8))
class Worker:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.began = 0

    async def once(self) -> int:
        self.began += 1
        await self.gate.wait()
        return self.began

    @method(idempotent=True)
    async def again(self) -> int:
        self.began += 1
        await self.gate.wait()
        return self.began

    @method(idempotent=True)
    async def unavailable(self) -> int:
        self.began += 1
        raise Unavailable("a service of mine is down")

    async def gives_up(self) -> int:
        raise asyncio.CancelledError

    async def open_gate(self) -> None:
        self.gate.set()

    async def how_many(self) -> int:
        return self.began

    async def odd(self) -> int:
        raise type("Odd", (BaseException,), {})("neither error nor exit")


@chainlet(entry=True)
class Boss:
    worker: Worker = depends(Worker, retries=2)
    stern: Worker = depends(Worker, retries=0)

    async def again(self) -> int:
        return await self.worker.again()

    async def sternly(self) -> int:
        return await self.stern.again()

    async def unavailable(self) -> int:
        return await self.worker.unavailable()


def instances(runtime: InProcess) -> list[Any]:
    return [replica._instance for replica in runtime._nodes["Worker"].replicas]


def running_on(runtime: InProcess) -> int:
    loads = [load for load in runtime.load() if load.node == "Worker"]
    return next(index for index, load in enumerate(loads) if load.running)


async def test_an_idempotent_hop_is_tried_as_often_as_its_use_allows() -> None:
    async with InProcess(build(Boss), replicas={"Worker": 4}, grace=0.0) as runtime, runtime.open_call() as call:
        result = runtime.entry.again()
        for _ in range(2):
            await settle()
            await runtime.kill("Worker", running_on(runtime))
        await settle()
        for instance in instances(runtime):
            instance.gate.set()
        assert await result == 1
        assert sum(instance.began for instance in instances(runtime)) == 3
        hop = next(hop for hop in runtime.recorder.find(call.id).hops if hop.node == "Worker")  # type: ignore[union-attr]
        assert (hop.attempts, hop.outcome) == (3, "done")
        parts = hop.parts()
        assert sum(parts.values()) == pytest.approx(hop.closed - hop.opened, abs=1e-9)
        assert min(parts.values()) >= 0.0


async def test_and_no_more_often() -> None:
    async with InProcess(build(Boss), replicas={"Worker": 4}, grace=0.0) as runtime, runtime.open_call():
        result = runtime.entry.sternly()
        await settle()
        await runtime.kill("Worker", running_on(runtime))
        with pytest.raises(Unavailable, match=r"went away during Worker.again; call again"):
            await result


async def test_with_no_other_replica_there_is_nothing_to_try() -> None:
    async with InProcess(build(Boss), grace=0.0) as runtime, runtime.open_call():
        result = runtime.entry.again()
        await settle()
        await runtime.kill("Worker", 0)
        with pytest.raises(Unavailable, match="no other replica of Worker can take the call"):
            await result


async def test_an_error_of_the_users_own_is_not_tried_again() -> None:
    """Unavailable that the method raised is its answer, not a fault of the way there."""
    async with InProcess(build(Boss), replicas={"Worker": 2}) as runtime, runtime.open_call():
        with pytest.raises(Unavailable, match="a service of mine"):
            await runtime.entry.unavailable()
        assert sum(instance.began for instance in instances(runtime)) == 1


async def test_a_hang_up_while_it_is_tried_again_ends_it() -> None:
    async with InProcess(build(Boss), replicas={"Worker": 2}, grace=0.0) as runtime, runtime.open_call() as call:
        result = runtime.entry.again()
        await settle()
        await runtime.kill("Worker", running_on(runtime))
        call.cancel("hang-up")
        with pytest.raises(Cancelled, match="hang-up"):
            await result
        await settle()
        assert not any(load.running for load in runtime.load())


async def test_code_that_cancels_itself_says_so() -> None:
    async with InProcess(build(Boss)) as runtime, runtime.open_call():
        with pytest.raises(Cancelled, match="cancelled from within"):
            await runtime.handle("Worker").gives_up()


async def test_what_is_neither_error_nor_exit_still_releases_the_caller() -> None:
    async with InProcess(build(Boss)) as runtime, runtime.open_call():
        with pytest.raises(RemoteError, match="Odd: neither"):
            await asyncio.wait_for(_awaited(runtime.handle("Worker").odd()), 5.0)


async def _awaited(result: Any) -> Any:
    return await result


async def test_calls_spread_over_replicas_and_conversations_stay() -> None:
    async with InProcess(build(Boss), replicas={"Worker": 2}, grace=0.0) as runtime:
        async with runtime.open_call(affinity="a"), runtime.open_call(affinity="b") as second:
            results = [runtime.handle("Worker").once() for _ in range(2)]
            await settle()
            assert sorted(instance.began for instance in instances(runtime)) == [0, 2], "one conversation, one replica"
            more = [runtime.handle("Worker").once() for _ in range(3)]
            await settle()
            began = sorted(instance.began for instance in instances(runtime))
            assert began[0] >= 1, f"but not when the other one is clearly less loaded: {began}"
            second.cancel("done")
            del results, more
        assert runtime._nodes["Worker"]._choice._router._homes == {}, "a conversation that has ended has no home"


async def test_a_reference_that_is_dropped_in_another_thread_cancels_too() -> None:
    async with InProcess(build(Boss), grace=0.0) as runtime, runtime.open_call():
        held = [runtime.handle("Worker").once()]
        await settle()
        thread = threading.Thread(target=held.clear)
        thread.start()
        await asyncio.to_thread(thread.join)
        await settle()
        assert not any(load.running for load in runtime.load())
