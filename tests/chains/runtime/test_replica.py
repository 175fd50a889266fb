"""One replica: its start, its caps, its queue, its end, and what it says of itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from chains.call import current
from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build, load
from chains.dsl.specs import Limits
from chains.errors import Cancelled, DeadlineExceeded, Overloaded, RemoteError, StartError, Unavailable
from chains.runtime.inprocess import InProcess
from chains.testing import FakeClock, settle

LINES = Path(__file__).read_text().splitlines()


class Gates:
    """What the test and the chainlets of one test share."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.thread = threading.Event()
        self.began = threading.Event()
        self.log: list[str] = []


@chainlet(entry=True, limits=Limits(running=1, queued=2))
class Desk:
    def __init__(self) -> None:
        self.gates = Gates()

    def close(self) -> None:
        self.gates.log.append("closed")

    async def gates_of(self) -> bool:
        return self.gates.open.is_set()

    async def serve(self, name: str) -> str:
        self.gates.log.append(name)
        try:
            await self.gates.open.wait()
        finally:
            self.gates.log.append(f"{name} ends")
        return name

    def block(self, name: str) -> str:
        self.gates.began.set()
        self.gates.thread.wait(10.0)
        return name

    def quits(self, code: int) -> int:
        raise SystemExit(code)

    async def quits_async(self, code: int) -> int:
        raise SystemExit(code)

    def ends(self) -> int:
        raise StopIteration

    def counts(self) -> Iterator[int]:
        yield 1
        raise ValueError("after one")


def desk_of(runtime: InProcess) -> tuple[Any, Gates]:
    """The replica and the gates of its instance."""
    replica: Any = runtime._nodes["Desk"].replicas[0]
    return replica, replica._instance.gates


@pytest.fixture
async def running() -> AsyncIterator[tuple[InProcess, FakeClock]]:
    clock = FakeClock()
    async with InProcess(build(Desk), clock=clock) as runtime:
        yield runtime, clock
        gates = desk_of(runtime)[1]
        gates.open.set()
        gates.thread.set()
        await settle()


# caps and queue


async def test_past_the_caps_a_call_is_refused_with_the_mend(running: Any) -> None:
    runtime, _ = running
    async with runtime.open_call():
        results = [runtime.entry.serve(f"{n}") for n in range(3)]
        await settle()
        with pytest.raises(Overloaded, match=r"runs 1 calls and 2 wait.*Limits\(1, 2\)"):
            await runtime.entry.serve("late")
        desk_of(runtime)[1].open.set()
        assert [await result for result in results] == ["0", "1", "2"]


async def test_of_those_that_wait_interactive_calls_go_first_then_the_oldest(running: Any) -> None:
    runtime, _ = running
    _, gates = desk_of(runtime)

    async def one(name: str, priority: Any) -> None:
        async with runtime.open_call(priority=priority):
            await runtime.entry.serve(name)

    tasks = [asyncio.ensure_future(one("first", "interactive"))]
    await settle()
    for name, priority in (("batch", "batch"), ("urgent", "interactive")):
        tasks.append(asyncio.ensure_future(one(name, priority)))
        await settle()
    gates.open.set()
    await asyncio.gather(*tasks)
    assert [line for line in gates.log if "ends" not in line] == ["first", "urgent", "batch"]


async def test_a_cancelled_waiter_leaves_the_queue(running: Any) -> None:
    runtime, _ = running
    async with runtime.open_call():
        first, second, third = (runtime.entry.serve(f"{n}") for n in range(3))
        await settle()
        assert runtime.load()[0].queued == 2
        del second
        await settle()
        assert runtime.load()[0].queued == 1
        desk_of(runtime)[1].open.set()
        assert [await first, await third] == ["0", "2"]


async def test_a_slot_given_to_one_that_is_cancelled_goes_to_the_next(running: Any) -> None:
    runtime, _ = running
    replica, gates = desk_of(runtime)
    async with runtime.open_call():
        first, second, third = (runtime.entry.serve(f"{n}") for n in range(3))
        await settle()
        replica._release("")  # the slot goes to the second, which is cancelled before it runs
        second._hop.cancel("gone")
        await settle()
        assert gates.log == ["0", "2"], "the third has it"
        gates.open.set()
        assert (await first, await third) == ("0", "2")
        with pytest.raises(Cancelled):
            await second
        assert replica._queue.admit("")  # the slot that was given away above though it was in use


