"""Which replica takes a call."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulated.routing import Cluster, Setup, waits
from chains.errors import SettingError
from chains.policy.routing import Load, Peer, Router, Routing, Wish, dedicate


def router(*names: str, slots: int = 4, machine: str = "", here: tuple[str, ...] = (), **settings: Any) -> Router:
    made = Router(Random(0), Routing(**settings), machine)
    made.update([Peer(name, machine if name in here else "elsewhere", slots) for name in names])
    return made


def picks(made: Router, times: int, wish: Wish | None = None, now: float = 0.0) -> Counter[str | None]:
    """How often each is chosen; each call has ended before the next begins."""
    chosen: Counter[str | None] = Counter()
    for _ in range(times):
        name = made.pick(wish or Wish(), now)
        chosen[name] += 1
        if name is not None:
            made.done(name, now)
    return chosen


def test_nobody_there() -> None:
    made = router()
    assert made.pick(Wish(), 0.0) is None
    made.done("gone", 0.0)
    made.report("gone", Load())
    made.accepted("gone")


def test_own_calls_count_at_once_and_reports_of_others_beside_them() -> None:
    made = router("a", "b")
    assert [made.pick(Wish(), 0.0) for _ in range(4)].count("a") == 2  # what was sent is known before any report
    made.report("a", Load(running=2, mine=2))
    made.report("b", Load(running=3, mine=2))
    assert made.pick(Wish(), 0.0) == "a"
    made.done("b", 0.0)
    made.done("b", 0.0)
    assert made.pick(Wish(), 0.0) == "b"  # one call of somebody else's against three of ours


@pytest.mark.parametrize("names", ["ab", "abc", "abcd"])
def test_of_idle_replicas_each_has_its_part(names: str) -> None:
    """Also where all of them are compared: else the first would get every call, and be every conversation's."""
    made = router(*names)
    homes = Counter[str | None]()
    for number in range(400):
        homes += picks(made, 1, Wish(affinity=f"call {number}"))
    for chosen in (picks(made, 400), homes):
        assert sorted(map(str, chosen)) == [*names] and min(chosen.values()) > 0.6 * 400 / len(names), chosen


def test_the_wait_counts_while_there_is_a_queue() -> None:
    made = router("slow", "fast")
    made.report("fast", Load(running=4, queued=1, wait_ms=20))
    made.report("slow", Load(running=3, queued=1, wait_ms=400))
    assert picks(made, 5) == {"fast": 5}
    made.report("slow", Load(running=0, queued=0, wait_ms=400))  # the last one's wait, long ago
    assert picks(made, 5) == {"slow": 5}


def test_where_the_first_two_are_full_two_others_are_looked_at() -> None:
    made = router("a", "b", "c", "d")
    for name in "abc":
        made.report(name, Load(running=4, queued=4))
    made.report("d", Load(running=4, queued=1))
    assert picks(made, 40) == {"d": 40}


def test_interactive_goes_past_the_batch_that_waits() -> None:
    made = router("a", "b")
    made.report("a", Load(running=4, queued=50, batch=50))
    made.report("b", Load(running=4, queued=2))
    assert picks(made, 5) == {"a": 5}
    assert picks(made, 5, Wish(batch=True)) == {"b": 5}


def test_a_conversation_keeps_its_replica_until_that_is_overloaded() -> None:
    made = router("a", "b", "c")
    wish = Wish(affinity="call 1")
    home = made.pick(wish, 0.0)
    assert home is not None
    made.report(home, Load(running=3, mine=0))
    made.done(home, 0.0)
    assert set(picks(made, 20, wish)) == {home}  # a free slot is enough
    made.report(home, Load(running=4, queued=1))
    (other,) = picks(made, 20, wish)
    assert other != home
    made.report(home, Load())
    assert set(picks(made, 20, wish)) == {other}  # and it does not wander back


def test_everybody_full_is_no_reason_to_move() -> None:
    made = router("a", "b")
    wish = Wish(affinity="call 1")
    home = made.pick(wish, 0.0)
    assert home is not None
    made.done(home, 0.0)
    for name in ("a", "b"):
        made.report(name, Load(running=4))
    made.report(home, Load(running=4, queued=1))
    assert set(picks(made, 20, wish)) == {home}


