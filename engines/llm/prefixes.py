"""Remembered prefixes: keys and values of prompts that were computed before, found by their tokens."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from engines.llm.decoder import Cache


@dataclass(slots=True)
class _Entry:
    tokens: tuple[int, ...]
    cache: Cache
    pinned: bool
    used: int = 0


class PrefixStore:
    """At most `limit` tokens of past prompts, the least recently used go first; pinned ones go last.

    A stored cache is never written to again: `take` hands out copies.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: list[_Entry] = []
        self._lock = threading.Lock()
        self._clock = 0

    def take(self, tokens: Sequence[int], room: int) -> Cache | None:
        """A copy of what is known of `tokens`' beginning, short of the last one (whose logits are wanted)."""
        with self._lock:
            best, length = None, 0
            for entry in self._entries:
                common = common_length(entry.tokens, tokens[:-1])
                if common > length:
                    best, length = entry, common
            if best is None:
                return None
            self._clock += 1
            best.used = self._clock
            cache = best.cache
        return cache.copy(length, room)

    def put(self, tokens: Sequence[int], cache: Cache, *, pinned: bool = False) -> None:
        """Remember `cache`, which belongs to the store from now on. What another entry covers is not kept twice."""
        kept = tuple(tokens[: cache.length])
        if not kept or (len(kept) > self.limit and not pinned):
            return
        with self._lock:
            self._clock += 1
            for entry in self._entries:
                if common_length(entry.tokens, kept) == len(kept):
                    entry.used, entry.pinned = self._clock, entry.pinned or pinned
                    return
            self._entries = [
                entry for entry in self._entries if entry.pinned or entry.tokens != kept[: len(entry.tokens)]
            ]
            self._entries.append(_Entry(kept, cache, pinned, self._clock))
            self._evict()

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    @property
    def tokens(self) -> int:
        """Tokens that are remembered now."""
        return sum(len(entry.tokens) for entry in self._entries)

    def _evict(self) -> None:
        while len(self._entries) > 1 and self.tokens > self.limit:
            self._entries.remove(min(self._entries, key=lambda entry: (entry.pinned, entry.used)))


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length