async def test_the_wait_in_the_queue_is_told(running: Any) -> None:
    runtime, clock = running
    async with runtime.open_call():
        first, second = runtime.entry.serve("0"), runtime.entry.serve("1")
        await settle()
        await clock.advance(0.25)
        assert runtime.load()[0].queue_wait_ms == pytest.approx(250.0)
        desk_of(runtime)[1].open.set()
        await first
        await second
        assert runtime.load()[0].queue_wait_ms == pytest.approx(250.0), "what the last one had waited"
        assert second.timing.parts()["queue"] == pytest.approx(0.25)


async def test_time_that_is_up_is_seen_before_any_work(running: Any) -> None:
    """Also when the timer that tells of it has not fired yet: the loop was busy."""
    runtime, clock = running
    _, gates = desk_of(runtime)
    async with runtime.open_call(deadline_s=1.0):
        result = runtime.entry.serve("late")
        clock._now += 2.0
        with pytest.raises(DeadlineExceeded):
            await result
    assert gates.log == []


# user code that ends oddly


@pytest.mark.parametrize("method", ["quits", "quits_async"])
async def test_sys_exit_ends_the_hop_and_not_the_process(running: Any, method: str) -> None:
    runtime, _ = running
    async with runtime.open_call():
        with pytest.raises(RemoteError, match="SystemExit: 3"):
            await getattr(runtime.entry, method)(3)
        assert await runtime.entry.gates_of() is False


async def test_stop_iteration_is_an_error_with_its_mend(running: Any) -> None:
    runtime, _ = running
    async with runtime.open_call():
        with pytest.raises(Exception, match="return instead of raising StopIteration"):
            await runtime.entry.ends()


async def test_a_blocking_generator_that_fails_delivers_what_came_before(running: Any) -> None:
    runtime, _ = running
    taken = []
    async with runtime.open_call():
        with pytest.raises(ValueError, match="after one"):
            async for n in runtime.entry.counts():
                taken.append(n)
    assert taken == [1]


# the end


async def stop(runtime: InProcess, grace: float) -> Any:
    return asyncio.ensure_future(runtime._stop(grace))


async def test_drain_lets_run_what_ends_in_time() -> None:
    clock = FakeClock()
    async with InProcess(build(Desk), clock=clock) as runtime, runtime.open_call():
        replica, gates = desk_of(runtime)
        result, waiting = runtime.entry.serve("0"), runtime.entry.serve("1")
        await settle()
        stopping = await stop(runtime, 5.0)
        await settle()
        assert replica.state == "draining"
        with pytest.raises(Unavailable):
            await waiting
        with pytest.raises(Unavailable):
            await runtime.entry.serve("late")
        await clock.advance(4.0)
        gates.open.set()
        assert await result == "0"
        await stopping
        assert (replica.state, gates.log) == ("stopped", ["0", "0 ends", "closed"])
        assert clock.pending == 0


async def test_drain_cancels_what_does_not() -> None:
    clock = FakeClock()
    async with InProcess(build(Desk), clock=clock) as runtime, runtime.open_call():
        replica, gates = desk_of(runtime)
        result = runtime.entry.serve("0")
        await settle()
        stopping = await stop(runtime, 5.0)
        await clock.advance(5.0)
        with pytest.raises(Cancelled, match="replica stopped"):
            await result
        await stopping
        assert gates.log == ["0", "0 ends", "closed"], "its finally ran before the chainlet was closed"
        await replica.drain()


async def test_who_was_given_a_slot_of_a_replica_that_goes_is_refused() -> None:
    """Between the slot's being free and the waiting call's taking it, the replica went away."""
    async with InProcess(build(Desk)) as runtime, runtime.open_call():
        replica, gates = desk_of(runtime)
        first, second = runtime.entry.serve("0"), runtime.entry.serve("1")
        await settle()
        replica._release("")
        replica.kill()
        for result in (first, second):
            with pytest.raises(Unavailable):
                await result
        assert "1" not in gates.log


async def test_killed_while_code_blocks_ends_at_once() -> None:
    async with InProcess(build(Desk), grace=0.0) as runtime, runtime.open_call():
        replica, gates = desk_of(runtime)
        result = runtime.entry.block("0")
        await asyncio.to_thread(gates.began.wait, 5.0)
        replica.kill()
        with pytest.raises(Unavailable, match="went away"):
            await result
        assert "Desk has no replica that serves" in runtime.health().why
        gates.thread.set()