def test_a_conversation_moves_when_its_replica_drains_dies_or_is_forgotten() -> None:
    made = router("a", "b")
    wish = Wish(affinity="call 1")
    home = made.pick(wish, 0.0)
    assert home is not None
    other = {"a": "b", "b": "a"}[home]
    made.done(home, 0.0)
    made.report(home, Load(open=False))
    assert made.pick(wish, 0.0) == other
    made.report(home, Load())
    made.done(other, 0.0, fault=True)
    assert made.pick(wish, 0.0) == home
    made.update([Peer(other)])
    assert made.pick(wish, 60.0) == other
    made.leave("call 1")
    made.leave("call 1")


def test_the_own_machine_first_until_it_is_busy() -> None:
    made = router("near", "far", "further", machine="m1", here=("near",))
    assert picks(made, 10) == {"near": 10}
    made.report("near", Load(running=3))
    assert "near" not in picks(made, 10)
    for name in ("far", "further"):
        made.report(name, Load(running=4))
    assert picks(made, 10) == {"near": 10}


def test_a_prefix_goes_where_every_caller_sends_it() -> None:
    names = [f"r{index}" for index in range(20)]
    ours, theirs = router(*names), Router(Random(99))
    theirs.update([Peer(name, slots=4) for name in reversed(names)])
    for index in range(30):
        wish = Wish(prefix=f"digest {index}")
        assert len(set(picks(ours, 5, wish)) | set(picks(theirs, 5, wish))) == 1
    popular = Wish(prefix="the clinic's prompt")
    (first,) = picks(ours, 1, popular)
    assert first is not None
    ours.report(first, Load(running=4))
    (second,) = picks(ours, 5, popular)
    assert second not in (first, None)
    ours.report(str(second), Load(running=4))
    assert not {first, second} & set(picks(ours, 20, popular))  # both full: anywhere with a free slot


def test_prefixes_are_not_remembered_for_ever() -> None:
    made = router("a", "b", "c")
    for index in range(3000):
        picks(made, 1, Wish(prefix=str(index)))
    assert made._pools is not None
    assert len(made._pools[""].ranked) <= 1024


def test_a_broken_replica_is_left_at_once_and_tried_with_one_call_after_a_while() -> None:
    made = router("a", "b", backoff=1.0, backoff_most=3.0)
    for _ in range(5):
        made.done("a", 10.0, fault=True)  # five calls end by one death: one failure
    assert picks(made, 20, now=10.5) == {"b": 20}
    made.report("b", Load(running=4))
    trial = made.pick(Wish(), 11.0)
    assert trial == "a"
    assert picks(made, 20, now=11.0) == {"b": 20}  # while the trial is under way
    made.done("a", 11.0, fault=True)
    assert picks(made, 20, now=12.9) == {"b": 20}  # twice as long
    assert made.pick(Wish(), 13.0) == "a"
    made.accepted("a")
    assert picks(made, 20, now=13.0) == {"a": 20}


def test_a_trial_that_ended_without_a_word_leaves_room_for_the_next() -> None:
    made = router("a", "b", backoff=1.0)
    made.report("b", Load(running=4))
    made.done("a", 0.0, fault=True)
    assert made.pick(Wish(), 1.0) == "a"
    made.done("a", 1.0)  # cancelled before it was accepted
    assert made.pick(Wish(), 1.0) == "a"


def test_a_report_brings_an_ejected_replica_back() -> None:
    made = router("a", "b")
    made.done("a", 0.0, fault=True)
    made.report("b", Load(running=4))
    assert picks(made, 5) == {"b": 5}
    made.report("a", Load())
    assert picks(made, 5) == {"a": 5}


def test_suspicion_alone_refuses_no_call() -> None:
    made = router("a", "b")
    made.done("a", 0.0, fault=True)
    made.done("b", 0.1, fault=True)
    assert made.pick(Wish(), 0.2) == "a"
    assert made.pick(Wish(), 0.2, tried={"a"}) == "b"
    assert made.pick(Wish(), 0.2, tried={"a", "b"}) is None


def test_what_drains_is_never_chosen() -> None:
    made = router("a", "b")
    made.report("a", Load(open=False))
    assert picks(made, 10) == {"b": 10}
    made.done("b", 0.0, fault=True)
    assert made.pick(Wish(), 0.0, tried={"b"}) is None


