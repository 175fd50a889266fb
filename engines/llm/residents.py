"""Which sequences have a row of the page table and pages, and who gives them up when there are too few."""

from __future__ import annotations

from bisect import insort

from engines.llm.kvcache import Lease, RadixCache
from engines.llm.sequence import Sequence
from engines.llm.waiting import Waiting


class Residents:
    """Rows and leases of the running sequences. The less deserving (batch, then the later) gives way to the other.

    Who is preempted goes back to the queue; what it had computed stays in the radix tree as long as it can. When one is
    admitted, `headroom` pages (or what they may still need) are left to each that runs, lest it is preempted soon.
    """

    def __init__(self, slots: int, rows: int, headroom: int, waiting: Waiting) -> None:
        self.cache = RadixCache(slots)
        self.running: list[Sequence] = []
        """In the order of deserving; those that ended in flight are no longer here, but keep row and lease."""
        self.preemptions = 0
        self._waiting, self._headroom = waiting, headroom
        self._owners: list[Sequence | None] = [None] * (rows + 1)
        self._rows = list(range(rows, 0, -1))
        self._pins: dict[tuple[str, tuple[int, ...]], Lease] = {}
        self._blocked: tuple[int, int] = (-1, 0)

    def owner(self, row: int) -> int:
        """The id of the request that has this row of an uncommitted plan, be it ended."""
        sequence = self._owners[row]
        if sequence is None:
            raise ValueError(f"row {row} is in no uncommitted plan")
        return sequence.id

    def pin(self, tokens: tuple[int, ...], namespace: str) -> None:
        """Keep what is known of this prefix from eviction, until a request cannot go on without its pages.

        Pins take at most half of the cache: beyond that the earliest goes.
        """
        earlier = self._pins.pop((namespace, tokens), None)
        self._pins[namespace, tokens] = self.cache.open(namespace, list(tokens), len(tokens))
        if earlier is not None:
            self.cache.release(earlier, [], 0)
        while sum(lease.shared for lease in self._pins.values()) > self.cache.capacity // 2:
            self.cache.release(self._pins.pop(next(iter(self._pins))), [], 0)

    def unpin_all(self) -> None:
        for lease in self._pins.values():
            self.cache.release(lease, [], 0)
        self._pins.clear()

    def admit(self, sequence: Sequence) -> bool:
        """Give the first of the queue a row and the pages of all it knows. False: it has to wait, and who follows."""
        while not self._rows or (lease := self._lease(sequence)) is None:
            if not self._give_way(sequence):
                return False
        self._waiting.remove(sequence)
        sequence.lease, sequence.row, sequence.fresh = lease, self._rows.pop(), True
        self._owners[sequence.row] = sequence
        sequence.committed = sequence.scheduled = lease.shared
        insort(self.running, sequence, key=_order)
        return True

    def _lease(self, sequence: Sequence) -> Lease | None:
        """A lease with pages for all known tokens; None while there are too few, for it and for who runs."""
        cache, size = self.cache, len(sequence.tokens)
        if self.running and self._blocked[0] == sequence.id and cache.available <= self._blocked[1]:
            return None  # nothing came free since the last try
        self._blocked = (sequence.id, cache.available)
        lease = cache.open(sequence.request.namespace, sequence.tokens, size - 1)
        need = size - lease.shared
        spare = sum(min(self._headroom, one.limit - one.scheduled) for one in self.running)
        if cache.available >= need + spare and cache.grow(lease, need):
            return lease
        cache.release(lease, [], 0)
        return None

    def _give_way(self, sequence: Sequence) -> bool:
        """Make room for an admission: from batch for the interactive, from pins for who would be alone."""
        if not self.running:
            pinned = bool(self._pins)
            self.unpin_all()
            return pinned
        last = self.running[-1]
        if sequence.batch or not last.batch or last.yielding:
            return False
        return self.preempt(last)

    def take(self, sequence: Sequence) -> bool:
        """A page for a running sequence from who deserves less. False: it waits, or was itself preempted."""
        lease = sequence.lease
        assert lease is not None
        while not self.cache.grow(lease, 1):
            last = self.running[-1]
            if last is sequence:
                if not sequence.flights:  # else those before it may still end
                    self.preempt(sequence)
                return False
            if last.yielding or not self.preempt(last):
                return False
        return True

    def preempt(self, sequence: Sequence) -> bool:
        """Send it back to the queue; False when it is in flight: then as soon as that is committed."""
        if sequence.flights:
            sequence.yielding = True
            return False
        self.running.remove(sequence)
        self.let_go(sequence)
        sequence.yielding = False
        sequence.committed = sequence.scheduled = 0
        self.preemptions += 1
        self._waiting.put(sequence)
        return True

    def let_go(self, sequence: Sequence) -> None:
        """Give row and pages back; what is computed stays in the tree."""
        assert sequence.lease is not None and not sequence.flights
        self.cache.release(sequence.lease, sequence.tokens, sequence.committed)
        sequence.lease = None
        self._owners[sequence.row] = None
        self._rows.append(sequence.row)

    def check(self, flying: list[Sequence], most: int) -> None:
        """AssertionError unless each row has one owner with one lease; `most`: inputs of a decoding row a step."""
        owners = [one for one in self._owners if one is not None]
        leases = [one.lease for one in owners if one.lease is not None]
        assert len(leases) == len(owners), "a row without a lease"
        self.cache.check([*leases, *self._pins.values()])
        assert sorted([*self._rows, *(one.row for one in owners)]) == list(range(1, len(self._owners)))
        assert all(one.flights == flying.count(one) for one in owners)
        assert all(one.flights for one in owners if one.ended), "an ended sequence keeps its pages"
        assert self.running == sorted((one for one in owners if not one.ended), key=_order)
        for one in self.running:
            assert one.lease is not None and one.lease.shared <= one.committed <= one.scheduled <= len(one.lease.pages)
            assert one.committed <= len(one.tokens) and one.scheduled <= len(one.tokens) + one.flights * most


def _order(sequence: Sequence) -> tuple[bool, int]:
    return sequence.batch, sequence.arrival
