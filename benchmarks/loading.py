"""Reading a checkpoint of 540 MB: long stretches by several threads against safetensors.safe_open, tensor by tensor.

Both give tensors in memory of their own (safe_open's are copied out of its mapping: what a move to a device, or
another precision, does). Read once from the kernel's cache and once after the file was put out of it. Memory that
an earlier round freed is given back to the kernel first: a model is loaded once in a process's life.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from benchmarks.report import Options, arguments, compare, interleave, report
from engines.weights import open_checkpoint

LAYERS, HIDDEN, MLP, VOCAB = 30, 576, 1536, 49152


def checkpoint(directory: Path, layers: int) -> Path:
    """A file shaped like a small model's, in float32; 540 MB with all of its layers."""
    shapes: dict[str, tuple[int, ...]] = {"embed": (VOCAB, HIDDEN)}
    for layer in range(layers):
        square = {f"{layer}.{name}": (HIDDEN, HIDDEN) for name in ("q", "o")}
        narrow = {f"{layer}.{name}": (HIDDEN // 3, HIDDEN) for name in ("k", "v")}
        shapes |= square | narrow | {f"{layer}.gate": (MLP, HIDDEN), f"{layer}.up": (MLP, HIDDEN)}
        shapes |= {f"{layer}.down": (HIDDEN, MLP), f"{layer}.norm": (HIDDEN,)}
    save_file({name: torch.randn(shape) for name, shape in shapes.items()}, directory / "model.safetensors")
    return directory / "model.safetensors"


def prepare(file: Path, *, cold: bool) -> None:
    """Give back what the allocator keeps; put the file out of the kernel's cache for a `cold` read."""
    if sys.platform == "linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    if not cold:
        return
    with open(file, "rb") as stored:
        os.fsync(stored.fileno())
        os.posix_fadvise(stored.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def speed(tensors: list[torch.Tensor], began: float) -> float:
    """GB/s."""
    return sum(int(tensor.nbytes) for tensor in tensors) / (time.perf_counter() - began) / 1e9


def ours(file: Path, *, cold: bool, threads: int) -> float:
    """GB/s."""
    prepare(file, cold=cold)
    began = time.perf_counter()
    tensors = open_checkpoint(file.parent, threads=threads)
    kept = [tensors.take(name, tensors.shape(name)) for name in tensors.names()]
    tensors.finish()
    return speed(kept, began)


def peer(file: Path, *, cold: bool) -> float:
    """GB/s."""
    prepare(file, cold=cold)
    began = time.perf_counter()
    with safe_open(file, "pt") as stored:
        kept = [stored.get_tensor(name).clone() for name in stored.keys()]  # noqa: SIM118 - no dict
    return speed(kept, began)


def main(options: Options) -> int:
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = checkpoint(Path(folder), 2 if options.quick else LAYERS)
        for state, cold in (("cached", False), ("from disk", True)):
            for threads in (4, 8):
                sides = {
                    "ours": partial(ours, file, cold=cold, threads=threads),
                    "peer": partial(peer, file, cold=cold),
                }
                found = interleave(2 if options.quick else 12, sides, seed=options.seed)
                name = f"{state}, {threads} threads, GB/s"
                rows.append(compare(name, found["ours"], found["peer"], higher_is_better=True))
    report(rows, options.json, "Reading a checkpoint: ours, and safetensors.safe_open as the peer")
    return 0


if __name__ == "__main__":
    sys.exit(main(arguments("reading a checkpoint of 540 MB")))
