"""The radix cache against a dict of prefixes that does the same token by token, and what its leases promise."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from engines.llm.kvcache import Lease, RadixCache

Prefix = tuple[str, tuple[int, ...]]


@dataclass
class Known:
    """A token in the model's tree: its page, how many leases need it, when the last of them went."""

    page: int
    locks: int = 0
    used: int = 0


@dataclass
class Holder:
    """A lease and what the model knows of it."""

    lease: Lease
    namespace: str
    tokens: list[int]
    shared: int


@dataclass
class Model:
    """Every known prefix is an entry of its own in a dict; the one to evict is looked for in all of them."""

    known: dict[Prefix, Known] = field(default_factory=dict)
    clock: int = 0

    def path(self, namespace: str, tokens: list[int], length: int) -> list[Known]:
        return [self.known[namespace, tuple(tokens[: end + 1])] for end in range(length)]

    def match(self, namespace: str, tokens: list[int], most: int) -> list[int]:
        pages: list[int] = []
        while len(pages) < most and (found := self.known.get((namespace, tuple(tokens[: len(pages) + 1])))):
            found.locks += 1
            pages.append(found.page)
        return pages

    def share(self, holder: Holder, length: int) -> None:
        for at in range(holder.shared, length):
            name = (holder.namespace, tuple(holder.tokens[: at + 1]))
            self.known.setdefault(name, Known(holder.lease.pages[at])).locks += 1
        holder.shared = max(holder.shared, length)

    def release(self, holder: Holder, length: int) -> None:
        self.share(holder, length)
        self.clock += 1
        for one in self.path(holder.namespace, holder.tokens, holder.shared):
            one.locks -= 1
            one.used = self.clock

    def evict(self, count: int) -> None:
        for _ in range(count):
            parents = {(namespace, tokens[:-1]) for namespace, tokens in self.known}
            leaves = [name for name, one in self.known.items() if name not in parents and not one.locks]
            del self.known[min(leaves, key=lambda name: self.known[name].used)]


class Play:
    """Random operations on a small cache and on the model, compared after each."""

    def __init__(self, seed: int, slots: int = 48) -> None:
        self.chance = random.Random(seed)
        self.cache, self.model, self.capacity = RadixCache(slots), Model(), slots - 1
        self.holders: list[Holder] = []
        self.texts = [[self.chance.randrange(3) for _ in range(14)] for _ in range(6)]

    def text(self) -> list[int]:
        """Mostly the beginning of a text that is used again and again, then something of its own."""
        known = self.chance.choice(self.texts)[: self.chance.randint(0, 14)]
        return known + [self.chance.randrange(3) for _ in range(self.chance.randint(1, 5))]

    def step(self) -> None:
        if not self.holders or (len(self.holders) < 6 and self.chance.random() < 0.3):
            return self.open()
        holder = self.chance.choice(self.holders)
        self.chance.choice((self.grow, self.grow, self.share, self.trim, self.release))(holder)

    def open(self) -> None:
        namespace, tokens = self.chance.choice(("", "", "other")), self.text()
        most = self.chance.choice((len(tokens), len(tokens) - 1))
        lease = self.cache.open(namespace, tokens, most)
        assert lease.pages == self.model.match(namespace, tokens, most)
        self.holders.append(Holder(lease, namespace, tokens, len(lease.pages)))

    def grow(self, holder: Holder) -> None:
        count = self.chance.randint(0, len(holder.tokens) - len(holder.lease.pages) + 2)
        free, available, before = self.cache.free, self.cache.available, list(holder.lease.pages)
        if not self.cache.grow(holder.lease, count):
            assert available < count and holder.lease.pages == before and self.cache.free == free
            return
        assert available >= count and len(holder.lease.pages) == len(before) + count
        self.model.evict(max(0, count - free))

    def share(self, holder: Holder) -> None:
        length = self.length(holder)
        self.cache.share(holder.lease, holder.tokens, length)
        self.model.share(holder, length)

    def trim(self, holder: Holder) -> None:
        self.cache.trim(holder.lease, self.chance.randint(holder.shared, len(holder.lease.pages)))

    def release(self, holder: Holder) -> None:
        length = self.length(holder)
        self.model.release(holder, length)
        self.cache.release(holder.lease, holder.tokens, length)
        self.holders.remove(holder)
        self.cache.release(holder.lease, holder.tokens, length)

    def length(self, holder: Holder) -> int:
        return self.chance.randint(holder.shared, min(len(holder.tokens), len(holder.lease.pages)))

    def compare(self) -> None:
        self.cache.check(holder.lease for holder in self.holders)
        known = self.model.known.values()
        assert self.cache.cached == len(known)
        assert self.cache.evictable == sum(not one.locks for one in known)
        assert self.cache.free + self.cache.cached + self.cache.held == self.capacity
        tree: dict[Prefix, int] = {}
        for node in self.cache._walk():
            path, above = list(node.key), node.parent
            while above is not None:
                path, above = above.key + path, above.parent
            beginning = len(path) - len(node.key)
            tree |= {(node.namespace, tuple(path[: beginning + i + 1])): page for i, page in enumerate(node.pages)}
        assert tree == {name: one.page for name, one in self.model.known.items()}


