"""A burst of ten times the load for five seconds: what is admitted starts as fast as before, others are refused soon.

A replica of SLOTS slots streams answers of 10 tokens in 0.2 s, like a model that is busy elsewhere; calls arrive at
random moments (Poisson) at half of what it can do, then at ten times that. Called from handle to method, over the wire.
Latency is from the moment at which a call was due.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

from benchmarks.peers.ours import RUNTIME, ground, started
from benchmarks.report import Options, Row, arguments, bounded, compare, report
from chains.dsl.chainlet import chainlet
from chains.dsl.graph import build
from chains.dsl.specs import Limits
from chains.errors import Overloaded

SLOTS, TOKENS, STEP = 8, 10, 0.02
CALM = 0.5 * SLOTS / (TOKENS * STEP)
"""Calls per second before and after the burst: half of what the slots can do."""
BURST = 10


@chainlet(entry=True, limits=Limits(running=SLOTS, queued=0))
class Model:
    async def answer(self, times: int) -> AsyncIterator[str]:
        for number in range(times):
            await asyncio.sleep(STEP)
            yield f"token {number}"


@dataclass
class Phase:
    """What became of the calls of one phase: seconds to the first item of those admitted, to the refusal of others."""

    firsts: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


async def one(model: Any, due: float, phase: Phase) -> None:
    count = 0
    try:
        async for _ in model.answer(TOKENS):
            if not count:
                phase.firsts.append(time.monotonic() - due)
            count += 1
        if count != TOKENS:
            phase.wrong.append(f"{count} tokens of {TOKENS}")
    except Overloaded:
        phase.refused.append(time.monotonic() - due)
    except Exception as error:
        phase.wrong.append(f"{type(error).__name__}: {error}")


async def load(model: Any, rate: float, seconds: float, chance: random.Random) -> Phase:
    """Calls at `rate` per second, whether or not earlier ones have been answered."""
    phase, due = Phase(), time.monotonic()
    until, calls = due + seconds, []
    while (due := due + chance.expovariate(rate)) < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        calls.append(asyncio.ensure_future(one(model, due, phase)))
    await asyncio.wait_for(asyncio.gather(*calls), 60.0)
    return phase


async def measure(options: Options) -> dict[str, Phase]:
    calm, burst = (3.0, 1.0) if options.quick else (20.0, 5.0)
    chance = random.Random(options.seed)
    async with started(options.more["runtime"], build(Model)) as runtime, runtime.open_call():
        await load(runtime.entry, CALM, 1.0, chance)
        return {
            "before": await load(runtime.entry, CALM, calm, chance),
            "burst": await load(runtime.entry, CALM * BURST, burst, chance),
            "after": await load(runtime.entry, CALM, calm, chance),
        }


def rows(options: Options) -> list[Row]:
    """The rows of the burst; for the table of hop.py too."""
    found = asyncio.run(measure(options))
    before, burst, after = found["before"], found["burst"], found["after"]
    wrong = [what for phase in found.values() for what in phase.wrong]
    if wrong:
        print(f"{len(wrong)} calls ended otherwise, e.g. {wrong[0]}", file=sys.stderr)
    return [
        bounded("ms: first item p99, burst / before", burst.firsts, before.firsts, 2.0, at=99, scale=1e3),
        compare("ms: until a refusal, p99 in the burst", burst.refused, goal=10.0, at=99, scale=1e3),
        bounded("ms: first item p99, after / before", after.firsts, before.firsts, None, at=99, scale=1e3),
        Row(
            "calls neither answered nor refused", len(wrong), n=sum(map(_calls, found.values())), goal=0, met=not wrong
        ),
    ]


def _calls(phase: Phase) -> int:
    return len(phase.firsts) + len(phase.refused) + len(phase.wrong)


def main() -> None:
    options = arguments(__doc__ or "", more={"runtime": RUNTIME})
    with ground(options.more["runtime"]):
        found = rows(options)
    report(found, options.json, f"A burst of {BURST} times the load ({options.more['runtime']})")


if __name__ == "__main__":
    main()