# the start


@chainlet(entry=True)
class Broken:
    def __init__(self, at: str = "load") -> None:
        self.at = at

    def load(self) -> None:
        if self.at == "load":
            raise FileNotFoundError("weights.bin")

    async def warm(self) -> None:
        if self.at == "warm":
            raise RuntimeError("no warmth")

    async def answer(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("at", "text"), [("load", "FileNotFoundError: weights.bin"), ("warm", "RuntimeError: no warmth")]
)
async def test_a_failed_start_names_the_line_and_the_cause(at: str, text: str) -> None:
    @chainlet(entry=True)
    class Start(Broken):
        def __init__(self) -> None:
            super().__init__(at)

    with pytest.raises(StartError) as caught:
        async with InProcess(build(Start)):
            pass
    line = next(n for n, source in enumerate(LINES, 1) if source.strip() == f'if self.at == "{at}":') + 1
    assert f"Start#0 did not start: {text}" in str(caught.value)
    assert f'"{__file__}", line {line}, in {at}' in str(caught.value)
    assert isinstance(caught.value.__cause__, FileNotFoundError | RuntimeError)


@pytest.mark.parametrize("hook", ["__init__", "load", "warm"])
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("raise SystemExit(4)", "did not start: SystemExit: 4"),
        ("sys.exit()", "did not start: SystemExit"),
        (
            "import not_there.part",
            r"not_there is not installed, which is imported at .*starts\.py:\d+; run: pip install not_there$",
        ),
    ],
)
async def test_a_start_that_ends_the_program_or_lacks_a_library_says_so(
    tmp_path: Path, hook: str, line: str, told: str
) -> None:
    file = tmp_path / "starts.py"
    file.write_text(
        "import sys\nfrom chains import chainlet\n@chainlet(entry=True)\nclass Starts:\n"
        f"    def {hook}(self) -> None:\n        {line}\n    async def run(self) -> str:\n        return ''\n"
    )
    with pytest.raises(StartError, match=told):
        async with InProcess(load(str(file))):
            pass


@chainlet
class Below:
    log: list[str]

    def __init__(self) -> None:
        self.log = []

    async def load(self) -> None:
        self.log.append("load")

    def warm(self) -> None:
        self.log.append("warm")

    async def close(self) -> None:
        self.log.append("close")

    async def answer(self) -> list[str]:
        return list(self.log)


@chainlet(entry=True)
class Above:
    below: Below = depends(Below)

    def close(self) -> None:
        raise ValueError("cannot close")

    async def answer(self) -> list[str]:
        return await self.below.answer()


async def test_hooks_run_in_order_and_a_failing_close_keeps_no_other_from_closing() -> None:
    with pytest.raises(StartError, match="Above#0 did not close: ValueError: cannot close"):
        async with InProcess(build(Above)) as runtime, runtime.open_call():
            assert await runtime.entry.answer() == ["load", "warm"]
            instance: Any = runtime._nodes["Below"].replicas[0]._instance
    assert instance.log == ["load", "warm", "close"]


async def test_an_error_in_the_block_is_not_hidden_by_a_failing_close() -> None:
    with pytest.raises(KeyError, match="own"):
        async with InProcess(build(Above)):
            raise KeyError("own")


# what it says of itself


@chainlet
class Slow:
    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def answer(self) -> int:
        await self.gate.wait()
        return 1

    async def open_gate(self) -> None:
        self.gate.set()


@chainlet(entry=True)
class Front:
    slow: Slow = depends(Slow, timeout=None)

    async def answer(self) -> int:
        return await self.slow.answer()

    async def turns(self) -> int:
        turn = current().turn
        return turn.number if turn else 0


async def test_a_hop_that_computes_without_a_step_is_stuck_and_one_that_waits_is_not() -> None:
    clock = FakeClock()
    async with InProcess(build(Front), clock=clock, stuck_s=60.0) as runtime, runtime.open_call():
        result = runtime.entry.answer()
        await settle()
        await clock.advance(59.0)
        assert runtime.health().ok
        await clock.advance(2.0)
        health = runtime.health()
        assert not health.ok
        assert "Slow#0 has not moved for 61 s with 1 calls running" in health.why
        loads = {load.node: load for load in health.replicas}
        assert (loads["Slow"].idle_s, loads["Front"].idle_s) == (61.0, 0.0)
        await runtime.handle("Slow").open_gate()
        assert await result == 1
        assert runtime.health().ok
