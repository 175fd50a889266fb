"""What it costs to export spans: CPU of a hop with export on, less the same without.

All threads of the process count. The spans go to a receiver on a socket in another process, which takes them in and
forgets them. Nothing may be lost: a side that drops a span fails. The turn is one with the hops of a phone call's, and
its latency is what its caller sees.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

from benchmarks.inprocess import receiver
from benchmarks.report import Row, arguments, compare, interleave, report
from chains.call import current
from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build
from chains.export import OtlpExporter, resource_of, sampler
from chains.otlp import Endpoint, endpoint_of
from chains.runtime.inprocess import InProcess
from chains.spans import Recorder
from chains.timing import LoopClock

GOAL_US = 100.0
SPANS_OF_A_TURN, TURN_MS = 20, 700.0
"""Of a turn of the example's phone call: its spans, and its latency on a machine without a GPU."""
NOTES: dict[str, str | int | float] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "chains",
    "gen_ai.request.model": "default",
    "gen_ai.response.model": "SmolLM2-135M-Instruct",
    "gen_ai.request.max_tokens": 120,
    "gen_ai.request.temperature": 0.7,
    "gen_ai.request.top_p": 0.95,
    "gen_ai.usage.input_tokens": 812,
    "gen_ai.usage.output_tokens": 41,
    "chains.cached_tokens": 700,
    "chains.ttft_ms": 61.25,
}


@chainlet
class Model:
    async def say(self, text: str) -> str:
        return text

    async def reply(self, text: str) -> str:
        """As a language model's hop: it names its work and notes its figures."""
        scope = current()
        for name, value in NOTES.items():
            scope.note(name, value)
        with scope.work("decode"):
            await asyncio.sleep(0)
        return text


@chainlet(entry=True)
class Caller:
    """Says how many seconds of CPU a hop took on the loop, and how many seconds a turn took."""

    model: Model = depends(Model)

    async def plain(self, times: int) -> None:
        for _ in range(times):
            await self.model.say("x")

    async def noted(self, times: int) -> None:
        for _ in range(times):
            await self.model.reply("x")

    async def turns(self, times: int) -> float:
        """Seconds of a turn with the hops of a phone call's, and pauses in which other threads can run."""
        taken = 0.0
        for _ in range(times):
            async with current().call.new_turn():
                start = time.perf_counter()
                for _ in range(SPANS_OF_A_TURN):
                    await self.model.reply("x")
                    await asyncio.sleep(0.001)
                taken += time.perf_counter() - start
        return taken / times


def exporter(queue: int) -> OtlpExporter:
    """By the standard variables, with room for all that a round makes."""
    asked: Endpoint = endpoint_of({**os.environ, "OTEL_BSP_MAX_QUEUE_SIZE": str(queue)})
    return OtlpExporter(asked, resource_of(os.environ, chain="Caller"), sampler(os.environ))


async def round_of(method: str, times: int, *, on: bool, seconds: bool = False) -> float:
    """CPU seconds of the process for each of the `times`; of turns the seconds that one took."""
    clock = LoopClock()
    out = exporter(2 * times * (SPANS_OF_A_TURN if seconds else 1) + 1_000) if on else None
    start = time.process_time()
    async with (
        InProcess(build(Caller), clock=clock, recorder=Recorder(clock, exporter=out)) as runtime,
        runtime.open_call(),
    ):
        taken = await getattr(runtime.entry, method)(times)
    if out is not None:
        while not out.flush():
            pass
        out.close()
        if out.dropped:
            raise RuntimeError(f"{out.dropped} spans were lost")
    return float(taken) if seconds else (time.process_time() - start) / times


def measured(rounds: int, hops: int, turns: int, seed: int) -> list[Row]:
    def once(method: str, times: int, on: bool, seconds: bool = False) -> Callable[[], float]:
        return lambda: asyncio.run(round_of(method, times, on=on, seconds=seconds))

    sides: dict[str, Callable[[], float]] = {}
    for name, on in (("off", False), ("on", True)):
        sides[f"plain {name}"] = once("plain", hops, on)
        sides[f"noted {name}"] = once("noted", hops, on)
        sides[f"turn {name}"] = partial(once("turns", turns, on, seconds=True))
    with receiver():
        kept = interleave(rounds, sides, seed=seed)
    cost = {
        kind: [on - off for on, off in zip(kept[f"{kind} on"], kept[f"{kind} off"], strict=True)]
        for kind in ("plain", "noted")
    }
    share = [seconds * SPANS_OF_A_TURN / TURN_MS * 1e5 for seconds in cost["noted"]]
    return [
        compare("a span of a plain hop, us CPU", cost["plain"], goal=GOAL_US, scale=1e6),
        compare("a span with notes and work, us CPU", cost["noted"], goal=GOAL_US, scale=1e6),
        compare("a hop, export on / off, us CPU", kept["plain on"], kept["plain off"], scale=1e6),
        compare(f"{SPANS_OF_A_TURN} spans of a turn of {TURN_MS:.0f} ms, % CPU", share),
        compare("a turn's latency, export on / off, ms", kept["turn on"], kept["turn off"], scale=1e3),
    ]


def main() -> None:
    options = arguments("CPU time of an exported span")
    rounds, hops, turns = (3, 1_000, 3) if options.quick else (5, 100_000, 50)
    rows = measured(rounds, hops, turns, options.seed)
    report(rows, options.json, f"Export of spans by OTLP: {rounds} rounds of {hops:,} hops")


if __name__ == "__main__":
    main()
