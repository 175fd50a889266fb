"""Whose call is next: interactive before batch, each tenant its share, nobody for ever."""

from __future__ import annotations

import json
import math
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulated.fairness import Outcome, Tenant, simulate
from chains.errors import SettingError
from chains.policy.quota import FairQueue, Quota, Quotas, Ticket

LIMIT = 10_000


def queue(slots: int = 1, limit: int = LIMIT, quotas: Quotas | None = None) -> FairQueue[str]:
    return FairQueue(slots, limit, quotas)


def fill(made: FairQueue[str], calls: str, *, batch: bool = False, now: float = 0.0) -> list[Ticket[str]]:
    """ "aab": two calls of tenant a, one of b; the items are a0, a1, b0 in the order of each tenant's."""
    seen: Counter[str] = Counter()
    tickets = []
    for tenant in calls:
        ticket, refused = made.push(f"{tenant}{seen[tenant]}", tenant, batch, now)
        assert refused is None
        tickets.append(ticket)
        seen[tenant] += 1
    return tickets


def served(made: FairQueue[str], count: int = LIMIT, now: float = 0.0) -> list[str]:
    """What one slot serves, one after the other."""
    items: list[str] = []
    while len(items) < count and (ticket := made.pop(now)) is not None:
        items.append(ticket.item)
        made.free(ticket.tenant)
    return items


def test_slots_are_taken_and_given_back() -> None:
    made = queue(slots=2)
    assert made.admit("a") and made.admit("b") and not made.admit("a")
    (waiting,) = fill(made, "c")
    assert made.pop(0.0) is None
    made.free("a")
    assert made.pop(0.0) is waiting and made.taken == 2 and len(made) == 0
    made.free("b")
    made.free("c")
    assert made.taken == 0 and made.pop(0.0) is None


def test_one_tenant_is_served_in_order() -> None:
    made = queue()
    fill(made, "aaaa")
    assert served(made) == ["a0", "a1", "a2", "a3"]


def test_a_flood_pushes_nobody_back() -> None:
    made = queue()
    fill(made, "a" * 1000)
    assert served(made, 10) == [f"a{i}" for i in range(10)]
    fill(made, "bcb")
    assert set(served(made, 3)) == {"b0", "c0", "a10"}
    assert set(served(made, 2)) == {"b1", "a11"}


def test_idle_time_saves_no_turns() -> None:
    made = queue()
    fill(made, "a" * 100)
    served(made, 50)
    fill(made, "b" * 100)  # was away for 50 turns of a's
    assert Counter(item[0] for item in served(made, 20)) == {"a": 10, "b": 10}


@pytest.mark.parametrize("weight", [2.0, 5.0])
def test_weights(weight: float) -> None:
    made = queue(quotas=Quotas(tenants={"a": Quota(weight)}))
    fill(made, "ab" * 300)
    count = Counter(item[0] for item in served(made, 120))
    assert count["a"] == pytest.approx(weight * count["b"], abs=weight + 1)


def test_interactive_before_batch() -> None:
    made = queue()
    fill(made, "aab", batch=True)
    fill(made, "bb")
    assert made.batch == 3
    assert served(made)[:2] == ["b0", "b1"]
    assert made.batch == 0


def test_batch_is_late_and_never_forgotten() -> None:
    made = queue(quotas=Quotas(aging=10.0, aged=0.1))
    fill(made, "b" * 50, batch=True, now=0.0)
    fill(made, "a" * 1000, now=0.0)
    assert {item[0] for item in served(made, 100, now=9.9)} == {"a"}
    items = served(made, 220, now=10.0)
    assert Counter(item[0] for item in items)["b"] == pytest.approx(220 / 11, abs=2)
    assert [item for item in items if item[0] == "b"] == [
        f"b{i}" for i in range(len([i for i in items if i[0] == "b"]))
    ]


def test_batch_waits_for_ever_when_that_is_set() -> None:
    made = queue(quotas=Quotas(aging=math.inf))
    fill(made, "b", batch=True)
    fill(made, "a" * 50)
    assert "b0" not in served(made, 50, now=1e9)


def test_above_its_share_a_tenant_leaves_the_reserve() -> None:
    made = queue(slots=8, quotas=Quotas(tenants={"a": Quota(share=0.25)}, reserve=0.5))
    assert [made.admit("a") for _ in range(8)] == [True] * 4 + [False] * 4
    fill(made, "aa")
    assert made.pop(0.0) is None
    assert [made.admit("b") for _ in range(5)] == [True] * 4 + [False]
    made.free("b")
    assert made.pop(0.0) is None  # four of a's run: above its two
    for _ in range(3):
        made.free("a")
    ticket = made.pop(0.0)
    assert ticket is not None and ticket.item == "a0"  # within its share it takes the reserve, too
    assert made.taken == 5


