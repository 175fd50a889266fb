"""Turns: kind, then what the tenant was served, then arrival; and what a tenant that comes and goes may count on."""

from __future__ import annotations

import pytest

from engines.llm.errors import QueueFull
from engines.llm.sequence import Request, Sequence
from engines.llm.waiting import Waiting


class Door:
    """Sequences that arrive one after another."""

    def __init__(self, limit: int = 100, limit_of_all: int = 10_000) -> None:
        self.waiting = Waiting(limit, limit_of_all)
        self.arrivals = 0

    def come(self, tenant: str = "", *, batch: bool = False) -> Sequence:
        self.arrivals += 1
        request = Request(self.arrivals, (1,), 1, tenant=tenant, batch=batch)
        sequence = Sequence(request, self.arrivals, self.waiting.enter(tenant))
        self.waiting.put(sequence)
        return sequence

    def serve(self, tokens: int, *, batch: bool = False) -> Sequence:
        """The next one is admitted, served and gone."""
        sequence = self.waiting.first(batch)
        assert sequence is not None
        self.waiting.remove(sequence)
        sequence.tenant.served += tokens
        self.waiting.leave(sequence.tenant)
        return sequence


def test_tenants_take_turns_by_what_they_were_served() -> None:
    door = Door()
    for tenant in ("a", "a", "a", "a", "b", "b"):
        door.come(tenant)
    assert [door.serve(tokens).tenant.name for tokens in (10, 3, 3, 20, 1, 1)] == ["a", "b", "b", "a", "a", "a"]
    assert door.waiting.count == 0 and door.waiting.first(False) is None


def test_kinds_are_queues_of_their_own() -> None:
    door = Door()
    late, early = door.come(batch=True), door.come()
    assert (door.waiting.first(False), door.waiting.first(True)) == (early, late)


def test_who_was_preempted_stands_before_later_ones() -> None:
    door = Door()
    first, second = door.come(), door.come()
    door.waiting.remove(first)
    door.waiting.put(first)
    assert door.waiting.first(False) is first and door.waiting.count == 2
    door.waiting.remove(first)
    assert door.waiting.first(False) is second


def test_a_newcomer_begins_at_the_level_of_the_least_served() -> None:
    """It neither waits for others to catch up with nor takes all turns until it has caught up itself."""
    door = Door()
    for tenant in ("a", "a", "b", "b", "b"):
        door.come(tenant)
    for tokens in (1000, 400):
        door.serve(tokens)
    newcomer = door.come("new")
    assert newcomer.tenant.served == 400


def test_one_that_comes_back_has_not_lost_what_it_took() -> None:
    door = Door()
    door.come("greedy")
    keeps_on = door.come("other")
    door.serve(5_000)
    assert door.come("greedy").tenant.served == 5_000
    assert door.waiting.first(False) is keeps_on


def test_one_that_was_away_gets_no_credit_for_it() -> None:
    door = Door()
    door.come("away")
    door.serve(10)
    door.come("busy")
    door.serve(5_000)
    door.come("busy")
    assert door.come("away").tenant.served == 5_010


def test_one_that_is_remembered_gets_no_credit_either() -> None:
    door = Door()
    for tenant in ("away", "busy", "busy"):
        door.come(tenant)
    door.serve(10)
    door.serve(5_000)
    assert door.come("away").tenant.served == 5_000


def test_the_level_outlives_a_moment_without_anybody() -> None:
    door = Door()
    door.come("a")
    door.serve(700)
    assert door.come("new").tenant.served == 700


def test_names_that_come_once_are_forgotten() -> None:
    door = Door()
    for number in range(1_000):
        door.come(f"name {number}")
        door.serve(1_000 - number)
    assert len(door.waiting._tenants) < 100


def test_the_limit_is_per_tenant_and_counts_those_behind_a_leader() -> None:
    door = Door(limit=2)
    first = door.come("a")
    held = Sequence(Request(99, (1,), 1, tenant="a"), 99, door.waiting.enter("a"))
    door.waiting.hold(held)
    with pytest.raises(QueueFull, match="2 requests wait already; try again later"):
        door.come("a")
    door.come("b")
    assert door.waiting.count == 3
    door.waiting.put(held)
    assert door.waiting.count == 3
    door.waiting.remove(first)
    door.come("a")


def test_many_names_do_not_get_past_the_limit_of_all() -> None:
    door = Door(limit=2, limit_of_all=5)
    first, *_ = [door.come(f"name {number}") for number in range(5)]
    with pytest.raises(QueueFull, match=r"5 requests of all callers wait already; .* raise max_waiting_all"):
        door.come("another")
    door.waiting.remove(first)
    door.come("another")


def test_one_behind_a_leader_is_not_chosen_and_can_go() -> None:
    door = Door()
    held = Sequence(Request(99, (1,), 1), 99, door.waiting.enter(""))
    door.waiting.hold(held)
    assert door.waiting.first(False) is None and door.waiting.count == 1
    door.waiting.remove(held)
    assert door.waiting.count == 0