def test_dedicated_replicas_are_for_their_tenant() -> None:
    made = Router(Random(0))
    made.update([Peer("own", slots=4, tenant="clinic"), Peer("s1", slots=4), Peer("s2", slots=4)])
    assert picks(made, 10, Wish(tenant="clinic")) == {"own": 10}
    assert "own" not in picks(made, 50, Wish(tenant="other")) + picks(made, 50)
    made.report("own", Load(open=False))
    assert set(picks(made, 20, Wish(tenant="clinic"))) <= {"s1", "s2"}  # better shared than refused
    made.update([Peer("own", slots=4, tenant="clinic")])
    assert made.pick(Wish(tenant="other"), 0.0) is None
    made.done("own", 0.0, fault=True)
    assert made.pick(Wish(tenant="other"), 0.0) is None


@given(st.sets(st.text("abcdef", min_size=1), min_size=1), st.dictionaries(st.sampled_from("xyz"), st.integers(0, 4)))
def test_dedication_is_stable_and_leaves_one_to_the_rest(names: set[str], counts: dict[str, int]) -> None:
    owner = dedicate(names, counts)
    assert owner == dedicate(sorted(names, reverse=True), counts)
    assert len(owner) == min(sum(counts.values()), len(names) - 1)
    assert all(list(owner.values()).count(tenant) <= counts[tenant] for tenant in owner.values())
    if len(counts) == 1 and len(owner) == sum(counts.values()):
        more = dedicate({*names, "new one"}, counts)
        assert len(set(owner) - set(more)) <= 1


@pytest.mark.parametrize("counts", [{"": 1}, {"clinic": -1}])
def test_dedication_that_makes_no_sense(counts: dict[str, int]) -> None:
    with pytest.raises(SettingError, match=r"write e\.g\. dedicated="):
        dedicate(["a"], counts)


@pytest.mark.parametrize(
    "settings",
    [
        {"choices": 0},
        {"near": -1},
        {"wait_ms": 0},
        {"backoff": float("nan")},
        {"backoff": 9, "backoff_most": 1},
        {"choices": 2.0},
        {"choices": True},
        {"near": "0.5"},
        {"backoff_most": None},
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="write "):
        Routing(**settings)


@given(st.lists(st.tuples(st.sampled_from("pdfarl"), st.integers(0, 4), st.floats(0, 5)), max_size=60))
def test_whatever_happens_a_pick_takes_calls_and_nothing_is_kept(steps: list[tuple[str, int, float]]) -> None:
    made, now, under_way = router(*"abcde"), 0.0, list[str]()
    closed = set[str]()
    for step, index, seconds in steps:
        name, now = "abcde"[index], now + seconds
        if step == "p":
            chosen = made.pick(Wish(affinity=name), now)
            assert (chosen is None) == (len(closed) == 5)
            if chosen is not None:
                assert chosen not in closed
                under_way.append(chosen)
        elif step in "df" and under_way:
            made.done(under_way.pop(), now, fault=step == "f")
        elif step == "a":
            made.accepted(name)
        elif step == "r":
            open_ = index % 2 == 0
            closed = closed - {name} if open_ else closed | {name}
            made.report(name, Load(running=index, open=open_))
        elif step == "l":
            made.leave(name)
    for name in under_way:
        made.done(name, now)
    assert all(member.own == 0 and not member.trial for member in made._members.values())
    for name in "abcde":
        made.leave(name)
    assert not made._homes


# a hundred replicas


def p99(sorted_waits: list[float]) -> float:
    return sorted_waits[int(len(sorted_waits) * 0.99)]


@pytest.mark.parametrize("seed", range(2))
def test_waits_among_a_hundred_replicas(seed: int) -> None:
    """Heavy tails, reports 50 to 150 ms old, a replica dies every 2 s; 0.2 s is the mean time of a call."""
    chance, ours = p99(waits("random", seed=seed)), p99(waits("router", seed=seed))
    best = p99(waits("best", seed=seed))
    assert ours < 0.2 * chance
    assert ours < best + 3 * Setup().service
    sent_back = p99(waits("router", Setup(bounces=2), seed=seed))
    assert sent_back < 0.06 * chance
    assert sent_back < best + 1 * Setup().service


def test_a_death_costs_each_caller_few_calls() -> None:
    """Each caller finds out by itself once, by the calls that it had there; the book is late by a second."""
    setup = Setup()
    cluster = Cluster("router", setup).run()
    deaths = int(setup.seconds / setup.churn) - 1
    per_death = cluster.retries / deaths
    assert per_death < setup.slots * 2 + 2 * setup.callers
