"""Reading long stretches of files: in pieces, by several threads at once, each byte straight to where it is used."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch

from engines.weights.errors import WeightsInvalid

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and the bytes in all, from any thread, one call at a time."""

PIECE = 8 << 20
MOST_BUFFERS = 1024  # that one preadv takes


@dataclass(slots=True, eq=False)
class Part:
    """The bytes of one tensor in a file, and their memory while they are read and not yet taken."""

    start: int
    end: int
    memory: torch.Tensor | None = None

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(slots=True, eq=False)
class Stretch:
    """Parts that lie one behind the other in a file, and are read in one go. Each gets memory of its own, so that
    none keeps its neighbours' alive.
    """

    file: Path
    parts: list[Part]
    pieces: list[Future[None]] = field(default_factory=list)
    waiting: int = 0
    """Bytes that are in memory, or on the way there, and were not taken."""

    @property
    def start(self) -> int:
        return self.parts[0].start

    @property
    def end(self) -> int:
        return self.parts[-1].end

    @property
    def size(self) -> int:
        return self.end - self.start


class ParallelReader:
    """Reads stretches with a few threads and tells how far it is."""

    def __init__(self, total: int, threads: int, progress: Progress | None) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="weights")
        self._lock = threading.Lock()
        self._done, self._total, self._progress = 0, total, progress

    def begin(self, stretch: Stretch) -> None:
        """Start to read, unless that was done."""
        if stretch.pieces:
            return
        for part in stretch.parts:
            part.memory = torch.empty(part.size, dtype=torch.uint8)
        stretch.waiting = sum(part.size for part in stretch.parts)
        stretch.pieces = [
            self._pool.submit(self._read, stretch.file, views, offset) for offset, views in _scattered(stretch)
        ]

    def take(self, stretch: Stretch, part: Part) -> torch.Tensor:
        """The bytes of a part, once they are there; the reader lets go of them. Raises WeightsInvalid."""
        self.begin(stretch)
        first, last = (part.start - stretch.start) // PIECE, (part.end - 1 - stretch.start) // PIECE
        for piece in stretch.pieces[first : last + 1]:
            piece.result()
        memory, part.memory = part.memory, None
        assert memory is not None
        stretch.waiting -= part.size
        return memory

    def close(self) -> None:
        """Ends the threads; what is not begun is not read."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, file: Path, views: list[memoryview], offset: int) -> None:
        size = sum(map(len, views))
        try:
            descriptor = os.open(file, os.O_RDONLY)
            try:
                while views:
                    count = os.preadv(descriptor, views[:MOST_BUFFERS], offset)
                    if not count:
                        raise WeightsInvalid(f"{file} ended early: it became shorter", mend="fetch the model again")
                    offset += count
                    views = _behind(views, count)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise WeightsInvalid(
                f"{file} cannot be read ({error.strerror or error})", mend="check the file and its disk"
            ) from error
        with self._lock:
            self._done = min(self._done + size, self._total)
            if self._progress is not None:
                self._progress(self._done, self._total)


def _scattered(stretch: Stretch) -> Iterator[tuple[int, list[memoryview]]]:
    """Offset and buffers of each piece of a stretch. What lies between parts goes where nobody looks."""
    views: list[memoryview] = []
    offset = at = stretch.start
    for view in _views(stretch):
        while len(view):
            fitting = view[: offset + PIECE - at]
            views.append(fitting)
            view, at = view[len(fitting) :], at + len(fitting)
            if at == offset + PIECE:
                yield offset, views
                offset, views = at, []
    if views:
        yield offset, views


def _views(stretch: Stretch) -> Iterator[memoryview]:
    at = stretch.start
    for part in stretch.parts:
        if part.start > at:
            yield memoryview(bytearray(part.start - at))
        if part.memory is not None and part.size:
            yield part.memory.numpy().data
        at = part.end


def _behind(views: list[memoryview], count: int) -> list[memoryview]:
    """What is left of the buffers when `count` bytes of them are filled."""
    for index, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[index + 1 :]]
        count -= len(view)
    return []
