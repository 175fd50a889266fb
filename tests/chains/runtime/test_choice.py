"""Which replica a hop goes to, and what a call that ends leaves behind."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from chains.call import Call, Hop
from chains.dsl.chainlet import chainlet, method
from chains.dsl.graph import build
from chains.dsl.specs import Limits
from chains.errors import Overloaded
from chains.policy.quota import Quota, Quotas
from chains.policy.routing import Load, digest
from chains.runtime.attempt import Attempt
from chains.runtime.choice import Choice
from chains.runtime.inprocess import InProcess
from chains.testing import FakeClock, settle


@chainlet(entry=True, limits=Limits(running=2, queued=2))
class Desk:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.seen = 0

    async def serve(self) -> int:
        self.seen += 1
        await self.gate.wait()
        return self.seen

    @method(prefix="prompt")
    async def say(self, prompt: str) -> str:
        self.seen += 1
        return prompt


GRAPH = build(Desk)
NODE = GRAPH.nodes["Desk"]


def attempt_of(call: Call) -> Attempt:
    return Attempt(Hop(call, "Desk", "serve", None), NODE.methods["serve"], {}, None, None)


def test_a_conversation_has_its_replica_until_the_call_ends() -> None:
    clock = FakeClock()
    choice = Choice(NODE, clock, Quotas())
    choice.update({f"Desk#{index}": "" for index in range(8)})
    call = Call(clock, affinity="lee")
    first = choice.pick(attempt_of(call), ())
    assert first is not None
    choice.done(first, False)
    assert choice.pick(attempt_of(call), ()) == first
    again = attempt_of(call)
    again.may_queue = False
    assert choice.pick(again, ()) == first and again.may_queue, "it waits at its own replica"
    call.close()
    assert choice._router.home("lee") == ""


def test_replicas_of_ones_own_are_nobody_else_s() -> None:
    clock = FakeClock()
    choice = Choice(NODE, clock, Quotas(tenants={"clinic": Quota(dedicated=1)}))
    choice.update({f"Desk#{index}": "" for index in range(3)})
    theirs = choice.pick(attempt_of(Call(clock, tenant="clinic")), ())
    others = {choice.pick(attempt_of(Call(clock, tenant="other")), ()) for _ in range(20)}
    assert theirs not in others and len(others) == 2


def test_the_callers_machine_comes_first() -> None:
    choice = Choice(NODE, FakeClock(), Quotas(), machine="here")
    choice.update({"Desk#0": "there", "Desk#1": "here", "Desk#2": "there"})
    assert choice.pick(attempt_of(Call(FakeClock())), ()) == "Desk#1"
    choice.report("Desk#1", Load(running=2))
    assert choice.pick(attempt_of(Call(FakeClock())), ()) != "Desk#1"


# with replicas


async def fill(runtime: InProcess, stack: AsyncExitStack, calls: int, **settings: Any) -> list[asyncio.Task[Any]]:
    """So many hops that stay, each in a conversation of its own."""
    tasks = []
    for _ in range(calls):
        await stack.enter_async_context(runtime.open_call(**settings))
        tasks.append(asyncio.ensure_future(awaited(runtime.entry.serve())))
        await settle()
    return tasks


async def awaited(result: Any) -> Any:
    return await result


def running(runtime: InProcess) -> list[tuple[int, int]]:
    return [(load.running, load.queued) for load in runtime.load()]


def open_gates(runtime: InProcess) -> None:
    for replica in runtime._nodes["Desk"].replicas:
        replica._instance.gate.set()


async def test_calls_fill_free_slots_before_they_wait_and_are_refused_only_when_all_is_full() -> None:
    async with InProcess(GRAPH, replicas={"Desk": 3}) as runtime, AsyncExitStack() as stack:
        tasks = await fill(runtime, stack, 6)
        assert running(runtime) == [(2, 0)] * 3
        tasks += await fill(runtime, stack, 6)
        assert running(runtime) == [(2, 2)] * 3
        with pytest.raises(Overloaded, match="runs 2 calls and 2 wait"):
            await (await fill(runtime, stack, 1))[0]
        open_gates(runtime)
        await asyncio.gather(*tasks)


async def test_prompts_that_begin_alike_go_where_that_beginning_is_known() -> None:
    async with InProcess(GRAPH, replicas={"Desk": 8}) as runtime:
        for number in range(40):
            async with runtime.open_call():
                beginning = "You are the receptionist of a clinic. " * 40
                assert await runtime.entry.say(beginning + f"Caller {number}")
        counts = sorted((replica._instance.seen for replica in runtime._nodes["Desk"].replicas), reverse=True)
        assert sum(counts[:2]) == 40, "the two replicas that its digest names"


async def test_a_tenant_that_floods_leaves_others_their_slots() -> None:
    quotas = Quotas(tenants={"flood": Quota(share=0.5)}, reserve=1.0)
    async with InProcess(GRAPH, replicas={"Desk": 2}, quotas=quotas) as runtime, AsyncExitStack() as stack:
        flood = await fill(runtime, stack, 6, tenant="flood")
        assert running(runtime) == [(1, 2), (1, 2)], "its half of each"
        other = await fill(runtime, stack, 2, tenant="clinic")
        assert running(runtime) == [(2, 2), (2, 2)], "theirs begins at once"
        open_gates(runtime)
        await asyncio.gather(*flood, *other)
        assert [replica._queue.taken for replica in runtime._nodes["Desk"].replicas] == [0, 0]


def test_a_digest_is_of_the_beginning() -> None:
    system = {"role": "system", "content": "You are kind."}
    assert digest("a" * 2000) == digest("a" * 1024 + "b") != digest("a" * 1000)
    assert digest([system, {"role": "user", "content": "hi"}]) == digest([system]) != digest([])
    assert digest(list(range(300))) == digest(list(range(400))) != digest(list(range(200)))
