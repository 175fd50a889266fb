"""Who gets a row and pages, and who gives them up."""

from __future__ import annotations

import pytest

from engines.llm.residents import Residents
from engines.llm.sequence import Request, Sequence
from engines.llm.waiting import Waiting


class House:
    """A queue and residents with `rows` rows and `pages` pages."""

    def __init__(self, pages: int = 100, rows: int = 4) -> None:
        self.waiting = Waiting(100, 100)
        self.residents = Residents(pages + 1, rows, 8, self.waiting)
        self.arrivals = 0

    def come(self, size: int = 10, *, batch: bool = False) -> Sequence:
        self.arrivals += 1
        tokens = tuple(range(self.arrivals * 1000, self.arrivals * 1000 + size))
        sequence = Sequence(Request(self.arrivals, tokens, 50, batch=batch), self.arrivals, self.waiting.enter(""))
        self.waiting.put(sequence)
        return sequence

    def live(self, size: int = 10, *, batch: bool = False) -> Sequence:
        """One that was admitted and has computed its prompt."""
        sequence = self.come(size, batch=batch)
        assert self.residents.admit(sequence)
        sequence.committed = sequence.scheduled = size
        return sequence

    def check(self, *flying: Sequence) -> None:
        self.residents.check(list(flying), 1)


def test_rows_begin_at_one_and_come_back() -> None:
    house = House()
    first, second = house.live(), house.live()
    assert [first.row, second.row] == [1, 2]
    assert house.residents.owner(2) == second.id
    assert house.residents.preempt(first)
    assert house.live().row == 1
    with pytest.raises(ValueError, match="row 3 is in no uncommitted plan"):
        house.residents.owner(3)
    house.check()


def test_nobody_is_admitted_without_room_for_those_who_run() -> None:
    house = House(pages=40)
    house.live(10)
    late = house.come(23)
    assert not house.residents.admit(late)
    house.check()
    assert late.lease is None and house.waiting.first(False) is late
    small = house.come(22)
    assert house.residents.admit(small)
    house.check()


def test_who_is_nearly_done_needs_little_room() -> None:
    house = House(pages=40)
    first, late = house.live(10), house.come(28)
    first.limit = 12
    assert house.residents.admit(late)
    house.check()


def test_a_failed_admission_is_not_tried_again_until_pages_come_free() -> None:
    house = House(pages=40)
    first, late = house.live(10), house.come(30)
    assert not house.residents.admit(late)
    tried = house.residents.cache._clock
    assert not house.residents.admit(late)
    assert house.residents.cache._clock == tried
    assert house.residents.preempt(first)
    assert house.residents.admit(late)


def test_the_latest_gives_its_pages_and_batch_before_that() -> None:
    house = House(pages=40)
    old = house.live(10)
    batch = house.live(8, batch=True)
    new = house.live(6)
    house.residents.cache.grow(old.lease, house.residents.cache.available)  # type: ignore[arg-type]
    for gone in (batch, new):
        size = len(old.lease.pages)  # type: ignore[union-attr]
        assert house.residents.take(old)
        assert gone.lease is None and gone.committed == 0 and len(old.lease.pages) == size + 1  # type: ignore[union-attr]
        house.residents.cache.grow(old.lease, house.residents.cache.available)  # type: ignore[arg-type]
    assert house.residents.preemptions == 2 and house.waiting.count == 2


def test_one_in_flight_gives_way_after_its_commit() -> None:
    house = House(pages=20)
    old, new = house.live(10), house.live(2)
    new.flights = 1
    house.residents.cache.grow(old.lease, 8)  # type: ignore[arg-type]
    assert not house.residents.take(old)
    assert new.yielding and new.lease is not None
    house.check(new)
    assert not house.residents.take(old), "once is enough"
    new.flights = 0
    assert house.residents.preempt(new)
    house.check()
    assert house.residents.take(old)


def test_the_last_in_line_preempts_itself_unless_it_is_in_flight() -> None:
    house = House(pages=20)
    house.live(10)
    new = house.live(2)
    house.residents.cache.grow(new.lease, 8)  # type: ignore[arg-type]
    new.flights = 1
    assert not house.residents.take(new) and new.lease is not None and not new.yielding
    new.flights = 0
    assert not house.residents.take(new) and new.lease is None


def test_an_interactive_one_takes_the_row_of_batch_but_batch_takes_none() -> None:
    house = House(rows=1)
    batch = house.live(batch=True)
    assert not house.residents.admit(house.come(batch=True))
    interactive = house.come()
    assert house.residents.admit(interactive)
    assert batch.lease is None and house.residents.running == [interactive]
    assert not house.residents.admit(batch)


def known(house: House, size: int) -> tuple[int, ...]:
    """A prefix that lies in the cache."""
    sequence = house.live(size)
    assert house.residents.preempt(sequence)
    house.waiting.remove(sequence)
    return tuple(sequence.tokens)


def test_pins_go_when_one_alone_needs_them() -> None:
    house = House(pages=30)
    house.residents.pin(known(house, 15), "")
    house.check()
    assert house.residents.admit(house.come(28))
    assert house.residents.cache.cached < 15
    house.check()


def test_the_same_pin_again_holds_once_and_what_is_known_by_now() -> None:
    house = House(pages=40)
    tokens = known(house, 10)
    longer = (*tokens, *range(5))
    for _ in range(3):
        house.residents.pin(longer, "")
        house.check()
    lease = house.residents.cache.open("", list(longer), 15)
    assert house.residents.cache.grow(lease, 5)
    house.residents.cache.release(lease, list(longer), 15)
    assert house.residents.cache.evictable == 5
    house.residents.pin(longer, "")
    assert house.residents.cache.evictable == 0
    house.residents.unpin_all()
    assert house.residents.cache.evictable == 15
    house.check()


def test_pins_take_half_of_the_cache_at_most() -> None:
    house = House(pages=40)
    first, second = known(house, 12), known(house, 8)
    house.residents.pin(first, "")
    house.residents.pin(second, "")
    assert house.residents.cache.evictable == 0
    house.residents.pin(known(house, 3), "")
    assert house.residents.cache.evictable == 12
    house.residents.pin(known(house, 25), "")
    assert house.residents.cache.evictable == house.residents.cache.cached
    house.check()