def test_a_hard_cap() -> None:
    made = queue(slots=8, quotas=Quotas(Quota(share=0.25), reserve=1.0))
    assert [made.admit("a") for _ in range(3)] == [True, True, False]
    fill(made, "ab")
    assert [ticket.item if ticket else None for ticket in (made.pop(0.0), made.pop(0.0))] == ["b0", None]
    made.free("a")
    assert served(made) == ["a0"]


def test_a_share_is_at_least_one_slot() -> None:
    made = queue(slots=2, quotas=Quotas(Quota(share=0.01), reserve=1.0))
    assert made.admit("a") and not made.admit("a")


def test_a_full_queue_refuses_whoever_has_most() -> None:
    made = queue(limit=4)
    fill(made, "aaaa")
    _, refused = made.push("b0", "b", False, 0.0)
    assert refused is not None and refused.item == "a3"
    ticket, refused = made.push("a4", "a", False, 0.0)
    assert refused is ticket
    _, refused = made.push("b1", "b", False, 0.0)
    assert refused is not None and refused.item == "a2"
    ticket, refused = made.push("b2", "b", False, 0.0)
    assert refused is ticket  # two each by now
    assert len(made) == 4 and not made.remove(ticket)


def test_a_full_queue_refuses_batch_first() -> None:
    made = queue(limit=3)
    fill(made, "b", batch=True)
    fill(made, "aa")
    _, refused = made.push("a2", "a", False, 0.0)
    assert refused is not None and refused.item == "b0"
    ticket, refused = made.push("b1", "b", True, 0.0)
    assert refused is ticket


def test_what_is_removed_is_not_served() -> None:
    made = queue()
    tickets = fill(made, "abab")
    assert made.remove(tickets[0]) and not made.remove(tickets[0])
    assert sorted(served(made)) == ["a1", "b0", "b1"]
    assert not made.remove(tickets[1])


def test_the_oldest_wait() -> None:
    made = queue()
    assert made.wait(5.0) == 0.0
    first, _ = made.push("a", "a", False, 1.0)
    made.push("b", "b", False, 3.0)
    assert made.wait(5.0) == 4.0
    made.remove(first)
    assert made.wait(5.0) == 2.0


def test_tenants_that_are_gone_are_forgotten() -> None:
    made = queue(slots=3)
    fill(made, "a", batch=True)
    for number in range(1000):
        made.push("x", f"tenant {number}", False, 0.0)
        made.push("x", f"batch {number}", True, 0.0)
        served(made, 2)
    assert len(made._interactive.flows) + len(made._batch.flows) <= 8
    served(made)
    assert not made._interactive.flows and not made._batch.flows
    assert not made._running and not made._young


def test_an_endless_row_of_new_tenants_starves_nobody() -> None:
    made = queue()
    fill(made, "aaa")
    items = []
    for number in range(40):
        made.push(f"n{number}", f"new {number}", False, 0.0)
        items += served(made, 1)
    assert {"a0", "a1", "a2"} <= set(items)


STEPS = st.lists(
    st.tuples(st.sampled_from("aapqqrff"), st.sampled_from("xyz"), st.booleans(), st.floats(0, 9)), max_size=80
)


