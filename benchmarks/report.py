"""What every benchmark shares: options, interleaved sampling, percentiles, table and JSON.

options = arguments("CPU per hop")
samples = interleave(50 if options.quick else 500, {"ours": call_ours, "peer": call_peer}, seed=options.seed)
report([compare("hop", samples["ours"], samples["peer"], goal=50, unit="us")], options.json, "CPU per hop")
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

LIBRARIES = (
    "chains-serve", "numpy", "torch", "transformers", "onnxruntime", "ctranslate2", "faster-whisper",
    "hibari-tts", "uvicorn", "websockets", "grpcio", "ray",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One measured thing. `ours` and `peer` are in the unit that `name` ends with, p50 and p99 are of ours.

    `goal` is the bound set beforehand (None: only watched), `met` whether it was kept (None without a goal).
    """

    name: str
    ours: float
    peer: float | None = None
    ratio: float | None = None
    p50: float | None = None
    p99: float | None = None
    n: int = 1
    goal: float | None = None
    met: bool | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """What every benchmark takes from its command line; `more` holds what this one takes besides, by name."""

    quick: bool
    json: Path | None
    seed: int
    more: Mapping[str, Any] = field(default_factory=dict)


def arguments(
    description: str, argv: Sequence[str] | None = None, more: Mapping[str, Mapping[str, Any]] | None = None
) -> Options:
    """Parse --quick, --json FILE and --seed; an unknown option ends the program with the usage.

    `more` maps further options ("runtime" for --runtime) to what argparse's add_argument takes.
    """
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: shows that it runs, not what it costs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there, as a list of objects")
    parser.add_argument("--seed", type=int, default=0, help="of the order in which sides are measured (default 0)")
    for name, how in (more or {}).items():
        parser.add_argument(f"--{name.replace('_', '-')}", **how)
    found = parser.parse_args(argv)
    return Options(found.quick, found.json, found.seed, {name: getattr(found, name) for name in more or {}})


def interleave(
    rounds: int,
    sides: Mapping[str, Callable[[], float | None]],
    *,
    seed: int = 0,
    warm: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Measure all sides in each round, in a new random order: a slow minute of the machine hits all alike.

    A side returns its own figure, or None to be timed in seconds. `warm` rounds come first and are not kept.
    """
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; measure at least one")
    order, shuffle = list(sides), random.Random(seed).shuffle
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(-warm, rounds):
        shuffle(order)
        for name in order:
            started = clock()
            figure = sides[name]()
            elapsed = clock() - started
            if number >= 0:
                samples[name].append(elapsed if figure is None else float(figure))
    return samples


async def interleave_async(
    rounds: int, sides: Mapping[str, Callable[[bool], Awaitable[None]]], *, seed: int = 0, warm: int = 1
) -> None:
    """The same for sides that keep their figures themselves; each is told whether to: not in the `warm` rounds."""
    order, shuffle = list(sides), random.Random(seed).shuffle
    for number in range(-warm, rounds):
        shuffle(order)
        for name in order:
            await sides[name](number >= 0)
        if number >= 0:
            progress(f"round {number + 1} of {rounds}")


def progress(what: str) -> None:
    """Say on stderr how far it is: a benchmark takes minutes."""
    print(f"{time.strftime('%H:%M:%S')}  {what}", file=sys.stderr, flush=True)


def percentile(samples: Sequence[float], percent: float) -> float:
    """The percentile, linearly interpolated. Raises ValueError without samples."""
    if not len(samples):
        raise ValueError("no samples; a percentile of nothing is not 0")
    return float(np.percentile(np.asarray(samples, np.float64), percent))


def compare(
    name: str,
    ours: Sequence[float],
    peer: Sequence[float] | None = None,
    *,
    goal: float | None = None,
    at: float = 50,
    scale: float = 1.0,
    higher_is_better: bool = False,
) -> Row:
    """A row from samples: the figure is the percentile `at`, times `scale` (1e6: from seconds to us).

    `goal` bounds that figure: from above, or from below where higher is better. `ratio` is ours / peer.
    """
    figure = percentile(ours, at) * scale
    other = None if peer is None else percentile(peer, at) * scale
    met = None if goal is None else (figure >= goal if higher_is_better else figure <= goal)
    return Row(
        name=name,
        ours=figure,
        peer=other,
        ratio=figure / other if other else None,
        p50=percentile(ours, 50) * scale,
        p99=percentile(ours, 99) * scale,
        n=len(ours),
        goal=goal,
        met=met,
    )


def bounded(
    name: str,
    ours: Sequence[float],
    peer: Sequence[float],
    goal: float | None,
    *,
    at: float = 50,
    scale: float = 1.0,
    higher_is_better: bool = False,
) -> Row:
    """A row whose goal bounds the ratio at the percentile `at`: from above, or from below where higher is better."""
    row = compare(name, ours, peer, at=at, scale=scale)
    met = None
    if goal is not None and row.ratio is not None:
        met = row.ratio >= goal if higher_is_better else row.ratio <= goal
    return replace(row, goal=goal, met=met)


def machine() -> str:
    """The processor's model, the cores this process may use, and the memory."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {cores} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}"


def versions() -> str:
    """Python's version and that of each library on the list that is installed."""
    found = [f"python {platform.python_version()}"]
    for library in LIBRARIES:
        try:
            found.append(f"{library} {version(library)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def figure(value: float | None) -> str:
    """Four significant digits, no exponent for what people read; a dash for nothing."""
    if value is None:
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.2e}"


def report(rows: Sequence[Row], json_path: Path | str | None, title: str, *, console: Console | None = None) -> None:
    """Print the table with its machine and versions; write the rows to `json_path` as a JSON list, if given.

    A missed goal is shown as missed; it does not fail the program. A NaN or infinity is null in the JSON.
    """
    console = console or Console(width=None if sys.stdout.isatty() else 120)
    table = Table(
        title=escape(title),
        title_justify="left",
        caption_justify="left",
        caption=f"{machine()}\n{versions()}",
    )
    for heading in Row.__dataclass_fields__:
        table.add_column(heading, justify="left" if heading == "name" else "right", no_wrap=heading != "name")
    for row in rows:
        met = {True: "yes", False: "MISSED", None: "-"}[row.met]
        figures = (row.ours, row.peer, row.ratio, row.p50, row.p99)
        table.add_row(escape(row.name), *map(figure, figures), f"{row.n:,}", figure(row.goal), met)
    console.print(table)
    if json_path is not None:
        path = Path(json_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([_finite(asdict(row)) for row in rows], indent=2, allow_nan=False) + "\n")


def _finite(row: dict[str, object]) -> dict[str, object]:
    """JSON knows no NaN and no infinity."""
    return {key: None if isinstance(value, float) and not np.isfinite(value) else value for key, value in row.items()}
