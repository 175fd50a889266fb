"""An async method that blocks the loop is named, once each time, and a plain def never is."""

from __future__ import annotations

import asyncio
import threading

from chains.dsl.chainlet import chainlet
from chains.dsl.graph import build
from chains.runtime.inprocess import InProcess
from chains.runtime.watch import LoopWatch

TOLD = threading.Event()


@chainlet(entry=True)
class Blocker:
    async def blocks(self) -> bool:
        return TOLD.wait(10.0)  # the very fault: it holds the loop until somebody says so

    def in_a_thread(self) -> bool:
        return True


async def test_who_blocks_the_loop_is_named() -> None:
    TOLD.clear()
    told: list[tuple[str, float]] = []

    def tell(who: str, seconds: float) -> None:
        told.append((who, seconds))
        TOLD.set()

    async with InProcess(build(Blocker)) as runtime, runtime.open_call():
        assert runtime._line is not None
        watch = LoopWatch(asyncio.get_running_loop(), runtime._line.who, limit=0.05, tell=tell)
        watch.start()
        try:
            assert await runtime.entry.in_a_thread()
            assert not told
            assert await runtime.entry.blocks()
        finally:
            watch.stop()
    assert [who for who, _ in told] == ["Blocker.blocks"]
    assert told[0][1] > 0.05


async def test_a_watch_that_has_stopped_leaves_no_thread() -> None:
    watch = LoopWatch(asyncio.get_running_loop(), lambda task: task.get_name())
    watch.start()
    watch.stop()
    assert not [
        thread for thread in threading.enumerate() if thread.name == "chains-loop-watch" and thread is watch._thread
    ]