def play(seed: int, operations: int, every: int = 1) -> None:
    played = Play(seed)
    for number in range(operations):
        played.step()
        if number % every == 0:
            played.compare()
    for holder in list(played.holders):
        played.release(holder)
    played.compare()
    assert played.cache.evictable == played.cache.cached


def test_ten_thousand_random_operations_equal_the_model() -> None:
    play(seed=1, operations=10_000, every=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_thousand_random_operations_equal_the_model(seed: int) -> None:
    play(seed=100 + seed, operations=10_000)


def filled(cache: RadixCache, tokens: list[int], namespace: str = "") -> None:
    """Compute `tokens` and leave them in the tree."""
    lease = cache.open(namespace, tokens, len(tokens))
    assert cache.grow(lease, len(tokens) - len(lease.pages))
    cache.release(lease, tokens, len(tokens))


def known(cache: RadixCache, tokens: list[int], namespace: str = "") -> int:
    """How much of `tokens` is in the tree (this counts as a use)."""
    lease = cache.open(namespace, tokens, len(tokens))
    cache.release(lease, tokens, lease.shared)
    return lease.shared


def test_page_zero_is_never_given_out() -> None:
    cache = RadixCache(5)
    lease = cache.open("", [1, 2, 3, 4], 4)
    assert cache.grow(lease, 4) and not cache.grow(lease, 1)
    assert sorted(lease.pages) == [1, 2, 3, 4]


def test_namespaces_share_nothing() -> None:
    cache = RadixCache(20)
    filled(cache, [1, 2, 3], "one")
    assert known(cache, [1, 2, 3], "one") == 3
    assert known(cache, [1, 2, 3], "other") == 0
    cache.check([])


def test_what_another_inserted_meanwhile_gives_the_duplicates_back() -> None:
    cache = RadixCache(20)
    first, second = cache.open("", [1, 2, 3], 3), cache.open("", [1, 2, 4], 3)
    assert cache.grow(first, 3) and cache.grow(second, 3)
    cache.share(first, [1, 2, 3], 3)
    cache.share(second, [1, 2, 4], 3)
    assert second.duplicates == second.pages[:2] and not set(second.pages) & set(first.pages)
    cache.check([first, second])
    cache.release(second, [1, 2, 4], 3)
    assert (cache.cached, cache.free) == (4, 15)
    cache.check([first])
    cache.release(first, [1, 2, 3], 3)
    assert cache.evictable == 4


def test_a_release_counts_once() -> None:
    cache = RadixCache(9)
    lease = cache.open("", [1, 2], 2)
    assert cache.grow(lease, 2)
    for _ in range(3):
        cache.release(lease, [1, 2], 1)
    assert (cache.free, cache.cached) == (7, 1)
    cache.check([])


def test_the_least_recently_used_leaf_goes_first_from_its_end() -> None:
    cache = RadixCache(10)
    filled(cache, [1, 1, 1])
    filled(cache, [2, 2, 2])
    filled(cache, [3, 3, 3])
    assert known(cache, [1, 1, 1]) == 3
    lease = cache.open("", [9, 9], 2)
    assert cache.grow(lease, 2)
    assert [known(cache, [n] * 3) for n in (1, 3, 2)] == [3, 3, 1]
    cache.check([lease])


def test_what_is_locked_stays() -> None:
    cache = RadixCache(7)
    filled(cache, [1, 2, 3])
    lock = cache.open("", [1, 2], 2)
    other = cache.open("", [7], 1)
    assert cache.grow(other, 4) and not cache.grow(other, 1)
    assert cache.available == 0 and known(cache, [1, 2, 3]) == 2
    cache.check([lock, other])


def test_the_heap_does_not_grow_with_every_use() -> None:
    cache = RadixCache(50)
    for tokens in ([1, 2], [1, 3], [2, 4]):
        filled(cache, tokens)
    for _ in range(2_000):
        assert known(cache, [1, 3]) == 2
    assert len(cache._heap) < 100
    cache.check([])


def test_an_empty_namespace_leaves_nothing_behind() -> None:
    cache = RadixCache(5)
    for number in range(100):
        filled(cache, [1, 2], f"tenant {number}")
    assert len(cache._roots) == 2
    lease = cache.open("new", [5], 1)
    cache.release(lease, [5], 0)
    assert "new" not in cache._roots


@pytest.mark.parametrize("fault", ["lost", "twice", "lock", "heap"])
def test_the_check_finds_a_fault(fault: str) -> None:
    cache = RadixCache(9)
    filled(cache, [1, 2])
    lease = cache.open("", [1, 2, 3], 3)
    assert cache.grow(lease, 1)
    cache.check([lease])
    if fault == "lost":
        lease.pages.pop()
    elif fault == "twice":
        cache._pages.free.append(lease.pages[-1])
    elif fault == "lock":
        lease.node.locks += 1
    else:
        cache.release(lease, [1, 2, 3], 3)
        cache._heap.clear()
    with pytest.raises(AssertionError):
        cache.check([] if fault == "heap" else [lease])
