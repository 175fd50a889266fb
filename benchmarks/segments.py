"""A tensor through pooled shared memory, against a plain copy in memory and against a fresh segment each time.

Put and get are two copies and a handful of system calls; put and borrow are one copy. All in one process: what the wire
adds to a handle is measured elsewhere.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

from benchmarks.report import arguments, compare, interleave, report
from chains.wire.borrowing import Reader
from chains.wire.segments import FOLDER, MIB, Pool, available

SIZES = (64 * 1024, MIB, 8 * MIB, 64 * MIB)


def main() -> None:
    options = arguments("put and get of a tensor in shared memory")
    if not available():
        sys.exit(f"{FOLDER} is missing or too small here")
    rows = []
    with tempfile.TemporaryDirectory(prefix="chains-bench-", dir=FOLDER) as folder:
        pool, fresh, reader = Pool(folder=Path(folder)), Pool(folder=Path(folder)), Reader(Path(folder))
        for size in SIZES:
            repeat = max(1, (8 if options.quick else 64) * MIB // size)
            samples = interleave(
                5 if options.quick else 21, sides(pool, fresh, reader, size, repeat), seed=options.seed
            )
            name = f"{size // 1024:,} KiB" if size < MIB else f"{size // MIB} MiB"
            plain = samples["memcpy"]
            rows += [
                compare(f"{name}: put and get / memcpy, ms", samples["get"], plain),
                compare(f"{name}: put and borrow / memcpy, ms", samples["borrow"], plain),
                compare(f"{name}: put and get, pooled / fresh segments, ms", samples["get"], samples["fresh"]),
            ]
        pool.close()
        fresh.close()
    report(rows, options.json, "tensors through shared memory")


def sides(pool: Pool, other: Pool, reader: Reader, size: int, repeat: int) -> dict[str, Callable[[], float]]:
    """`other` is the pool whose segments are made anew each time."""
    data = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    target = np.zeros(size, np.uint8)

    def get(lender: Pool = pool) -> None:
        handle = lender.put(data.data)
        assert handle is not None
        reader.get(handle)

    def borrow() -> None:
        handle = pool.put(data.data)
        assert handle is not None
        with reader.borrow(handle):
            pass

    def fresh() -> None:
        get(other)
        other.trim()
        reader.sweep()

    def timed(work: Callable[[], None]) -> Callable[[], float]:
        def run() -> float:
            start = time.perf_counter()
            for _ in range(repeat):
                work()
            return (time.perf_counter() - start) / repeat * 1e3

        return run

    plain = timed(lambda: np.copyto(target, data))
    return {"memcpy": plain, "get": timed(get), "borrow": timed(borrow), "fresh": timed(fresh)}


if __name__ == "__main__":
    main()