@given(STEPS, st.integers(1, 4), st.integers(0, 6), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.3, 1.0]))
def test_nothing_is_lost_and_nothing_runs_twice(
    steps: list[tuple[str, str, bool, float]], slots: int, limit: int, reserve: float, share: float
) -> None:
    made = queue(slots, limit, Quotas(Quota(share=share), reserve=reserve, aging=5.0))
    waiting: list[Ticket[str]] = []
    running: list[str] = []
    now = 0.0
    for step, tenant, batch, seconds in steps:
        now += seconds
        if step == "a" and made.admit(tenant):
            running.append(tenant)
        elif step == "q":
            ticket, refused = made.push("call", tenant, batch, now)
            waiting.append(ticket)
            if refused is not None:
                waiting.remove(refused)
        elif step == "p" and (popped := made.pop(now)) is not None:
            waiting.remove(popped)
            running.append(popped.tenant)
        elif step == "r" and waiting:
            assert made.remove(waiting.pop(len(waiting) // 2))
        elif step == "f" and running:
            made.free(running.pop(0))
        assert list(made) == waiting
        assert len(made) <= limit and made.taken == len(running) <= slots
        assert made.batch <= sum(ticket.batch for ticket in waiting)
    for tenant in running:
        made.free(tenant)
    while (popped := made.pop(now)) is not None:
        waiting.remove(popped)
        made.free(popped.tenant)
    assert not waiting and made.taken == 0


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60))
def test_a_tenant_with_calls_waiting_is_served_every_third_time(tenants: list[str]) -> None:
    made = queue()
    fill(made, "".join(tenants))
    items = served(made)
    assert len(items) == len(tenants)
    for tenant in set(tenants):
        places = [place for place, item in enumerate(items) if item[0] == tenant]
        assert all(later - earlier <= 3 for earlier, later in pairwise([-1, *places]))


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"weight": 0}, Quota),
        ({"weight": math.inf}, Quota),
        ({"share": 0}, Quota),
        ({"share": 1.1}, Quota),
        ({"dedicated": -1}, Quota),
        ({"dedicated": 1.5}, Quota),
        ({"dedicated": True}, Quota),
        ({"weight": "2"}, Quota),
        ({"tenants": [1]}, Quotas),
        ({"tenants": {"a": 1}}, Quotas),
        ({"default": 0.5}, Quotas),
        ({"default": Quota(dedicated=1)}, Quotas),
        ({"reserve": -0.1}, Quotas),
        ({"aging": -1}, Quotas),
        ({"aging": math.nan}, Quotas),
        ({"aged": 0}, Quotas),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], kind: type) -> None:
    with pytest.raises(SettingError, match="write "):
        kind(**settings)


def test_quotas_are_the_same_after_a_way_as_plain_data() -> None:
    quotas = Quotas(Quota(2.0), {"clinic": Quota(share=0.5, dedicated=2)}, reserve=0.25, aging=math.inf)
    assert Quotas.read(json.loads(json.dumps(quotas.plain()))) == quotas
    assert quotas.dedicated == {"clinic": 2}


# a flood


OTHERS = [f"t{index}" for index in range(9)]


def replica(policy: Any, flood: float, *, load: float = 0.7, quotas: Quotas | None = None, slots: int = 8) -> Outcome:
    """Nine tenants with a tenth of the load each; a tenth one that sends `flood` calls for each that fits."""
    each = slots * load / 10
    tenants = [Tenant(name, each) for name in OTHERS] + [Tenant("flood", flood * slots)]
    return simulate(policy, tenants, quotas=quotas, slots=slots)


def p95(outcome: Outcome, kind: str) -> float:
    values = sorted(value for name in OTHERS for value in getattr(outcome, kind)[name])
    return float(values[int(len(values) * 0.95)])


@pytest.mark.parametrize("load", [0.7, 0.8])
def test_a_flood_leaves_others_waits_within_a_fifth(load: float) -> None:
    share = {"flood": Quota(share=0.125)}
    calm = replica("fair", load / 10, load=load)
    flood = replica("fair", 5.0, load=load, quotas=Quotas(tenants=share, reserve=1.0))
    assert p95(flood, "waits") <= 1.2 * p95(calm, "waits")
    softer = replica("fair", 5.0, load=load, quotas=Quotas(tenants=share))
    assert p95(softer, "waits") <= 1.3 * p95(calm, "waits")
    assert len(softer.waits["flood"]) > 1.2 * len(flood.waits["flood"])  # what the reserve is for
    assert not any(flood.refused[name] for name in OTHERS)
    assert p95(replica("fifo", 5.0, load=load), "waits") > 5 * p95(calm, "waits")  # what it is there against


def test_a_flood_without_a_share_costs_others_a_slots_turn() -> None:
    calm, flood = replica("fair", 0.07), replica("fair", 5.0)
    assert p95(flood, "times") <= 1.25 * p95(calm, "times")
    assert not any(flood.refused[name] for name in OTHERS)


def test_a_flood_of_batch_behind_interactive_calls() -> None:
    def run(rate: float) -> Outcome:
        tenants = [Tenant(name, 0.56) for name in OTHERS]
        quotas = Quotas(tenants={"flood": Quota(share=0.125)})
        return simulate("fair", [*tenants, Tenant("flood", rate, batch=True)], quotas=quotas)

    calm, flood = run(0.56), run(40.0)
    assert p95(flood, "times") <= 1.1 * p95(calm, "times")
    assert p95(flood, "waits") <= 1.4 * p95(calm, "waits")  # one slot of eight is gone to what runs already
    assert flood.waits["flood"]
