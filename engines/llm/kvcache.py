"""Which slot of the KV cache holds which token: a radix tree of computed prefixes over single-token pages.

Every page is free, in the tree, or in exactly one lease. Page 0 is padding and is never given out. Integers only.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import count as counter


class Pages:
    """The free pages, 1 to `slots`-1; the one that came back last goes out first."""

    def __init__(self, slots: int) -> None:
        self.capacity = slots - 1
        self.free = list(range(slots - 1, 0, -1))

    def take(self, count: int) -> list[int]:
        """`count` pages; the caller has seen to it that there are as many."""
        taken = self.free[-count:]
        del self.free[-count:]
        return taken

    def give(self, pages: list[int]) -> None:
        self.free += pages


class Node:
    """An edge of the tree with its end: tokens and the pages that hold them. Without a parent: a root, or evicted.

    `locks` counts the leases whose prefix runs through here, `used` is when the last of them went.
    """

    __slots__ = ("children", "key", "locks", "namespace", "pages", "parent", "used")

    def __init__(self, key: list[int], pages: list[int], parent: Node | None, namespace: str) -> None:
        self.key, self.pages, self.parent, self.namespace = key, pages, parent, namespace
        self.children: dict[int, Node] = {}
        self.locks = self.used = 0


class Lease:
    """The pages of one sequence, by position: the one owner of those from `shared` on, and of the duplicates.

    Positions below `shared` are in the tree, locked down to `node`. `duplicates` are pages of this sequence for
    positions that another one had put into the tree first: in use until the end, since the device's table names them.
    """

    __slots__ = ("closed", "duplicates", "node", "pages", "shared")

    def __init__(self, node: Node, pages: list[int]) -> None:
        self.node, self.pages, self.shared = node, pages, len(pages)
        self.duplicates: list[int] = []
        self.closed = False


class RadixCache:
    """Prefixes by their tokens, one tree a namespace; unlocked leaves are evicted, the least recently used first."""

    def __init__(self, slots: int) -> None:
        self._pages = Pages(slots)
        self._roots: dict[str, Node] = {}
        self._heap: list[tuple[int, int, Node]] = []
        self._serial = counter()
        self._clock = 0
        self._nodes = 0
        self.cached = 0
        """Pages in the tree."""
        self.evictable = 0
        """Pages in the tree that no lease locks."""

    @property
    def capacity(self) -> int:
        """All pages, the padding page not counted."""
        return self._pages.capacity

    @property
    def free(self) -> int:
        return len(self._pages.free)

    @property
    def available(self) -> int:
        """Pages that can be had without taking them from a lease."""
        return len(self._pages.free) + self.evictable

    @property
    def held(self) -> int:
        """Pages that belong to leases alone."""
        return self._pages.capacity - len(self._pages.free) - self.cached

    def open(self, namespace: str, tokens: list[int], most: int) -> Lease:
        """A lease on the longest known prefix of `tokens`, at most `most` of them, locked until the release."""
        node = self._roots.get(namespace)
        if node is None:
            node = self._roots[namespace] = Node([], [], None, namespace)
        pages: list[int] = []
        at = 0
        while at < most and (child := node.children.get(tokens[at])) is not None:
            length = _common(child.key, tokens, at, most)
            node = child if length == len(child.key) else self._split(child, length)
            pages += node.pages
            at += length
        lease = Lease(node, pages)
        while True:
            self._lock(node)
            if node.parent is None:
                return lease
            node = node.parent

    def grow(self, lease: Lease, count: int) -> bool:
        """Add `count` pages to the lease, evicting if need be; False, and nothing done, when there are not as many."""
        free = self._pages.free
        if len(free) < count:
            if len(free) + self.evictable < count:
                return False
            self._evict(count - len(free))
        if count == 1:
            lease.pages.append(free.pop())
        elif count:
            lease.pages += self._pages.take(count)
        return True

    def trim(self, lease: Lease, length: int) -> None:
        """Give back the pages of positions from `length` on, which is not below what is shared."""
        self._pages.give(lease.pages[length:])
        del lease.pages[length:]

    def share(self, lease: Lease, tokens: list[int], length: int) -> None:
        """Put the first `length` tokens, all computed, into the tree; they stay locked by this lease.

        What another lease put there first stays; this lease's own pages for it become duplicates.
        """
        node, at = lease.node, lease.shared
        while at < length:
            child = node.children.get(tokens[at])
            if child is None:
                child = Node(tokens[at:length], lease.pages[at:length], node, node.namespace)
                node.children[tokens[at]] = child
                self._nodes += 1
                self.cached += length - at
                child.locks = 1
                node, at = child, length
                break
            common = _common(child.key, tokens, at, length)
            if common < len(child.key):
                child = self._split(child, common)
            lease.duplicates += lease.pages[at : at + common]
            self._lock(child)
            node = child
            at += common
        lease.node, lease.shared = node, max(at, lease.shared)

    def release(self, lease: Lease, tokens: list[int], length: int) -> None:
        """End the lease: its first `length` tokens go to the tree, all other pages are free. Twice does nothing."""
        if lease.closed:
            return
        self.share(lease, tokens, length)
        lease.closed = True
        self._pages.give(lease.pages[lease.shared :])
        self._pages.give(lease.duplicates)
        lease.pages, lease.duplicates = [], []
        self._unlock(lease.node)

    def _lock(self, node: Node) -> None:
        if not node.locks:
            self.evictable -= len(node.pages)
        node.locks += 1

    def _unlock(self, node: Node) -> None:
        """Take one lock off the path up from `node`, which was used now."""
        self._clock += 1
        while True:
            node.locks -= 1
            node.used = self._clock
            if not node.locks:
                self.evictable += len(node.pages)
                self._offer(node)
            if node.parent is None:
                return
            node = node.parent

    def _offer(self, node: Node) -> None:
        """The node may have become an evictable leaf, or a root that nobody needs: note it."""
        if node.children or node.locks:
            return
        if node.parent is None:
            self._roots.pop(node.namespace, None)
            return
        heapq.heappush(self._heap, (node.used, next(self._serial), node))
        if len(self._heap) > 64 + 2 * self._nodes:  # entries that no longer hold
            self._heap = [entry for entry in self._heap if _holds(entry)]
            heapq.heapify(self._heap)

    def _split(self, node: Node, length: int) -> Node:
        """Cut the node after `length` tokens: a new one above takes them. The node keeps its end, so leases hold."""
        parent = node.parent
        assert parent is not None
        upper = Node(node.key[:length], node.pages[:length], parent, node.namespace)
        upper.locks, upper.used = node.locks, node.used
        parent.children[node.key[0]] = upper
        node.key, node.pages, node.parent = node.key[length:], node.pages[length:], upper
        upper.children[node.key[0]] = node
        self._nodes += 1
        return upper

    def _evict(self, count: int) -> None:
        """Free `count` pages of the tree, from the ends of its least recently used leaves; there are as many."""
        while count:
            entry = self._heap[0]
            if not _holds(entry):
                heapq.heappop(self._heap)
                continue
            node = entry[2]
            gone = min(count, len(node.pages))
            count -= gone
            self.cached -= gone
            self.evictable -= gone
            self._pages.give(node.pages[-gone:])
            if gone < len(node.pages):
                del node.pages[-gone:], node.key[-gone:]
                return
            heapq.heappop(self._heap)
            self._remove(node)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key[0]]
        node.parent = None
        self._nodes -= 1
        self._offer(parent)

    def check(self, leases: Iterable[Lease]) -> None:
        """AssertionError unless every page has one owner, locks are those of `leases` (all open), and counts agree."""
        leases = list(leases)
        locks: dict[int, int] = {}
        owned = list(self._pages.free)
        for lease in leases:
            assert not lease.closed, "a lease is closed and still listed"
            owned += lease.pages[lease.shared :] + lease.duplicates
            path: Node | None = lease.node
            while path is not None:
                locks[id(path)] = locks.get(id(path), 0) + 1
                path = path.parent
        queued = {id(entry[2]) for entry in self._heap if _holds(entry)}
        cached = evictable = nodes = 0
        for node in self._walk():
            owned += node.pages
            assert node.locks == locks.pop(id(node), 0), f"{node.locks} locks on {node.key}"
            assert len(node.key) == len(node.pages)
            assert all(child.parent is node and child.key[0] == first for first, child in node.children.items())
            cached += len(node.pages)
            if node.parent is None:
                assert node.locks or node.children, "a root that nobody needs"
                continue
            nodes += 1
            assert node.key, "an edge without tokens"
            if not node.locks:
                evictable += len(node.pages)
                assert node.children or id(node) in queued, "an evictable leaf is not in the heap"
        assert not locks, "a lease locks what is not in the tree"
        assert sorted(owned) == list(range(1, self._pages.capacity + 1)), "a page has no owner, or two"
        assert (cached, evictable, nodes) == (self.cached, self.evictable, self._nodes)
        assert all(one[0] <= self._heap[i][0] for at, one in enumerate(self._heap)
                   for i in (2 * at + 1, 2 * at + 2) if i < len(self._heap))  # fmt: skip

    def _walk(self) -> Iterator[Node]:
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()


def _holds(entry: tuple[int, int, Node]) -> bool:
    """True while the entry's node is a leaf that may go, not used since."""
    used, _, node = entry
    return node.used == used and node.parent is not None and not node.locks and not node.children


def _common(key: list[int], tokens: list[int], at: int, stop: int) -> int:
    """How many tokens from `at` (short of `stop`) are those at the beginning of `key`."""
    most = min(len(key), stop - at)
    if key[:most] == tokens[at : at + most]:
        return most
    return next(i for i in range(most) if key[i] != tokens[at + i])
