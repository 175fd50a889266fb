"""What it costs to record: CPU of the gateway for each 20 ms of sound; the viewer's CPU, bytes on disk, a seek.

All threads of the gateway's process count. The viewer is the real one, in a process of its own. Nothing may be lost: a
round that drops a frame fails. The sound is a tone that swells, with noise: harder to pack than speech with its pauses.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

import numpy as np

from benchmarks.report import Row, arguments, compare, interleave, report
from chains.call import Call
from chains.dsl.chainlet import chainlet
from chains.dsl.graph import build
from chains.gateway.tape import Deck
from chains.messages import Audio
from chains.protocol import encode_binary
from chains.records import recorded
from chains.records.recorded import Recorded
from chains.records.recordings import Keeper, peaks, wav
from chains.records.store import Store
from chains.timing import LoopClock
from chains.viewer.process import ViewerProcess
from chains.viewer.settings import ViewerSettings

GOAL_US = 20.0
RATE, FRAME = 16_000, 320
A_SECOND = 100  # frames of both sides


@chainlet(entry=True)
class Nobody:
    async def run(self) -> str:
        return ""


def same(item: Recorded) -> Recorded:
    return item


async def fed(viewer: str, frames: int, redact: str | Callable[[Recorded], Recorded], pace: float) -> dict[str, float]:
    """CPU seconds for each frame: of the call's loop, and of the whole process. `pace` is the pause between two."""
    graph = build(Nobody)
    frame = encode_binary(Audio(speech(0.02), RATE))
    deck = Deck(viewer, redact=redact)
    start = time.process_time()
    tape = deck.open(Call(LoopClock()), graph.nodes[graph.entry].methods["run"], {})
    loop = 0.0
    for number in range(frames):
        before = time.thread_time()
        tape.received(frame)
        loop += time.thread_time() - before
        if pace:
            await asyncio.sleep(pace)
        elif number % A_SECOND == 0:
            await asyncio.sleep(0)
    tape.close()
    await asyncio.to_thread(deck.close, 30.0)
    if deck.dropped:
        raise RuntimeError(f"{deck.dropped} frames were lost")
    return {"loop": loop / frames, "process": (time.process_time() - start) / frames}


async def idle(frames: int, pace: float) -> float:
    start = time.process_time()
    for _ in range(frames):
        await asyncio.sleep(pace)
    return (time.process_time() - start) / frames


def speech(seconds: float) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    at = np.arange(round(RATE * seconds))
    swell = np.abs(np.sin(at / 9000)) * np.sin(at * 2 * np.pi * 220 / RATE) * 9000
    return (swell + np.random.default_rng(1).normal(0, 30, len(at))).astype(np.int16)


def gateway(rounds: int, frames: int, paced: int, seed: int) -> list[Row]:
    """With a real viewer beside it."""
    with tempfile.TemporaryDirectory() as folder:
        settings = ViewerSettings(traces=Path(folder) / "traces.sqlite", port=0)
        kept = asyncio.run(_gateway(settings, rounds, frames, paced, seed))
    call = [on - off for on, off in zip(kept["paced"], kept["idle"], strict=True)]
    return [
        compare("a frame in the call's loop, us CPU", kept["loop"], goal=GOAL_US, scale=1e6),
        compare("a frame in all threads, us CPU", kept["plain"], goal=GOAL_US, scale=1e6),
        compare("a frame that a hook has seen, us CPU", kept["hook"], goal=GOAL_US, scale=1e6),
        compare("a frame of one call alone, in real time, us CPU", call, scale=1e6),
    ]


async def _gateway(settings: ViewerSettings, rounds: int, frames: int, paced: int, seed: int) -> dict[str, list[float]]:
    loops: list[float] = []

    def once(viewer: str, count: int, redact: str | Callable[[Recorded], Recorded], pace: float) -> float:
        figures = asyncio.run(fed(viewer, count, redact, pace))
        if not redact and not pace:
            loops.append(figures["loop"])
        return figures["process"]

    async with ViewerProcess(settings) as viewer:
        sides: dict[str, Callable[[], float]] = {
            "plain": partial(once, viewer.endpoint, frames, "", 0.0),
            "hook": partial(once, viewer.endpoint, frames, same, 0.0),
            "paced": partial(once, viewer.endpoint, paced, "", 1 / A_SECOND),
            "idle": lambda: asyncio.run(idle(paced, 1 / A_SECOND)),
        }
        kept = await asyncio.to_thread(interleave, rounds, sides, seed=seed)
    return {**kept, "loop": loops[-rounds:]}


def store(minutes: int, seeks: int) -> list[Row]:
    """A call of two sides that never pause, kept as the viewer keeps it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "traces.sqlite"
        with Store.open(path) as opened:
            connection = opened.connection
            cpu = [_minute(Keeper(connection), minute) for minute in range(minutes)]
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            size = path.stat().st_size / minutes / 1e6
            call = connection.execute("SELECT id FROM calls").fetchone()[0]
            total = wav(connection, call, "both", 0, 44).total
            places = np.linspace(44, max(44, total - 1_000_000), seeks).astype(int).tolist()
            seek = [_timed(partial(wav, connection, call, "both", place, place + 1_000_000)) for place in places]
            drawn = [_timed(partial(peaks, connection, call, "both", 2_000)) for _ in range(seeks)]
    return [
        compare("a second of both sides kept, ms CPU of the viewer", cpu, scale=1e3 / 60),
        compare("a minute of both sides on disk, MB", [size]),
        compare(f"1 MB of the WAV from anywhere in {minutes} min, ms", seek, scale=1e3),
        compare(f"the waveform of {minutes} min, ms", drawn, scale=1e3),
    ]


def _minute(keeper: Keeper, minute: int) -> float:
    pcm = speech(60)
    rows = []
    for start in range(0, len(pcm), FRAME):
        at = minute * 60_000 + start * 1e3 / RATE
        rows += [
            recorded.Row("c1", side, 0, at, "audio", minute * side, RATE, pcm[start : start + FRAME].tobytes())
            for side in (recorded.CALLER, recorded.REPLY)
        ]
    began = time.process_time()
    keeper.keep(rows)
    keeper.close()
    return time.process_time() - began


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    options = arguments(__doc__ or "")
    frames, paced, rounds, minutes = (2_000, 100, 1, 2) if options.quick else (20_000, 1_000, 5, 30)
    rows = [*gateway(rounds, frames, paced, options.seed), *store(minutes, 3 if options.quick else 20)]
    report(rows, options.json, "recording")


if __name__ == "__main__":
    main()
