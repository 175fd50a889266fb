"""From one replica to eight under a step of load, on Ray: when the eighth first answers, counted from the step.

Ours is scaled by its own load. The peers are bare Serve: one replica of a class without imports, from the order to its
first answer; and the same application told by hand, at the moment of the step, to have eight. All on one private Ray.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

from benchmarks.report import Options, Row, arguments, bounded, interleave_async, report
from chains.dsl.chainlet import chainlet
from chains.dsl.graph import build
from chains.dsl.specs import Autoscaling, Limits
from chains.errors import ChainsError

MOST, SLOTS, TAKES = 8, 4, 0.1
CALM, BUSY = 5.0, 0.8 * MOST * SLOTS / TAKES
"""Calls per second before the step, and after it: eight replicas are then busy for four fifths of their time."""
PATIENCE = 60.0


class Bare:
    """What a replica does, for Serve alone: nothing but time, so that all start on free cores."""

    async def answer(self) -> int:
        await asyncio.sleep(TAKES)
        return os.getpid()


@chainlet(
    entry=True,
    scaling=Autoscaling(min=1, max=MOST, target_streams=SLOTS / 2, target_wait_ms=50.0, up_delay=0.5),
    limits=Limits(running=SLOTS, queued=256),
)
class Worker:
    async def answer(self) -> int:
        await asyncio.sleep(TAKES)
        return os.getpid()


async def until(replicas: int, call: Callable[[], Awaitable[int]], rate: float) -> float:
    """Seconds until that many processes have answered, under calls at `rate` per second; infinite past PATIENCE."""
    seen, start, calls = set[int](), time.monotonic(), set[asyncio.Future[None]]()

    async def one() -> None:
        try:
            seen.add(await call())
        except ChainsError:
            pass  # refused while there are too few: what is looked for is who answers

    due = start
    while len(seen) < replicas:
        if due - start > PATIENCE:
            print(f"{len(seen)} of {replicas} replicas answered within {PATIENCE:g} s", file=sys.stderr)
            return float("inf")
        due += 1 / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        task = asyncio.ensure_future(one())
        calls.add(task)
        task.add_done_callback(calls.discard)
    took = time.monotonic() - start
    await asyncio.gather(*calls)
    return took


async def ours(calm: float) -> float:
    """A deployment that scales itself, from its step on."""
    from ray import serve

    from chains.runtime.ray_serve import Attached, Plan, deploy
    from chains.runtime.target import target_of

    graph, app = build(Worker), f"step-{secrets.token_hex(4)}"
    await deploy(graph, Plan(target_of(graph), tuple(map(os.path.abspath, sys.path))), app)
    try:
        async with Attached(graph, app) as runtime:

            async def call() -> int:
                async with runtime.open_call():  # each a conversation of its own: one would keep to its replica
                    answer: int = await runtime.entry.answer()
                    return answer

            await asyncio.wait_for(_calm(call, calm), PATIENCE)
            return await until(MOST, call, BUSY)
    finally:
        await asyncio.to_thread(serve.delete, app)


async def bare(calm: float, replicas: int) -> float:
    """Serve alone: the start of one replica, or from one to `replicas` by hand."""
    from ray import serve

    app = f"bare-{secrets.token_hex(4)}"

    def deploy(count: int) -> Any:
        deployment: Any = serve.deployment(num_replicas=count, max_ongoing_requests=SLOTS)(Bare)
        return serve.run(deployment.bind(), name=app, route_prefix=None)

    start = time.monotonic()
    try:
        handle = await asyncio.to_thread(deploy, 1)

        async def call() -> int:
            pid: int = await handle.answer.remote()
            return pid

        await until(1, call, CALM)
        if replicas == 1:
            return time.monotonic() - start
        await _calm(call, calm)
        scaled = asyncio.create_task(asyncio.to_thread(deploy, replicas))
        took = await until(replicas, call, BUSY)
        await scaled
        return took
    finally:
        await asyncio.to_thread(serve.delete, app)


async def _calm(call: Callable[[], Awaitable[int]], seconds: float) -> None:
    until_, gap = time.monotonic() + seconds, 1 / CALM
    while time.monotonic() < until_:
        await call()
        await asyncio.sleep(gap)


async def measure(options: Options, rounds: int) -> dict[str, list[float]]:
    kept: dict[str, list[float]] = {"ours": [], "one": [], "by hand": []}
    calm = 1.0 if options.quick else 5.0

    def side(name: str, run: Callable[[], Awaitable[float]]) -> Callable[[bool], Awaitable[None]]:
        async def measured(keep: bool) -> None:
            kept[name].append(await run())

        return measured

    sides = {
        "ours": side("ours", lambda: ours(calm)),
        "one": side("one", lambda: bare(calm, 1)),
        "by hand": side("by hand", lambda: bare(calm, MOST)),
    }
    await interleave_async(rounds, sides, seed=options.seed, warm=0)
    return kept


def rows(options: Options, rounds: int = 3) -> list[Row]:
    """The rows of the step; for the table of hop.py too. None of them without Ray."""
    if find_spec("ray") is None or find_spec("chains.runtime.ray_serve") is None:
        print("Ray, or the runtime on it, is not installed: the step of load is left out")
        return []
    kept = asyncio.run(measure(options, 1 if options.quick else rounds))
    return [
        bounded(f"s: 1 to {MOST} replicas / start of one bare Serve replica", kept["ours"], kept["one"], 1.5),
        bounded(f"s: 1 to {MOST} replicas / bare Serve, {MOST} by hand", kept["ours"], kept["by hand"], None),
    ]


def main() -> None:
    options = arguments(__doc__ or "")
    if find_spec("ray") is None:
        sys.exit("Ray is not installed: pip install 'chains-serve[ray]'")
    from benchmarks.peers import serve

    with serve.cluster():
        found = rows(options)
    report(found, options.json, "A step of load on Ray")


if __name__ == "__main__":
    main()
