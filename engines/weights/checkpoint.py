"""A checkpoint of safetensors shards, read in long stretches ahead of whoever takes its tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from engines.weights.errors import WeightsInvalid
from engines.weights.gguf_file import GGUFTensors
from engines.weights.headers import Entry, checkpoint_entries
from engines.weights.reading import ParallelReader, Part, Progress, Stretch
from engines.weights.tensors import NamedTensors

Share = Callable[[str, tuple[int, ...]], slice | None]
"""Which rows of a tensor (name, shape) are wanted at all, e.g. those of one rank; None: nothing of it."""

THREADS = 8
LONGEST = 1 << 30
AHEAD = 2 << 30
GAP = 1 << 18
RECENT, RECENT_BYTES = 8, 64 << 20


def open_checkpoint(
    path: Path, progress: Progress | None = None, *, share: Share | None = None, threads: int = THREADS
) -> NamedTensors:
    """The tensors of a directory of safetensors, or of a .gguf file. Headers are read and checked at once.

    `progress` is told the bytes read and the bytes in all. With a `share` only the wanted rows are ever read, and a
    tensor of which nothing is wanted is as if it were not there. Raises WeightsInvalid.
    """
    if path.suffix == ".gguf":
        return GGUFTensors(path, progress)
    return Checkpoint(checkpoint_entries(path), progress, share=share, threads=threads)


class Checkpoint(NamedTensors):
    """The tensors of safetensors files. A stretch of up to 1 GiB is read by all threads at once, the next ones ahead
    of their use (up to 2 GiB). Each tensor has memory of its own, which goes with the last view of it.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        progress: Progress | None = None,
        *,
        share: Share | None = None,
        threads: int = THREADS,
        longest: int = LONGEST,
        ahead: int = AHEAD,
    ) -> None:
        super().__init__()
        self._entries: dict[str, Entry] = {}
        self._ranges: dict[str, tuple[int, int]] = {}
        for entry in entries.values():
            self._want(entry, share)
        self._parts = {name: Part(*self._bytes(entry)) for name, entry in self._entries.items()}
        wanted = [(entry.file, self._parts[name]) for name, entry in self._entries.items()]
        self._stretches = _stretches(wanted, longest)
        of = {id(part): index for index, stretch in enumerate(self._stretches) for part in stretch.parts}
        self._stretch_of = {name: of[id(part)] for name, part in self._parts.items()}
        self._recent: OrderedDict[str, torch.Tensor] = OrderedDict()  # for whoever takes a tensor in several pieces
        self._latest = -1  # the stretch that was taken from last
        self._ahead = ahead
        total = sum(stretch.size for stretch in self._stretches)
        self._reader = ParallelReader(total, max(1, min(threads, THREADS)), progress)

    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def has(self, name: str) -> bool:
        return name in self._entries

    def shape(self, name: str) -> tuple[int, ...]:
        return self._found(name).shape

    def dtype(self, name: str) -> torch.dtype:
        return self._found(name).dtype

    def finish(self, allowed: Iterable[str] = ()) -> None:
        self.close()
        super().finish(allowed)

    def close(self) -> None:
        """Ends the reading; tensors that were taken stay."""
        self._recent.clear()
        self._reader.close()

    def _found(self, name: str) -> Entry:
        if name not in self._entries:
            raise self._missing(name)
        return self._entries[name]

    def _want(self, entry: Entry, share: Share | None) -> None:
        count = entry.shape[0] if entry.shape else 1
        rows = slice(None) if share is None else share(entry.name, entry.shape)
        if rows is not None:
            self._entries[entry.name] = entry
            self._ranges[entry.name] = rows.indices(count)[:2]

    def _bytes(self, entry: Entry) -> tuple[int, int]:
        first, end = self._ranges[entry.name]
        return entry.start + first * entry.row_bytes, entry.start + end * entry.row_bytes

    def _rows(self, name: str, first: int, end: int) -> torch.Tensor:
        entry, (least, most) = self._found(name), self._ranges[name]
        if not entry.shape:
            least, most, first, end = 0, 1, 0, 1
        if first < least or end > most:
            raise WeightsInvalid(
                f"rows {first} to {end} of {name} are wanted, and only {least} to {most} are read here",
                mend="ask for the rows of this rank's share",
            )
        memory = self._memory(name)
        offset = (first - least) * entry.row_bytes
        found = memory[offset : offset + (end - first) * entry.row_bytes]
        return found.view(entry.dtype).view((end - first, *entry.shape[1:]) if entry.shape else ())

    def _memory(self, name: str) -> torch.Tensor:
        """The bytes of the rows that are wanted of a tensor; read again when they were taken long before."""
        memory = self._recent.pop(name, None)
        if memory is None:
            memory = self._read(name)
        if memory.nbytes <= RECENT_BYTES:
            self._recent[name] = memory
            if len(self._recent) > RECENT:
                self._recent.popitem(last=False)
        return memory

    def _read(self, name: str) -> torch.Tensor:
        index, part = self._stretch_of[name], self._parts[name]
        stretch = self._stretches[index]
        if stretch.pieces and part.memory is None:
            stretch = Stretch(stretch.file, [part])
        else:
            self._read_ahead(index)
        return self._reader.take(stretch, part)

    def _read_ahead(self, index: int) -> None:
        """Begin this stretch, and those after it while fewer than `ahead` bytes are in memory untaken."""
        if index == self._latest:
            return
        self._latest = index
        self._reader.begin(self._stretches[index])
        held = sum(stretch.waiting for stretch in self._stretches)
        for later in self._stretches[index + 1 :]:
            if held + later.size > self._ahead:
                return
            if not later.pieces:
                self._reader.begin(later)
                held += later.size


def _stretches(wanted: list[tuple[Path, Part]], longest: int) -> list[Stretch]:
    """Neighbours in a file make one stretch, also over a gap that is quicker read than skipped."""
    stretches: list[Stretch] = []
    for file, part in wanted:
        last = stretches[-1] if stretches else None
        if last and last.file == file and 0 <= part.start - last.end <= GAP and part.end - last.start <= longest:
            last.parts.append(part)
        else:
            stretches.append(Stretch(file, [part]))
    return stretches
